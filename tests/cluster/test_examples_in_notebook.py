"""Examples in a notebook's ranks: nothing is changed, and the board is live."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebook_kernel import Notebook, Ran
from test_train import LISTEN

EXAMPLES = Path(__file__).parents[2] / "examples"


def train(notebook: Notebook, example: str, folder: Path, *options: str) -> Ran:
    """Run an example as its README says."""
    arguments = [*options, "--out", str(folder)]
    return notebook.check(
        "%%mn_train\n"
        "import sys\n"
        f"if {str(EXAMPLES)!r} not in sys.path: sys.path.insert(0, {str(EXAMPLES)!r})\n"
        f"import {example} as example\n"
        f"trainer = example.make_trainer(comm, example.parse({arguments!r}))"
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


def test_the_alias_on_ranks(two: Notebook) -> None:
    """``import chainermn`` in cells, and the names that a script takes from it."""
    ran = two.check(
        "%%mn\n"
        "import nbmn.compat.chainermn\n"
        "import chainermn\n"
        "from chainermn.functions import allgather\n"
        "assert chainermn.create_communicator is nbmn.create_communicator\n"
        "total = sum(float(y.array) for y in allgather(comm, chainer.Variable(np.ones((), 'f'))))\n"
        "print('together', total)"
    )
    assert "together 2.0" in ran.text
