"""The live board: charts of a run, fed by plain records. Knows no MPI and no cluster."""

from __future__ import annotations

from nbmn.dashboard.board import LiveBoard

__all__ = ["LiveBoard"]
