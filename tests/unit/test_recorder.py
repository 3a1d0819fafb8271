import contextlib
import os
import subprocess
import sys
import threading
import time
import timeit
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from nbmn.communicators.activity import collective
from nbmn.communicators.peers import circle, missing, unanswered
from nbmn.communicators.recorder import Recorder
from nbmn.communicators.recordings import (
    CAPACITY,
    STRINGS,
    Entry,
    make_file,
    own_path,
    read_recorder,
    reap,
)


class Talks:
    def __init__(self, folder):
        self.track = Recorder(0, folder)
        self.inside = threading.Event()
        self.leave = threading.Event()

    @collective
    def outer(self, x=None):
        return self.inner()

    @collective
    def inner(self):
        self.inside.set()
        assert self.leave.wait(10)
        return "done"

    @collective
    def fail(self):
        raise KeyError

    @collective
    def allreduce(self, x):
        return x

    @collective
    def send(self, data, dest, tag=0):
        pass

    @collective
    def recv_obj(self, source, status=None, tag=None):
        pass

    @collective
    def agree(self, operation, statement=None):
        pass

    def bare(self, x):
        return x


def test_activity_names_the_outermost_operation_and_the_users_line(tmp_path):
    talks = Talks(tmp_path)
    assert talks.track.snapshot() is None
    before = time.monotonic()
    line = sys._getframe().f_lineno + 1
    thread = threading.Thread(target=lambda: talks.outer(np.ones(3)))
    thread.start()
    assert talks.inside.wait(10)
    activity = talks.track.snapshot()
    (entry,) = read_recorder(talks.track.path)
    talks.leave.set()
    thread.join()
    assert (activity.operation, activity.file, activity.line) == ("outer", __file__, line)
    assert before <= activity.since <= time.monotonic()
    assert talks.track.snapshot() is None
    assert entry == Entry(1, 0, 0, "outer", 24, "float64", __file__, line, activity.since, None)
    (entry,) = talks.track.entries()
    assert activity.since < entry.end <= time.monotonic()


def test_activity_ends_with_an_error(tmp_path):
    talks = Talks(tmp_path)
    with pytest.raises(KeyError):
        talks.fail()
    assert talks.track.snapshot() is None
    assert talks.track.busy is False


def test_ring_keeps_the_newest(tmp_path):
    talks = Talks(tmp_path)
    for size in range(CAPACITY + 10):
        talks.allreduce(np.empty(size, np.float16))
    entries = read_recorder(talks.track.path)
    assert [entry.sequence for entry in entries] == list(range(11, CAPACITY + 11))
    assert [entry.nbytes for entry in entries] == [2 * n for n in range(10, CAPACITY + 10)]
    assert {entry.dtype for entry in entries} == {"float16"}
    assert entries == talks.track.entries()


