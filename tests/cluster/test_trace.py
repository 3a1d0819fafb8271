"""%mn_trace on real ranks: what they did, who is late, and at which line."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest
from notebook_kernel import Notebook

MAKE = """
import chainer.functions as F, chainer.links as L
from chainer import training
from nbmn.debug import faults
from nbmn.phases import phase
def make_trainer(iterations, slow=()):
    x = np.random.RandomState(0).rand(256, 8).astype("f")
    y = (x.sum(axis=1) > 4).astype("i")
    data = chainer.datasets.TupleDataset(x, y)
    iterator = chainer.iterators.SerialIterator(data, 16)
    for rank, seconds in slow:
        iterator = faults.inject(iterator, faults.slowing(rank, seconds))
    model = L.Classifier(L.Linear(8, 2))
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm).setup(model)
    updater = training.StandardUpdater(iterator, optimizer)
    return training.Trainer(updater, (iterations, "iteration"), out=out)
"""


@pytest.fixture
def ready(two: Notebook, tmp_path: Path) -> Notebook:
    two.check(f"%%mn\nout = {str(tmp_path)!r}\n{MAKE}")
    return two


def _table(text: str) -> dict[str, dict[str, float]]:
    """Shares in percent, by rank and phase."""
    lines = text.splitlines()
    head = next(i for i, line in enumerate(lines) if line.strip().startswith("rank  "))
    kinds = lines[head].split()[1:]
    rows = [line.split() for line in lines[head + 1 :]]
    return {
        rank: {k: float(c.rstrip("%")) for k, c in zip(kinds, cells, strict=True) if c != "–"}
        for rank, *cells in rows
    }


def test_a_trainer_with_a_rank_that_loads_data_slowly(ready: Notebook) -> None:
    ready.check("%mn trainer = make_trainer(12, [(1, 0.03)])")
    ready.check("%mn_train trainer")
    ran = ready.check("%mn_trace 5")
    assert "ranks 0, 1: 5 steps, " in ran.text
    late = re.search(
        r"rank (\d) is late: the other waits for it (\d+)% of the time; (.*)", ran.text
    )
    assert late[1] == "1"
    assert int(late[2]) > 40
    assert re.match(r"its data \(cell \[\d+\] line \d+\) takes \d+\.?\d* ms a step", late[3])
    shares = _table(ran.text)
    assert shares["1"]["data"] > 40
    assert shares["0"]["waiting"] > 40
    assert shares["0"].keys() >= {"data", "forward", "backward", "communication", "update"}
    for rank in ("0", "1"):
        assert 75 < sum(shares[rank].values()) <= 100.5
    (bundle,) = [d for d in ran.displays.values() if "text/html" in d]
    assert set(bundle) == {"text/html", "text/plain"}
    assert "data-nbmn-timeline" in bundle["text/html"]


def test_phases_of_a_loop_of_ones_own(ready: Notebook) -> None:
    ready.check(
        """%%mn
import time
for step in range(4):
    with phase("augmentation"):
        time.sleep(0.02)
    with phase("data"):
        total = comm.allreduce(np.ones(1000))
    with phase("update"):
        time.sleep(0.02)
"""
    )
    text = ready.check("%mn_trace 3 --ranks 0").text
    assert "rank 0: 3 steps, " in text
    shares = _table(text)["0"]
    assert 25 < shares["augmentation"] < 60
    assert 25 < shares["update"] < 60
    assert "is late" not in text


def test_ranks_that_train_and_ranks_that_are_stuck(ready: Notebook) -> None:
    ready.check("%mn trainer = make_trainer(100_000)")
    ready.check("import time\nrun = get_ipython().run_line_magic('mn_train', '--bg')")
    assert "3 steps" in ready.check("time.sleep(1)\n%mn_trace 3").text
    assert ready.value("run.done()") is False
    ready.check("run.interrupt()\nrun._ended.wait(10)")
    ready.check(
        "%%mn --bg\nwith phase('data'):\n"
        "    if comm.rank == 0: comm.allreduce(np.ones(1))\n"
        "    else: time.sleep(2); comm.allreduce(np.ones(1))"
    )
    ran = ready.check("time.sleep(0.5)\n%mn_trace 1")
    shares = _table(ran.text)
    assert shares["0"]["waiting"] > shares["0"].get("data", 0)
    assert shares["1"]["data"] > shares["1"].get("waiting", 0)
    ready.check("%mn comm.barrier()")


LOOP = """%%mn
for i in range(6):
    with nbmn.phase("data"): time.sleep(0.05 if comm.rank == 0 else 0.01)
    comm.allreduce(np.ones(2))
