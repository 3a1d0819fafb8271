"""Colours that colour-blind people can tell apart, on white and on black."""

from __future__ import annotations

__all__ = ["CROWD_COLOR", "DARK", "DIM", "LAMPS", "LINE", "NEUTRAL", "css_color", "rank_color"]

# Bokeh's Colorblind8, with its black as a grey: it must show on a dark page too.
_RANKS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#CFBF1C",
    "#8A8A8A",
)

# Those of them that are too dark for a dark page, and what else lies on it.
DARK = {
    "#0072B2": "#3A9BDC",
    "#009E73": "#1FBF92",
    "#56B4E9": "#8FD0F5",
    "#D55E00": "#F0762B",
    "#CFBF1C": "#F0E442",
    "#8A8A8A": "#A0A0A0",
    "#767676": "#9AA4AF",
    "#606770": "#E6EDF3",
}
"""The likes of colours on a dark page; both as in board.css."""

DIM = "#767676"
LINE = "#606770"
"""Text and lines of no rank, on white and, where a page does not tell its theme, on black."""
NEUTRAL = "#808080"
CROWD_COLOR = "#3A8FCB"

LAMPS = {
    "starting": "#8A8A8A",
    "idle": "#8A8A8A",
    "running": "#009E73",
    "waiting": "#E69F00",
    "failed": "#D55E00",
    "silent": "#CC79A7",
    "done": "#0072B2",
    "interrupted": "#8A8A8A",
    "killed": "#D55E00",
    "exited": "#D55E00",
    "ended": "#8A8A8A",
}


def rank_color(rank: int) -> str:
    """The colour of a rank, the same on every board."""
    return _RANKS[rank % len(_RANKS)]


def css_color(color: str) -> str:
    """A declaration of CSS: ``color``, or its like on a dark page."""
    # A page that cannot tell takes the first.
    return f"color:{color};color:light-dark({color},{DARK.get(color, color)})"
