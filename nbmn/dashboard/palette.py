"""Colours that colour-blind people can tell apart, on white and on black."""

from __future__ import annotations

__all__ = ["CROWD_COLOR", "LAMPS", "NEUTRAL", "rank_color"]

# Bokeh's Colorblind8, with its black as a grey: it must show on a dark page too.
_RANKS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#D6C72A",
    "#8A8A8A",
)

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