"""


def test_a_loop_without_steps_is_the_last_cell_and_nothing_of_earlier_ones(two: Notebook) -> None:
    two.check("%%mn\nimport time\nif comm.rank == 1: time.sleep(1)\ncomm.allreduce(np.ones(3))")
    assert "rank 1 is late" in two.check("%mn_trace").text
    cell = two.next_cell()
    two.check(LOOP)
    two.check("%mn 1 + 1")
    two.check("%mn_diff np.arange(comm.rank + 5)")
    text = two.check("%mn_trace 3").text
    whole, late = re.search(
        r"ranks 0, 1: (\d+) ms\nno steps marked: showing the last cell.*\n(rank 0 is late: .*)",
        text,
    ).groups()
    assert 300 < int(whole) < 900
    data = re.search(rf"its data \({re.escape(cell)} line 3\) takes (\d+) ms, elsewhere", late)
    assert 300 < int(data[1]) < 600
    assert "rank 1 is late" not in text


def test_a_report_ends_a_step_of_a_loop_of_ones_own(two: Notebook) -> None:
    two.check("%mn import time")
    two.check(f"{LOOP}    nbmn.report(loss=1 / (i + 1))\n")
    text = two.check("%mn_trace 3").text
    assert "ranks 0, 1: 3 steps, " in text
    assert "no steps marked" not in text
    data = re.search(r"rank 0 is late: .*its data .* takes (\d+\.?\d*) ms a step, else", text)
    assert 49 < float(data[1]) < 90


def test_who_is_waited_for_before_and_after_a_stop(two: Notebook, tmp_path: Path) -> None:
    """Nothing is marked, and the one that sleeps never comes to the third allreduce."""
    asleep = tmp_path / "asleep"
    loop = (
        "import time\nfrom pathlib import Path\n"
        "for step in range(1, 6):\n"
        "    if comm.rank == 1 and step == 3:\n"
        f"        Path({str(asleep)!r}).touch(); time.sleep(60)\n"
        "    comm.allreduce(np.ones(1))"
    )
    began: list[float] = []

    def a_second_later() -> bool:
        if asleep.exists() and not began:
            began.append(time.monotonic())
        return bool(began) and time.monotonic() > began[0] + 1

    ran = two.run(f"%%mn\n{loop}", interrupt_when=a_second_later)
    assert ran.error_name == "RanksInterrupted"
    two.check("%mn 1 + 1")
    two.check(f"%%mn --bg -o run\n{loop}")
    two.check("import time\ntime.sleep(1.5)")
    for text in (two.check("%mn_trace").text, two.check("run.interrupt()\n%mn_trace").text):
        assert "rank 1 is late: the other waits for it" in text
        shares = _table(text)
        assert shares["0"]["waiting"] > 80
        assert shares["0"].get("communication", 0) < 20
        assert float(re.search(r"ranks 0, 1: (\d+\.?\d*) s", text)[1]) < 10
    two.check("run._ended.wait(10)")
    two.check("%mn comm.barrier()")


def test_nothing_to_show(ready: Notebook) -> None:
    ran = ready.run("%mn_trace 0")
    assert "at least one step" in ran.streams["stderr"]
    assert "rank 9" in ready.run("%mn_trace --ranks 9").error
