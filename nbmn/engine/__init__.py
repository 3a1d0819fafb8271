"""The rank side: what lives in each engine beside the user's code."""

from nbmn.engine.reporter import report

__all__ = ["report"]
