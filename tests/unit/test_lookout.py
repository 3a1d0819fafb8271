"""What a rank's reporter tells of the collective its main thread is in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nbmn.communicators import Entry
from nbmn.communicators.waiting import wait
from nbmn.engine.where import Lookout


def waits(link: int, number: int, peer: int | None = None) -> Any:
    entry = Entry(3, link, number, "x", 0, "", "<cell [1]>", 2, 1.0, None, peer)
    world = SimpleNamespace(
        recorder=SimpleNamespace(last=lambda: entry),
        links=lambda: [SimpleNamespace(code=7, members=(4, 2))],
        creation=lambda: (9, 2, (1, 3)),
    )
    lookout = Lookout(world)  # type: ignore[arg-type]
    told: list[Any] = []

    def arrived() -> bool:
        told.append(lookout.waits())
        return True

    wait(arrived)
    assert lookout.waits() is None  # it has all it needs, and reads it
    return told[0][3]


def test_ranks_are_told_as_those_of_the_world() -> None:
    assert (told := waits(7, 5)).members == (4, 2)
    assert (told.link, told.number, told.peer) == ("7", 5, None)
    assert waits(7, 0, peer=1).peer == 2


def test_a_rank_that_does_not_exist_is_no_error() -> None:
    assert waits(7, 0, peer=5).peer == 5


def test_while_a_communicator_is_made_only_its_ranks_take_part() -> None:
    told = waits(0, 0)
    assert (told.link, told.number, told.members) == ("9", 2, (1, 3))
