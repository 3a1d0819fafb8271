"""Ranks that ended a cell and left others waiting in the background."""

from __future__ import annotations

from nbmn.debug.averaging import uneven
from nbmn.messages import Averaged

ALL = (0, 1, 2)


def began(*counts: tuple[int, int], code: int = 7) -> dict[int, dict[int, Averaged]]:
    """Of each rank: in the cell, in all."""
    return {rank: {code: Averaged(ALL, *both)} for rank, both in enumerate(counts)}


def test_one_update_less() -> None:
    found = uneven(began((5, 5), (4, 4), (5, 5)))
    assert found is not None
    assert found.kind == "left"
    assert found.culprits == (1,)
    assert str(found) == (
        "rank 1 has finished the cell; ranks 0, 2 wait in the background for the mean of a "
        "further update. rank 1 called optimizer.update at least once less than ranks 0, 2: "
        "fewer iterations, or a branch not taken"
    )


def test_no_update_at_all() -> None:
    found = uneven(began((0, 0), (1, 1), (0, 0)))
    assert found is not None
    assert found.culprits == (0, 2)
    assert "ranks 0, 2 have finished the cell; rank 1 waits in the background" in str(found)
    assert "ranks 0, 2 did not call optimizer.update: all ranks must" in str(found)


def test_all_is_in_order() -> None:
    assert uneven({}) is None
    assert uneven({rank: {} for rank in ALL}) is None
    assert uneven(began((5, 5), (5, 5), (5, 5))) is None


def test_a_cell_that_has_nothing_to_do_with_it() -> None:
    assert uneven(began((0, 6), (0, 5), (0, 5))) is None


def test_a_cell_in_which_ranks_catch_up() -> None:
    assert uneven(began((0, 6), (1, 6), (1, 6))) is None
    assert uneven(began((0, 6), (1, 5), (1, 5))) is None


def test_ranks_that_are_not_in_the_cell_or_have_not_ended_it() -> None:
    told = began((1, 1), (0, 0), (0, 0))
    for rank in ALL:
        assert uneven({other: told[other] for other in ALL if other != rank}) is None


def test_a_rank_that_does_not_tell() -> None:
    assert uneven({**began((1, 1), (0, 0), (0, 0)), 2: {}}) is None


def test_each_communicator_counts_by_itself() -> None:
    even, odd = began((3, 3), (3, 3), (3, 3), code=1), began((2, 2), (3, 3), (3, 3), code=2)
    found = uneven({rank: {**even[rank], **odd[rank]} for rank in ALL})
    assert found is not None
    assert found.culprits == (0,)
