"""Examples in a notebook's ranks: nothing is changed, and the board is live."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebook_kernel import Notebook, Ran
from test_train import LISTEN

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(notebook: Notebook, example: str, folder: Path, *options: str, more: str = "") -> Ran:
    """Run an example as its README says; ``more`` changes the trainer before it runs."""
    arguments = [*options, "--out", str(folder)]
    return notebook.check(
        "%%mn_train\n"
        "import sys\n"
        f"if {str(EXAMPLES)!r} not in sys.path: sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"import {example} as example\n"
        f"trainer = example.make_trainer(comm, example.parse({arguments!r}))\n" + more
    )


def board(ran: Ran) -> str:
    """What the board leaves in the notebook, in words."""
    (text,) = [text for text in ran.text.splitlines() if "iteration" in text]
    return text


@pytest.mark.parametrize(
    ("example", "options", "steps", "value"),
    [
        # 750 examples on each rank, in batches of 32, twice
        ("data_parallel_digits", ["--epochs", "2"], 47, "validation/main/accuracy"),
        # 750 in batches of 50, once
        ("dcgan", ["--epochs", "1", "--width", "8"], 15, "generator/loss"),
        # 1500 in batches of 64, twice; rank 1 has no loss, only steps
        ("model_parallel_mlp", ["--epochs", "2"], 47, "validation/main/accuracy"),
    ],
)
def test_an_example_under_the_board(
    two: Notebook, tmp_path: Path, example: str, options: list[str], steps: int, value: str
) -> None:
    two.check(LISTEN)
    ran = train(two, example, tmp_path, *options)
    assert f"done, iteration {steps} of {steps}" in board(ran)
    assert ran.updates > 0
    for rank in (0, 1):
        assert two.value(f"[s.iteration for s in of(Step, {rank})]") == list(range(1, steps + 1))
    assert two.value(f"of(Step, 0)[-1].values[{value!r}]") > 0


EVERYTHING = """
trainer.extend(nbmn.extensions.ObservationAggregator(comm, "main/loss"))
trainer.extend(nbmn.create_multi_node_checkpointer("mine", comm), trigger=(2, "iteration"))
trainer.stop_trigger = nbmn.extensions.MultiNodeEarlyStoppingTrigger(
    comm, monitor="main/accuracy", mode="max", patience=1, check_trigger=(2, "iteration"),
    max_trigger=(6, "iteration"))
"""


def test_every_extension_under_the_board(two: Notebook, tmp_path: Path) -> None:
    """Batch normalization over ranks, double buffering, snapshots, and what is added here."""
    two.check(LISTEN)
    small = ["--size", "32", "--width", "4", "--examples", "32", "--classes", "2"]
    options = [*small, "--double-buffering"]
    ran = train(two, "imagenet_resnet50", tmp_path, *options, more=EVERYTHING)
    assert "done" in board(ran)
    losses = [two.value(f"[s.values['main/loss'] for s in of(Step, {rank})]") for rank in (0, 1)]
    assert losses[0] == losses[1]  # aggregated
    assert len(losses[0]) in (4, 6)  # stopped early, or when it was over
    assert sorted(path.name for path in tmp_path.glob("snapshot*.0"))
    assert not list(tmp_path.glob("mine*"))  # a run that ends well leaves no checkpoints


def test_the_alias_on_ranks(two: Notebook) -> None:
    """``import chainermn`` in cells means nbmn, and so do the names that a script takes from it."""
    ran = two.check(
        "%%mn\n"
        "import chainermn\n"
        "import nbmn.compat.chainermn\n"
        "from chainermn.functions import allgather\n"
        "assert chainermn.create_communicator is nbmn.create_communicator\n"
        "total = sum(float(y.array) for y in allgather(comm, chainer.Variable(np.ones((), 'f'))))\n"
        "print('together', total)"
    )
    assert "together 2.0" in ran.text