def test_more_files_than_the_table_holds(tmp_path):
    talks = Talks(tmp_path)
    for number in range(STRINGS // 50):
        name = f"/a/rather/long/name/of/some/notebook/cell/number_{number}.py"
        exec(compile("talks.allreduce(1)", name, "exec"), {"talks": talks})
        assert talks.track.entries()[-1].file == name


def test_another_process_reads_it_and_nothing_is_left(tmp_path):
    script = (
        "import os, sys, time\n"
        "from nbmn.communicators.recorder import Recorder\n"
        f"recorder = Recorder(3, {str(tmp_path)!r})\n"
        "recorder.begin('bcast', None, None, sys._getframe(), counts=True)\n"
        "print(recorder.path, flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        path = process.stdout.readline().strip()
        (entry,) = read_recorder(path)
        assert (entry.operation, entry.file, entry.line, entry.end) == (
            "bcast",
            "<string>",
            4,
            None,
        )
        process.communicate("\n", timeout=30)
    assert not os.path.exists(path)


def test_recordings_of_the_dead_are_removed(tmp_path):
    script = (
        "import os, signal\n"
        "from nbmn.communicators.recorder import Recorder\n"
        f"Recorder(3, {str(tmp_path)!r})\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script], timeout=60, check=False)
    (left,) = tmp_path.iterdir()
    mine = Recorder(0, tmp_path)
    assert not left.exists()
    assert list(tmp_path.iterdir()) == [mine.path]
    reap(tmp_path)
    assert mine.path.exists()
    mine.close()


def test_found_by_process_id():
    recorder = Recorder(0)
    assert recorder.path == own_path()
    assert read_recorder(os.getpid()) == ()
    recorder.close()
    with pytest.raises(FileNotFoundError, match="records nothing"):
        read_recorder(os.getpid())


def test_another_container_s_process_with_this_id_is_not_mistaken_for_it():
    mine = own_path()
    namespace, pid, started = mine.name.removeprefix("nbmn-recorder-").split("-")
    for name in (f"{int(namespace) + 1}-{pid}-{started}", f"{namespace}-{pid}-{int(started) + 1}"):
        strange = mine.with_name(f"nbmn-recorder-{name}")
        make_file(strange)
        try:
            with pytest.raises(FileNotFoundError, match="records nothing"):
                read_recorder(os.getpid())
        finally:
            strange.unlink()


def test_not_a_recording(tmp_path):
    (tmp_path / "x").write_bytes(bytes(10))
    with pytest.raises(ValueError, match="no recording"):
        read_recorder(tmp_path / "x")


def test_without_room_only_this_process_can_read_it(tmp_path):
    recorder = Recorder(0, tmp_path / "no such folder")
    assert recorder.path is None
    recorder.begin("bcast", None, None, sys._getframe(), counts=True)
    assert recorder.snapshot().operation == "bcast"
    recorder.close()


def test_recording_is_cheap(tmp_path):
    talks = Talks(tmp_path)
    x = np.ones(3)

    def seconds(call):
        # The best of many short stretches: some fall where nothing else runs.
        return min(timeit.repeat(lambda: call(x), number=500, repeat=100)) / 500

    assert seconds(talks.allreduce) - seconds(talks.bare) < 4e-6  # 1.2 µs where idle


def entry(number, operation="allreduce", link=7, end=None):
    return Entry(number, link, number, operation, 0, "", "/home/me/train.py", 12, 1.0, end)


def test_missing_names_ranks_and_where_they_are():
    told = {
        1: [entry(40), entry(41)],
        2: [entry(40, "bcast")],
        3: [entry(40, end=3.0)],
        4: [entry(40, "bcast")],
        5: None,
        6: [],
    }
    assert missing(entry(41), told, 5.0) == (
        "ranks 2, 3, 4, 6 have not come to allreduce #41 "
        "(ranks 2, 4 at bcast #40 (train.py, line 12) since 4 s; "
        "rank 3 outside since 2 s, the last was allreduce #40 (train.py, line 12); "
        "rank 6 at no collective yet); rank 5 does not answer (it computes, or is gone)"
    )
    assert missing(entry(41), {1: [entry(41)]}, 5.0) == "all others have come to allreduce #41"
    # A higher number on another communicator says nothing.
    assert "rank 1 has not come" in missing(entry(41), {1: [entry(50, link=8)]}, 5.0)


def test_people_count_the_collectives_of_a_cell(tmp_path):
    talks = Talks(tmp_path)
    ledger = SimpleNamespace(recorded=40, earlier=38, code=7, traffic=0, open=(), steps=0)
    talks._link = SimpleNamespace(ledger=ledger, verify=False)
    talks.allreduce(np.ones(3))
    (mine,) = read_recorder(talks.track.path)
    assert (mine.number, mine.nth, mine.name) == (41, 3, "allreduce #3")
    behind = replace(entry(40, "bcast"), earlier=38)
    assert missing(mine, {1: [behind]}, 5.0) == (
        "rank 1 has not come to allreduce #3 (rank 1 at bcast #2 (train.py, line 12) since 4 s)"
    )


def test_messages_are_recorded_with_their_other_end(tmp_path):
    talks = Talks(tmp_path)
    x = np.ones(2)
    talks.send(x, 3)
    talks.send(x, dest=np.int64(0), tag=7)
    talks.recv_obj(2)
    talks.recv_obj(-2, tag=-1)  # any
    talks.send(x, "nobody")
    talks.allreduce(x)
    entries = read_recorder(talks.track.path)
    assert [(e.peer, e.tag) for e in entries] == [
        (3, 0),
        (0, 7),
        (2, None),
        (None, None),
        (None, 0),
        (None, None),
    ]
    assert [str(e).partition(" (")[0] for e in entries[:3]] == [
        "send to rank 3",
        "send to rank 0 with tag 7",
        "recv_obj from rank 2",
    ]


def message(operation, peer, tag=0, line=12, end=None):
    return Entry(1, 7, 0, operation, 0, "", "/home/me/train.py", line, 1.0, end, peer, tag)


def test_unanswered_shows_both_ends_of_a_message():
    mine = message("recv", 1)
    assert unanswered(mine, 0, [message("recv", 0, line=30)], 5.0) == (
        "rank 0 is at recv from rank 1 (train.py, line 12), "
        "rank 1 at recv from rank 0 (train.py, line 30) since 4 s"
    )
    assert unanswered(mine, 0, [message("send", 0, line=30, end=3.0)], 5.0) == (
        "rank 0 is at recv from rank 1 (train.py, line 12), "
        "rank 1 outside since 2 s, the last was send to rank 0 (train.py, line 30)"
    )
    assert unanswered(mine, 0, None, 5.0).endswith(
        "rank 1 does not answer (it computes, or is gone)"
    )


def test_circle_finds_ranks_that_wait_for_each_other():
    def found(mine, others, calls=9, now=5.0):
        return circle(mine, 0, calls, lambda rank: [others[rank]] if rank in others else None, now)

    recv = message("recv", 1)
    assert found(recv, {1: message("recv", 0, line=30)}) == (
        "waits for ever, because ranks wait for each other: "
        "rank 0 at recv from rank 1 (train.py, line 12), "
        "rank 1 at recv from rank 0 (train.py, line 30); "
        "what one sends the other must receive, in the same order"
    )
    assert found(message("send", 1), {1: message("send", 0)})
    assert found(recv, {1: message("send", 0, tag=1)})
    assert found(recv, {1: message("recv_obj", 2, None), 2: message("send", 0)})
    assert found(recv, {1: entry(10)})  # a collective that this rank has not come to
    for others in (
        {1: message("send", 0)},
        {1: message("recv", 0, end=3.0)},
        {1: message("recv", 2)},  # of another host
        {1: message("recv", None)},  # from any
        {1: message("recv", 2), 2: message("recv", 1)},  # theirs to report
        {1: entry(9)},
        {},
    ):
        assert found(recv, others) is None
    assert found(recv, {1: message("recv", 0)}, now=1.4) is None
    assert found(entry(9), {1: message("recv", 0)}) is None
    assert found(message("recv_obj", 1, None), {1: message("send_obj", 0, 3)}) is None


def test_threads_are_recorded_each_by_itself(tmp_path):
    talks = Talks(tmp_path)
    thread = threading.Thread(target=talks.outer)
    thread.start()
    assert talks.inside.wait(10)
    assert not talks.track.busy
    talks.allreduce(np.ones(2))
    assert talks.track.last().operation == "allreduce"
    assert talks.track.last().end is not None
    theirs = talks.track.last(thread.ident)
    assert (theirs.operation, theirs.end) == ("outer", None)
    for _ in range(CAPACITY - 2):
        talks.allreduce(np.ones(2))
    assert talks.track.last(thread.ident) == theirs
    talks.allreduce(np.ones(2))
    assert talks.track.last(thread.ident) is None  # another has its place
    talks.leave.set()
    thread.join()
    assert {entry.operation for entry in talks.track.entries()} == {"allreduce"}


def placed(talks, file, code="talks.allreduce(1)", module="__main__", **names):
    names = {"talks": talks, "__name__": module, **names}
    exec(compile(code, file, "exec"), names)
    last = talks.track.last()
    return last.file, last.line


def test_the_line_is_the_user_s_and_not_a_library_s(tmp_path):
    talks = Talks(tmp_path)
    installed = "/somewhere/lib/python3/site-packages/lib.py"
    here = "\n\ntalks.allreduce(1)"
    assert placed(talks, "<cell [3]>", here) == ("<cell [3]>", 3)
    assert placed(talks, "/home/me/train.py", here) == ("/home/me/train.py", 3)

    def calls(file, **more):
        """A cell that has a file call."""
        names = {"talks": talks, "__name__": "m", **more}
        exec(compile("def call(): talks.allreduce(1)", file, "exec"), names)
        return placed(talks, "<cell [3]>", "\ncall()", call=names["call"])

    for foreign in (installed, "<timed exec>", "<string>", contextlib.__file__):
        assert calls(foreign) == ("<cell [3]>", 2), foreign
    assert calls("/home/me/chainer/x.py", __name__="chainer.x") == ("<cell [3]>", 2)
    assert calls("/home/me/train.py") == ("/home/me/train.py", 1)

    def push(stack):
        stack.callback(talks.allreduce, 1)

    with_stack = "\nwith contextlib.ExitStack() as stack:\n    push(stack)\n"
    told = placed(talks, "<cell [4]>", with_stack, contextlib=contextlib, push=push)
    assert told == ("<cell [4]>", 2)
    thread = threading.Thread(target=talks.allreduce, args=(1,))
    thread.start()
    thread.join()
    assert (talks.track.entries()[-1].file, talks.track.entries()[-1].line) == ("", 0)


def test_a_step_of_something_larger_has_its_name(tmp_path):
    talks = Talks(tmp_path)
    talks.agree("next of a multi-node iterator")
    assert talks.track.last().operation == "next of a multi-node iterator"
