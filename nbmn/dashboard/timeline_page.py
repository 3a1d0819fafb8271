"""Shows a timeline in the current cell: a picture that stays, and a figure while a kernel lives."""

from __future__ import annotations

import json
import uuid
from typing import Any

from nbmn.dashboard.lanes import Lanes
from nbmn.dashboard.timeline import encode_timeline, html, plain

__all__ = ["show_timeline"]


def show_timeline(lanes: Lanes, live: bool) -> None:
    """Display lanes.

    Parameters
    ----------
    live
        There is a page with a kernel: it replaces the picture by a figure that tells of each bar.
        The last few timelines stay alive; a notebook that is saved holds the picture.
    """
    from IPython.display import display

    anchor = uuid.uuid4().hex
    bundle: dict[str, Any] = {"text/plain": plain(lanes), "text/html": html(lanes, anchor)}
    display(bundle, raw=True)
    if live and lanes.bars:
        from nbmn.dashboard.widget import TimelineWidget, bokeh_runtime, retire

        item = json.dumps(encode_timeline(lanes))
        retire(TimelineWidget(runtime=bokeh_runtime(), item=item, anchor=anchor))
