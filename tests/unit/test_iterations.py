"""Which ranks came less often to a call, from what all have recorded."""

from __future__ import annotations

from nbmn.communicators.recordings import Entry
from nbmn.debug.iterations import Call, call_of, missed

SUM = Call("allreduce", "cell [1] line 2")


def entries(calls: str) -> list[Entry]:
    """Of ``s`` (a sum) and ``b`` (a barrier), ``m`` and ``e`` (an update and an evaluation in a
    trainer, at one line)."""
    kinds = {
        "s": ("allreduce", 2),
        "b": ("barrier", 3),
        "m": ("average_gradients", 9),
        "e": ("the evaluation", 9),
    }
    return [
        Entry(i, 7, i, kinds[c][0], 0, "", "<cell [1]>", kinds[c][1], float(i), None)
        for i, c in enumerate(calls, 1)
    ]


def said(*calls: str, ever: bool = True) -> str:
    """Of ranks of which each stands in its last call."""
    recorded = {rank: entries(text) for rank, text in enumerate(calls)}
    stand = {rank: call_of(told[-1]) for rank, told in recorded.items()}
    absent = {c: [r for r in stand if stand[r] != c] for c in set(stand.values())}
    return missed(stand, absent, recorded, ever=ever)


def test_one_rank_leaves_a_loop_early() -> None:
    expected = "rank 1 called allreduce at cell [1] line 2 at least once less than rank 0: "
    assert said("sssss", "ssssb").startswith(expected)
    assert said("ssssb", "sssss").startswith(
        "rank 0 called allreduce at cell [1] line 2 at least once less than rank 1: "
    )


def test_the_same_in_a_later_lap_of_an_outer_loop() -> None:
    """Both lines were reached before, and each rank seems to lack a call of the other's."""
    expected = "rank 1 called allreduce at cell [1] line 2 at least once less than rank 0: "
    assert said("sssbsss", "sssbssb").startswith(expected)
    assert said("sssbsss", "sssbsss", "sssbssb").startswith("rank 2 called allreduce")


def test_a_trainer_whose_calls_are_all_at_one_line() -> None:
    assert said("mmm", "mme").startswith("rank 1 called average_gradients at cell [1] line 9 at")
    assert said("mmmemmm", "mmmemme").startswith("rank 1 called average_gradients")


def test_who_skips_one_of_two_alternating_calls() -> None:
    assert said("sbsbs", "sbsbb").startswith("rank 1 called allreduce")
    assert said("sbsbss", "sbsbsb").startswith("rank 0 called barrier")


def test_what_is_not_clear_is_not_said() -> None:
    assert said("s", "b") == ""
    assert said("ss", "sb").startswith("rank 1 called allreduce")
    assert missed({0: SUM}, {SUM: [1]}, {0: entries("ss"), 1: None}, ever=False) == ""
    assert missed({0: SUM}, {SUM: [1]}, {0: entries("s"), 1: entries("b")}, ever=True) == ""
    assert missed({0: SUM}, {SUM: [1]}, {0: entries("s"), 1: entries("b")}, ever=False) == (
        "rank 1 did not call allreduce at cell [1] line 2: all ranks must"
    )
