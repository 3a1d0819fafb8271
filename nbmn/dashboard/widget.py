"""The live half of a board: an anywidget around BokehJS, fed by the kernel.

All that flows from the page to the kernel is a press of its button. The page gets the
whole window each time, so a frame that was skipped is never missed, and the kernel holds it all
when a reloaded page asks for the state.
"""

from __future__ import annotations

import functools
import gzip
from collections import deque
from pathlib import Path

import anywidget
import bokeh
import ipywidgets
import traitlets

__all__ = ["BoardWidget", "BokehRuntime", "TimelineWidget", "bokeh_runtime", "retire"]

_STATIC = Path(__file__).parent / "static"
_KEPT = 3


def _joined(*names: str) -> str:
    """Scripts that make one module, or sheets that make one."""
    return "\n".join((_STATIC / name).read_text("utf-8") for name in names)


class BokehRuntime(anywidget.AnyWidget):
    """BokehJS itself, from the installed bokeh package: sent to a page once, not per board.

    As a widget's state it reaches every front end, over the kernel's own
    connection: no URL, no server extension, no internet.
    """

    _esm = "export default {}"
    version = traitlets.Unicode().tag(sync=True)
    source = traitlets.Bytes().tag(sync=True)
    """The minified script, compressed with gzip (a quarter of 1.3 MB)."""


@functools.cache
def bokeh_runtime() -> BokehRuntime:
    """The one runtime of this kernel."""
    script = Path(bokeh.__file__).parent / "server" / "static" / "js" / "bokeh.min.js"
    return BokehRuntime(version=bokeh.__version__, source=gzip.compress(script.read_bytes(), 6))


class BoardWidget(anywidget.AnyWidget):
    """One board on the page.

    Set several traits under ``hold_sync()``: they then arrive together.
    """

    _esm = _joined("page.js", "board.js", "where.js")
    _css = _joined("board.css", "where.css")
    runtime = traitlets.Instance(BokehRuntime).tag(sync=True, **ipywidgets.widget_serialization)
    figures = traitlets.Unicode("[]").tag(sync=True)
    """List of :func:`nbmn.dashboard.figures.encode_figure`, in the order of display."""
    state = traitlets.Unicode("{}").tag(sync=True)
    """From :func:`nbmn.dashboard.encoding.encode_state`."""
    frame = traitlets.Bytes().tag(sync=True)
    """From :func:`nbmn.dashboard.encoding.encode_frame`."""
    beat = traitlets.Int().tag(sync=True)
    """Another number at least once a second: from its absence the page tells a dead kernel."""
    answers = traitlets.Bool(False).tag(sync=True)
    """Whether a press of the *Where?* button is answered, see :mod:`nbmn.dashboard.asking`."""


class TimelineWidget(anywidget.AnyWidget):
    """Brings a static timeline on the page to life; never displayed itself."""

    _esm = _joined("page.js", "timeline.js")
    _css = _STATIC / "board.css"
    runtime = traitlets.Instance(BokehRuntime).tag(sync=True, **ipywidgets.widget_serialization)
    item = traitlets.Unicode().tag(sync=True)
    """The figure, as JSON of Bokeh's ``json_item``."""
    anchor = traitlets.Unicode().tag(sync=True)
    """What the element to put it in has in ``data-nbmn-timeline``."""


@functools.cache
def _retired() -> deque[anywidget.AnyWidget]:
    return deque()


def retire(widget: anywidget.AnyWidget) -> None:
    """Let go of a board that is over; the last few stay, for pages that still show them.

    Each open widget is sent again with every reload of a page.
    """
    kept = _retired()
    kept.append(widget)
    while len(kept) > _KEPT:
        oldest = kept.popleft()
        oldest.layout.close()  # a widget of its own
        oldest.close()
