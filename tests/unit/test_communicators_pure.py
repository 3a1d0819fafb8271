import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from nbmn.communicators.activity import ActivityTrack, collective
from nbmn.communicators.agreement import digest
from nbmn.communicators.errors import CollectiveTimeoutError, MismatchError
from nbmn.communicators.link import Uid
from nbmn.communicators.parameters import Entry, check_together, known_somewhere, union
from nbmn.communicators.renewal import LinkReport, checksum, make_plan
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


class Talks:
    def __init__(self):
        self.track = ActivityTrack()
        self.inside = threading.Event()
        self.leave = threading.Event()

    @collective
    def outer(self):
        return self.inner()

    @collective
    def inner(self):
        self.inside.set()
        assert self.leave.wait(10)
        return "done"


def test_activity_names_the_outermost_operation_and_the_users_line():
    talks = Talks()
    assert talks.track.snapshot() is None
    before = time.monotonic()
    line = sys._getframe().f_lineno + 1
    thread = threading.Thread(target=lambda: talks.outer())
    thread.start()
    assert talks.inside.wait(10)
    activity = talks.track.snapshot()
    talks.leave.set()
    thread.join()
    assert activity.operation == "outer"
    # The methods of this test stand outside nbmn, so the innermost of them is "the user".
    assert activity.file == __file__
    assert activity.line >= line - 20
    assert before <= activity.since <= time.monotonic()
    assert talks.track.snapshot() is None


def test_activity_ends_with_an_error():
    class Fails:
        track = ActivityTrack()

        @collective
        def fail(self):
            raise KeyError

    with pytest.raises(KeyError):
        Fails().fail()
    assert Fails.track.snapshot() is None


def test_recording_is_cheap():
    class Free:
        track = ActivityTrack()

        @collective
        def recorded(self):
            pass

        def bare(self):
            pass

    free = Free()

    def seconds(call):
        begin = time.perf_counter()
        for _ in range(20_000):
            call()
        return (time.perf_counter() - begin) / 20_000

    cost = min(seconds(free.recorded) - seconds(free.bare) for _ in range(7))
    assert cost < 3e-6


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


A, B = Uid(0, 1), Uid(1, 1)


def report(uid=A, members=(0, 1), alive=True, **kind):
    return LinkReport(uid, members, alive, **kind)


def total(by_rank):
    return sum(checksum(reports, rank) for rank, reports in enumerate(by_rank)) % 2**64


def test_all_in_order():
    everything = [
        [report(sequence=5, messages=(((0, 1), 2),)), report(B, (1, 2, 0), sequence=7)],
        [report(sequence=5, messages=(((0, 1), -2),)), report(B, (1, 2, 0), sequence=7)],
        [report(B, (1, 2, 0), sequence=7)],
    ]
    assert total(everything) == 0
    plan = make_plan(everything)
    assert plan.renew == plan.free == ()
    assert plan.lose == {}


@pytest.mark.parametrize(
    ("change", "clean"),
    [
        ({"broken": "was bent", "sequence": 5}, True),
        ({"broken": "was left", "sequence": 5, "abandoned": True}, False),
        ({"sequence": 6}, False),
        ({"sequence": 5, "messages": (((0, 1), 1),)}, False),
    ],
)
def test_out_of_step_is_renewed(change, clean):
    everything = [
        [report(**change), report(B, sequence=1)],
        [report(sequence=5), report(B, sequence=1)],
    ]
    if "broken" not in change:
        assert total(everything) != 0
    plan = make_plan(everything)
    assert plan.renew == (A,)
    assert plan.free == ((A,) if clean else ())


def test_held_by_some_only_is_lost():
    everything = [[report()], [report(alive=False)]]
    assert total(everything) != 0
    plan = make_plan(everything)
    assert plan.lose == {A: "is no longer held by rank 1"}
    assert plan.free == (A,)
    # Rank 1 never got it: nothing can be freed together.
    plan = make_plan([[report()], []])
    assert plan.lose == {A: "is no longer held by rank 1"}
    assert plan.free == ()


def test_held_by_nobody_is_freed():
    dead = [[report(alive=False, sequence=3)], [report(alive=False, sequence=3)]]
    plan = make_plan(dead)
    assert total(dead) == 0
    assert plan.free == (A,)
    assert plan.lose == {}


def test_held_by_nobody_with_a_message_on_its_way_is_not_freed():
    sent = (((0, 1), 1),)
    for kind in ({"messages": sent}, {"sequence": 1}):
        dead = [[report(alive=False, **kind)], [report(alive=False)]]
        assert make_plan(dead).free == ()
        assert total(dead) == 0  # and no reason to renew for ever


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
