"""%mn_train and nbmn.report: records on the board, and what can go wrong."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from notebook_kernel import Notebook, Ran

BUILD = """
import chainer.functions as F, chainer.links as L
from chainer import training
def make_trainer(epochs=3, batch=16, unit="epoch"):
    rng = np.random.RandomState(0)
    x = rng.rand(128, 8).astype("f")
    y = (x.sum(axis=1) > 4).astype("i")
    data = chainer.datasets.TupleDataset(x, y) if comm.rank == 0 else None
    shard = nbmn.scatter_dataset(data, comm)
    model = L.Classifier(L.Linear(8, 2))
    optimizer = nbmn.create_multi_node_optimizer(chainer.optimizers.SGD(0.1), comm)
    optimizer.setup(model)
    iterator = chainer.iterators.SerialIterator(shard, batch, shuffle=True)
    updater = training.StandardUpdater(iterator, optimizer)
    return training.Trainer(updater, (epochs, unit), out=out)
"""

LISTEN = """
from nbmn.records import RunEnded, RunStarted, Step
session = get_ipython().magics_manager.registry["ClusterMagics"].context.session
heard = []
session.listener.subscribe(heard.extend)
def of(kind, rank): return [r for r in heard if isinstance(r, kind) and r.rank == rank]
"""


@pytest.fixture
def ready(two: Notebook, tmp_path: Path) -> Notebook:
    two.check(f"%%mn\nout = {str(tmp_path)!r}\n{BUILD}")
    two.check(LISTEN)
    return two


def _board(ran: Ran) -> str:
    """What the board leaves in the notebook, in words."""
    (board,) = [text for text in ran.text.splitlines() if "iteration" in text]
    return board


def test_a_trainer_of_that_name_runs_and_its_steps_arrive(ready: Notebook) -> None:
    ready.check("%mn trainer = make_trainer()")
    ran = ready.check("%mn_train trainer")
    for rank in (0, 1):
        # 128 samples on two ranks in batches of 16, three times.
        assert ready.value(f"[s.iteration for s in of(Step, {rank})]") == list(range(1, 13))
        assert ready.value(f"[s.samples for s in of(Step, {rank})]") == [16] * 12
        assert ready.value(f"[s.epoch for s in of(Step, {rank})][-1]") == 3.0
        assert ready.value(f"[(r.iterations, r.epochs) for r in of(RunStarted, {rank})]") == [
            (12, 3.0)
        ]
        assert ready.value(f"[r.status for r in of(RunEnded, {rank})]") == ["done"]
        assert ready.value(f"all(s.values['main/loss'] > 0 for s in of(Step, {rank}))")
    assert _board(ran).startswith("trainer: done, iteration 12 of 12, epoch 3.0 of 3")


def test_the_cell_magic_builds_it(ready: Notebook) -> None:
    ready.check("%%mn_train mine\nmine = make_trainer(5, unit='iteration')")
    assert ready.value("[s.iteration for s in of(Step, 1)]") == [1, 2, 3, 4, 5]
    assert ready.value("[r.iterations for r in of(RunStarted, 0)]") == [5]
    ready.check("%%mn_train\ntrainer = make_trainer(1)")


def test_the_steps_of_a_failed_run_are_kept(ready: Notebook) -> None:
    ready.check(
        "%%mn\ntrainer = make_trainer()\n"
        "def break_at_7(trainer):\n"
        "    if trainer.updater.iteration == 7 and comm.rank == 1: raise ValueError('broke')\n"
        "trainer.extend(break_at_7, trigger=(1, 'iteration'), priority=-100)"
    )
    ran = ready.run("%mn_train")
    assert not ran.ok
    assert "rank 1 raised ValueError at cell" in ran.error
    assert "broke" in ran.error
    assert "rank 0 waited" in ran.error
    assert "broke" in _board(ran)
    assert "trainer.py" not in ran.text  # told once
    assert ready.value("of(Step, 1)[-1].iteration") == 7
    assert ready.value("[r.status for r in of(RunEnded, 1)]") == ["failed"]
    ready.check("%%mn_train\ntrainer = make_trainer(1)")


@pytest.mark.parametrize(
    ("before", "line", "error"),
    [
        ("trainer = make_trainer(1)\ntrainer.run()", "trainer", "trainer has run already"),
        ("trainer = 3", "trainer", "trainer is a int on this rank, not a chainer.training.Trainer"),
        ("pass", "nobody", "there is no variable 'nobody' on this rank"),
    ],
)
def test_what_cannot_be_trained(ready: Notebook, before: str, line: str, error: str) -> None:
    ready.check(f"%%mn\n{before}")
    ran = ready.run(f"%mn_train {line}")
    assert not ran.ok
    (said,) = ran.error.splitlines()  # no line of nbmn's explains anything
    assert re.match(r"ranks 0, 1 raised TrainerError at cell \[\d+\] line 1: ", said)
    assert error in said


def test_a_name_that_is_nearly_right(ready: Notebook) -> None:
    ready.check("%%mn\ntrainer = make_trainer(1)")
    assert (
        "no variable 'trainr' on this rank; is it trainer?" in ready.run("%mn_train trainr").error
    )


def test_what_a_trainer_raises_is_at_the_line_of_the_magic_or_of_the_user(ready: Notebook) -> None:
    cell = ready.next_cell()
    ran = ready.run(
        "%%mn_train\ntrainer = make_trainer(1)\n"
        "def fail(trainer): raise ValueError('boom')\n"
        "trainer.extend(fail, trigger=(1, 'iteration'))"
    )
    assert f"ranks 0, 1 raised ValueError at {cell} line 3: boom" in ran.error
    assert "in train_named" not in ran.error  # its call may be among the lines around
    ran = ready.run("%%mn_train\ntrainer = make_trainer(1)\ntrainer.updater = None")
    assert re.search(r"raised AttributeError at cell \[\d+\] line 1: ", ran.error)


def test_a_trainer_runs_once(ready: Notebook) -> None:
    ready.check("%%mn_train\ntrainer = make_trainer(1)")
    ran = ready.run("%mn_train trainer")
    assert "has run already" in ran.error


def test_stop_while_training_then_a_new_trainer(ready: Notebook) -> None:
    ready.check("%mn trainer = make_trainer(1_000_000)")
    shown: list[bool] = []

    def board_is_there(ran: Ran) -> None:
        if "iteration" in ran.text:
            shown.append(True)

    ran = ready.run(
        "%mn_train", interrupt_when=lambda: bool(shown), on_message=board_is_there, seconds=30
    )
    assert ran.error_name == "RanksInterrupted"
    assert ready.value("[of(RunEnded, r)[0].status for r in (0, 1)]") == ["interrupted"] * 2
    assert ready.value("of(Step, 0)[-1].iteration") > 1
    ready.check("heard.clear()\n%mn trainer = make_trainer(2)\n%mn_train")
    assert ready.value("of(Step, 0)[-1].iteration") == 8


def test_training_in_the_background(ready: Notebook) -> None:
    ran = ready.check("%%mn_train --bg\ntrainer = make_trainer(2)")
    assert "<cell [" in ran.text
    ready.follow(ran, lambda ran: "trainer: done, iteration 8 of 8" in ran.text)
    assert ready.value("of(Step, 0)[-1].iteration") == 8


def test_report_from_a_plain_loop(ready: Notebook) -> None:
    ran = ready.check(
        """%%mn
