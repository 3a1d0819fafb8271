"""Errors of ranks: folded, named."""

from __future__ import annotations

import re

from nbmn.cluster.errors import NoRanksError, RanksFailed, fold
from nbmn.debug.diagnosis import Diagnosis
from nbmn.debug.states import RankState
from nbmn.messages import CellError


def test_equal_errors_fold_and_others_do_not() -> None:
    one = CellError("ValueError", "bad", "cell [1] line 2", "trace of rank 0")
    same = CellError("ValueError", "bad", "cell [1] line 2", "trace of rank 2")
    elsewhere = CellError("ValueError", "bad", "cell [1] line 3")
    failures = fold({2: same, 1: elsewhere, 0: one})
    assert [(f.ranks, f.error) for f in failures] == [((0, 2), one), ((1,), elsewhere)]


def test_what_a_person_reads() -> None:
    failures = fold(
        {r: CellError("KeyError", "'x'", "cell [3] line 1", "the trace\n") for r in range(3)}
    )
    waits = (RankState(3, "waiting", "cell [3] line 4", 1.25, "barrier"),)
    error = RanksFailed(failures, Diagnosis("raised", (0, 1, 2), waits, "…"))
    freed = "rank 3 waited in barrier (cell [3] line 4) for 1.2 s, and nbmn freed it"
    assert str(error) == f"ranks 0–2 raised KeyError at cell [3] line 1: 'x'\n{freed}"
    assert error._render_traceback_()[0].startswith("ranks 0–2 raised \x1b[31mKeyError\x1b[0m at")
    lines = [re.sub(r"\x1b\[\d*m", "", line) for line in error._render_traceback_()]
    assert lines == [
        "ranks 0–2 raised KeyError at cell [3] line 1: 'x'",
        freed,
        "the trace",
        "\n%mn_debug 0 opens a debugger there",
    ]


def test_errors_without_message_or_place() -> None:
    assert str(RanksFailed(fold({1: CellError("Stop", "")}))) == "rank 1 raised Stop"
    assert "%mn_start" in str(NoRanksError())
