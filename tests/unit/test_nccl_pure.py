"""What ranks tell each other before NCCL, NCCL's numbers, and the thread that calls it."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest

from nbmn.communicators import recordings
from nbmn.communicators.carriers import on_host, plan
from nbmn.communicators.nccl_carrier import by_nccl
from nbmn.communicators.parameters import Entry, union
from nbmn.communicators.peers import left
from nbmn.communicators.recordings import Entry as Recorded
from nbmn.communicators.waiting import wait
from nbmn.gpu.identity import Identity, odd_ones, reason_to_stage
from nbmn.gpu.launcher import Launcher, aside
from nbmn.gpu.nccl import kind_of, version_text
from nbmn.gpu.runtime import DRIVER, this_gpu


def identity(uuid, nccl=22707, runtime="CuPy 14.2.0", problem=None, host="here", bus_id=""):
    return Identity(host, uuid, nccl, runtime, problem, bus_id)


def test_ranks_that_are_alike():
    ranks = [identity("a", bus_id="7"), identity("b"), identity("c", host="there", bus_id="7")]
    assert odd_ones(ranks) is None
    assert reason_to_stage(ranks) is None


def test_odd_rank_is_named():
    ranks = [identity("a"), identity("b", nccl=22602), identity("c")]
    assert odd_ones(ranks) == (
        "the NCCL is not the same on all ranks: rank 1 has 2.26.2; ranks 0, 2 have 2.27.7"
    )
    ranks = [identity(str(n), runtime=f"CuPy {14 - (n > 1)}") for n in range(3)]
    assert odd_ones(ranks).endswith("rank 2 has CuPy 13; ranks 0, 1 have CuPy 14")


def test_reasons_to_stage():
    ranks = [identity("a"), identity("b"), identity("b"), identity("b")]
    assert reason_to_stage(ranks) == "ranks 1, 2, 3 are on one GPU, and NCCL takes one rank on each"
    ranks[2] = identity("", problem="there is no GPU")
    assert reason_to_stage(ranks) == "rank 2: there is no GPU"


def test_whose_gpu_is_one():
    one = "ranks 0, 2 are on one GPU, and NCCL takes one rank on each"
    other = identity("b", bus_id="0000:08:00.0")
    # Containers of one machine, by other names, which may count buses in their own way.
    there = identity("a", host="there", bus_id="0000:01:00.0")
    assert reason_to_stage([identity("a", bus_id="0000:07:00.0"), other, there]) == one
    # Parts of a GPU (MIG).
    part, next_part = (identity(uuid, bus_id="0000:07:00.0") for uuid in "ac")
    assert reason_to_stage([part, other, next_part]) == one
    # Drivers that do not tell UUIDs.
    unknown = [identity("", bus_id=f"0000:0{n}:00.0") for n in (7, 8, 9)]
    assert reason_to_stage(unknown) is None
    assert reason_to_stage([*unknown[:2], unknown[0]]) == one


def test_numbers_of_dtypes():
    given = {name: kind_of(np.dtype(name)) for name in ("int8", "uint64", "float16", "complex128")}
    assert given == {"int8": (0, 1), "uint64": (5, 1), "float16": (6, 1), "complex128": (8, 2)}
    for name in ("int16", "bool", "float128", "S3"):
        with pytest.raises(TypeError, match="NCCL"):
            kind_of(np.dtype(name))
    assert (version_text(22707), version_text(2804)) == ("2.27.7", "2.8.4")


def test_dtypes_in_which_values_travel():
    half, single = np.dtype("f2"), np.dtype("f4")
    assert (by_nccl(half, None), by_nccl(single, half)) == (single, half)
    assert (on_host(half, None), on_host(single, half)) == (single, single)
    assert by_nccl(np.dtype("i2"), None) == np.dtype("i4")
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    assert by_nccl(single, np.dtype(bfloat16)) == bfloat16
    assert on_host(single, np.dtype(bfloat16)) == single


def test_plans_are_aligned():
    table = tuple(Entry(str(n), (n,), "<f4", True, True) for n in (3, 4, 1))
    (packing,) = plan(by_nccl, table, "float16")
    assert packing.dtype == np.float16
    assert [(span.begin, span.end) for span in packing.spans] == [(0, 3), (8, 12), (16, 17)]
    (packing,) = plan(on_host, table, None)
    assert [span.begin for span in packing.spans] == [0, 4, 8]


def test_where_ranks_differ_in_place_it_is_the_host():
    here, there = Entry("w", (3,), "<f4", True, True), Entry("w", (3,), "<f4", False, False)
    assert union([(here,), (there,)]) == (Entry("w", (3,), "<f4", True, False),)
    assert union([(here,), (here,)])[0].on_device


def test_driver_by_name(monkeypatch):
    for name, kind in [("cupy", "CupyNccl"), ("nccl4py", "NvidiaNccl")]:
        monkeypatch.setenv(DRIVER, name)
        this_gpu.cache_clear()
        assert type(this_gpu().nccl).__name__ == kind
    monkeypatch.setenv(DRIVER, "rccl")
    this_gpu.cache_clear()
    with pytest.raises(ValueError, match="cupy, nccl4py, not 'rccl'"):
        this_gpu()
    this_gpu.cache_clear()


def test_importing_loads_no_cupy():
    text = (
        "import sys, nbmn.communicators.factory\n"
        "from nbmn.gpu.runtime import this_gpu; this_gpu()\n"
        "assert not {'cupy', 'nccl', 'ml_dtypes'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=60)


def test_calls_are_made_in_order_on_one_thread():
    launcher, seen = Launcher("test"), []
    tasks = [
        launcher.submit(lambda n=n: seen.append((n, threading.current_thread().name)) or n)
        for n in range(5)
    ]
    assert all(task.done(5.0) for task in tasks)
    assert [task.result() for task in tasks] == list(range(5))
    assert seen == [(n, "test") for n in range(5)]
    launcher.close()


def test_who_waits_for_a_task_is_woken_when_it_is_over():
    late = []
    for _ in range(9):
        ends = []

        def call(ends=ends):
            threading.Event().wait(0.1)
            ends.append(time.monotonic())

        task = aside(call, "test")
        wait(task.done, 5.0, nap=task.done)
        late.append(time.monotonic() - ends[0])
    # Sleeps in between would be of 6 ms by then.
    assert sorted(late)[4] < 1e-3, late


def test_errors_are_raised_in_who_asks():
    launcher = Launcher("test")
    failed = launcher.submit(lambda: 1 // 0)
    assert failed.done(5.0)
    with pytest.raises(ZeroDivisionError):
        failed.result()
    after = launcher.submit(lambda: "goes on")
    assert after.done(5.0)
    assert after.result() == "goes on"


def test_stuck_call_is_left_behind():
    text = (
        "import threading\nfrom nbmn.gpu.launcher import Launcher, aside\n"
        "task = Launcher('stuck').submit(threading.Event().wait)\n"
        "other = aside(threading.Event().wait, 'stuck too')\n"
        "assert not task.done(0.1) and not other.done()\n"
    )
    subprocess.run([sys.executable, "-c", text], check=True, timeout=20)


def test_what_a_call_refers_to_is_let_go():
    class Thing:
        def call(self):
            return 1

    thing = Thing()
    seen = weakref.ref(thing)
    task = aside(thing.call, "test")
    assert task.done(5.0)
    del thing
    gc.collect()
    assert seen() is None


def recorded(number, end=None, link=7):
    return Recorded(1, link, number, "multi_node_mean_grad", 0, "", "", 0, 10.0, end)


@pytest.mark.parametrize(
    ("told", "is_left"),
    [
        ([recorded(3)], False),
        ([recorded(3, end=19.0)], False),  # it may have been faster
        ([recorded(3, end=14.0)], True),
        ([recorded(3, end=14.0), recorded(4)], True),
        ([recorded(2, end=11.0)], False),
        ([recorded(3, end=15.0, link=8)], False),
        ([], False),
    ],
)
def test_who_has_left_a_collective(told, is_left):
    assert left(recorded(3), told, 20.0) is is_left


def test_processes_that_record_and_are_alive(tmp_path):
    own = recordings.own_path(tmp_path)
    assert recordings.is_alive(own)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    names = own.name.split("-")
    dead = "-".join([*names[:-2], str(ended.pid), names[-1]])
    assert not recordings.is_alive(tmp_path / dead)
    other = "-".join([*names[:-2], str(os.getpid()), "1"])  # an earlier one with this id
    assert not recordings.is_alive(tmp_path / other)
    assert recordings.is_alive(tmp_path / "nothing of ours")