for step in range(20):
    nbmn.report(loss=np.float32(1 / (step + 1)), accuracy=step / 20, samples=32, total=20)
"""
    )
    for rank in (0, 1):
        assert ready.value(f"[s.iteration for s in of(Step, {rank})]") == list(range(1, 21))
        assert ready.value(f"[s.samples for s in of(Step, {rank})]") == [32] * 20
        assert ready.value(f"[r.iterations for r in of(RunStarted, {rank})]") == [20]
        assert ready.value(f"of(Step, {rank})[1].values['loss']") == 0.5
    assert "done, iteration 20 of 20" in _board(ran)
    assert "accuracy 0.95" in _board(ran)


def test_report_of_odd_values(ready: Notebook) -> None:
    ready.check(
        """%%mn 0
buffer = np.zeros(())
for step in range(3):
    buffer[...] = step
    nbmn.report(loss=buffer, variable=chainer.Variable(np.array(2.5, "f")), none=None,
                epoch=step / 3, iteration=10 * step)
"""
    )
    steps = "[(s.iteration, s.values['loss'], s.values['variable']) for s in of(Step, 0)]"
    assert ready.value(steps) == [(0, 0.0, 2.5), (10, 1.0, 2.5), (20, 2.0, 2.5)]
    assert ready.value("[s.values['none'] != s.values['none'] for s in of(Step, 0)]") == [True] * 3
    ran = ready.run("%%mn\nnbmn.report(loss=1, samples='many')")
    assert "ranks 0, 1 raised ValueError at cell" in ran.error
    ready.check("%mn nbmn.report(loss=1)")
    assert ready.value("of(Step, 1)[-1].values") == {"loss": 1.0}


def test_what_extensions_print_keeps_its_place(two: Notebook) -> None:
    """Their default is Chainer's ``sys.stdout``, of a time before the rank had its own."""
    ran = two.check(
        """%%mn 0
import contextlib, inspect, io
from chainer.training import extensions
out = inspect.signature(extensions.PrintReport).parameters["out"].default
with contextlib.redirect_stdout(io.StringIO()) as caught:
    print("a row", file=out, flush=True)
print("caught", repr(caught.getvalue()))
for row in range(500):
    print("theirs", row, file=out, flush=True)
    print("mine", row)
"""
    )
    rows = "".join(f"theirs {row}\nmine {row}\n" for row in range(500))
    assert f"rank 0:\ncaught 'a row\\n'\n{rows}".strip() in ran.text
