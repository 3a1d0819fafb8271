"""What ranks with given values find when they compare them."""

from __future__ import annotations

from nbmn.debug.comparison import Comparison, closer, compare, how, plan
from nbmn.debug.contrast import contrast
from nbmn.debug.fingerprint import fingerprint


def compared(*values, tolerance=0.0) -> Comparison:
    """What ranks with these values find, as they go about it."""
    found = [fingerprint(value) for value in values]
    outcome = compare({rank: each.leaves for rank, each in enumerate(found)}, tolerance)
    seen = {
        (move.path, target): contrast(
            found[target].arrays[move.places[target]],
            found[move.source].arrays[move.places[move.source]],
            move.tolerance,
        )
        for move in plan(outcome)
        for target in move.targets
    }
    return closer(outcome, seen)


def told(*values, tolerance=0.0) -> dict[str, list[tuple]]:
    """Differences by path: ranks, words, ranks of the reference."""
    outcome = compared(*values, tolerance=tolerance)
    return {
        difference.path: [
            (
                group.ranks,
                how(
                    group,
                    difference.reference,
                    outcome.contrasts.get((difference.path, group.ranks[0])),
                ),
                difference.reference.ranks,
            )
            for group in difference.others
        ]
        for difference in outcome.differences
    }
