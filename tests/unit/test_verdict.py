"""What a cell failed of."""

from __future__ import annotations

import re

from nbmn.cluster.errors import RanksFailed, RanksStuck
from nbmn.cluster.verdict import after_failures, verdict
from nbmn.debug.diagnosis import Diagnosis
from nbmn.debug.states import RankState
from nbmn.messages import CellError

WAITS = (RankState(0, "waiting", "cell [1] line 4", 1.25, "barrier"),)
LEFT = Diagnosis("left", (1,), WAITS, "rank 1 has finished the cell")
FREED = CellError("KeyboardInterrupt", "", "cell [1] line 4")
ROOT = CellError("ValueError", "bad", "cell [1] line 2")


def test_nothing_went_wrong() -> None:
    assert verdict({}) is None


def test_errors_without_a_wait() -> None:
    found = verdict({1: ROOT, 0: FREED}, note="a note")
    assert isinstance(found, RanksFailed)
    assert str(found) == (
        "rank 0 raised KeyboardInterrupt at cell [1] line 4\n"
        "rank 1 raised ValueError at cell [1] line 2: bad\na note"
    )


def test_a_cell_that_caught_the_interrupt_has_failed() -> None:
    for errors in ({}, {0: FREED}):
        found = verdict(errors, [0], LEFT)
        assert isinstance(found, RanksStuck)
        assert str(found) == LEFT.past()


def test_what_an_interrupt_became() -> None:
    later = CellError("RuntimeError", "stopped", "cell [1] line 6", after_interrupt=True)
    found = verdict({0: later}, [0], LEFT)
    assert isinstance(found, RanksStuck)
    assert str(found) == (
        f"{LEFT.past()}\nrank 0 then raised RuntimeError at cell [1] line 6: stopped"
    )


def test_the_error_that_a_finally_was_passing_on_comes_first() -> None:
    freed = CellError("KeyboardInterrupt", "", "cell [1] line 4", origin=ROOT)
    found = verdict({0: freed}, [0], LEFT)
    assert isinstance(found, RanksFailed)
    headline = (
        "rank 0 raised ValueError at cell [1] line 2: bad; "
        "then KeyboardInterrupt at cell [1] line 4"
    )
    assert str(found).splitlines()[0] == headline
    shown = re.sub(r"\x1b\[\d*m", "", found._render_traceback_()[0])
    assert shown == headline


def test_errors_of_other_ranks_count_more_than_those_of_the_freed() -> None:
    found = verdict({0: FREED, 1: ROOT}, [0], LEFT)
    assert isinstance(found, RanksFailed)
    assert [f.ranks for f in found.failures] == [(1,)]
    assert found.diagnosis is LEFT


def test_ranks_that_do_not_run_the_cell_since_they_failed_earlier() -> None:
    outside = Diagnosis("outside", (1,), WAITS, "rank 1 does not run this cell", "Run it on all")
    said = str(after_failures(outside, {1: ROOT, 2: FREED}))
    assert said.startswith(
        "rank 1 does not run this cell: in an earlier one rank 1 raised ValueError at "
        "cell [1] line 2: bad; rank 0 waits in barrier"
    )
    assert "Run it" not in said
    assert after_failures(outside, {2: ROOT}) is outside
    assert after_failures(LEFT, {1: ROOT}) is LEFT
