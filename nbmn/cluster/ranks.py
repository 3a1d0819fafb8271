"""Moved to :mod:`nbmn.ranks`."""

from nbmn.ranks import name_ranks, parse_ranks

__all__ = ["name_ranks", "parse_ranks"]
