import os
import subprocess
import sys
import time

import numpy as np
import pytest

from nbmn.communicators.agreement import digest
from nbmn.communicators.errors import CollectiveTimeoutError, MismatchError
from nbmn.communicators.parameters import Entry, check_together, known_somewhere, union
from nbmn.communicators.topology import Topology, locate
from nbmn.communicators.waiting import wait


def test_wait_returns_when_the_test_is_true():
    answers = iter([False] * 1000 + [True])
    wait(lambda: next(answers))
    assert next(answers, "consumed") == "consumed"


def test_wait_gives_up_at_the_deadline():
    begin = time.monotonic()
    with pytest.raises(CollectiveTimeoutError, match=r"0\.05 s for rank 3"):
        wait(lambda: False, 0.05, "rank 3")
    assert 0.05 <= time.monotonic() - begin < 1


def test_wait_leaves_the_core_to_others():
    begin, used = time.monotonic(), time.process_time()
    with pytest.raises(CollectiveTimeoutError):
        wait(lambda: False, 1.0)
    assert (time.process_time() - used) / (time.monotonic() - begin) < 0.25


def test_locate():
    hosts = ["x", "y", "x", "z", "y", "x"]
    assert locate(hosts, 0) == Topology(0, 3, 0, 3)
    assert locate(hosts, 5) == Topology(2, 3, 0, 3)
    assert locate(hosts, 4) == Topology(1, 2, 1, 3)
    assert locate(hosts, 3) == Topology(0, 1, 2, 3)


def test_digest_tells_statements_apart():
    assert digest(("a", 1)) == digest(("a", 1))
    assert len({digest(("a", i)) for i in range(1000)}) == 1000
    assert 0 <= digest("known") < 2**64


def test_digest_is_the_same_in_every_process():
    statement = ("op", ((2, 3), "<f4", True))
    script = f"from nbmn.communicators.agreement import digest; print(digest({statement!r}))"
    output = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONHASHSEED": "123"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert int(output.stdout) == digest(statement)


def entry(name, shape=(2,), dtype="<f4", present=True):
    return Entry(name, shape, dtype, present)


def test_tables_that_fit():
    mine = (entry("/a"), entry("/b", None, "", False))
    theirs = (entry("/a", present=False), entry("/b", (3,)))
    check_together([mine, theirs])
    assert known_somewhere([mine, theirs]) == (entry("/a"), entry("/b", (3,)))
    assert [e.present for e in union([theirs, mine])] == [True, True]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        ((entry("/c"),), "/a, /c"),
        ((entry("/a", (3,)),), r"\(2,\) float32; rank 1: \(3,\) float32"),
        ((entry("/a", (2,), np.dtype("f2").str),), "float16"),
    ],
)
def test_tables_that_do_not_fit(other, text):
    with pytest.raises(MismatchError, match=text):
        check_together([(entry("/a"),), other])
