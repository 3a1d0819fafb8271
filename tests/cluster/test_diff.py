"""%mn_diff on real ranks: which ranks differ, in what, and by how much."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_kernel import Notebook

TRAIN = """%%mn
import chainer.functions as F, chainer.links as L
def train(seed, lr, steps=2, twice=True):
    rng = np.random.RandomState(seed)
    normal = chainer.initializers.Normal(0.3, rng=rng)
    model = L.Classifier(chainer.Sequential(
        L.Linear(6, 8, initialW=normal), F.relu, L.BatchNormalization(8),
        L.Linear(8, 3, initialW=normal)))
    # Not the multi-node one: nothing brings these ranks together again.
    optimizer = chainer.optimizers.MomentumSGD(lr).setup(model)
    data = np.random.RandomState(1)
    for step in range(steps):
        x, t = data.rand(4, 6).astype("f"), data.randint(0, 3, 4).astype("i")
        optimizer.update(model, x, t)
    return model, optimizer
"""


@pytest.fixture(scope="module")
def shared_three() -> Iterator[Notebook]:
    notebook = Notebook()
    notebook.check("%load_ext nbmn\n%mn_start 3")
    notebook.check(TRAIN)
    yield notebook
    notebook.close()


@pytest.fixture
def three(shared_three: Notebook) -> Notebook:
    """A notebook with three ranks, shared; each test must leave them working."""
    shared_three.check("%mn comm.barrier()")
    return shared_three


def _rows(text: str) -> dict[str, list[str]]:
    """The table, by what differs: on which ranks, how, from which."""
    lines = text.splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("what"))
    rows = [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in lines[begin:]]
    return {row[0]: row[1:] for row in rows[1:] if len(row) >= 3}


def test_a_rank_that_was_seeded_differently_is_named(three: Notebook) -> None:
    three.check("%mn model, optimizer = train(seed=int(comm.rank == 2), lr=0.1)")
    text = three.check("%mn_diff model").text
    assert text.startswith("model: rank 2 differs in ")
    rows = _rows(text)
    ranks, words, reference = rows["model/predictor/0/W"]
    assert (ranks, reference) == ("rank 2", "ranks 0, 1")
    assert words.startswith("48 of 48 elements; at most by ")
    three.check("%%mn -o w\nmodel.predictor[0].W.array")
    values = three.value("[w[rank].astype('d').tolist() for rank in (0, 2)]")
    gaps = [
        (abs(a - b), (i, j))
        for i, (one, other) in enumerate(zip(*values, strict=True))
        for j, (a, b) in enumerate(zip(one, other, strict=True))
    ]
    gap, (i, j) = max(gaps)
    assert f"at most by {gap:.3g} at [{i}, {j}]" in words
    assert "model/predictor/2/avg_mean" in rows
    assert "model/predictor/2/eps" not in text


def test_another_learning_rate_is_named_and_what_it_did(three: Notebook) -> None:
    three.check("%mn model, optimizer = train(seed=0, lr=0.1 if comm.rank != 2 else 0.2)")
    rows = _rows(three.check("%mn_diff optimizer").text)
    assert rows["optimizer.lr"] == ["rank 2", "0.2, not 0.1", "ranks 0, 1"]
    assert "optimizer.momentum" not in rows
    assert "optimizer.t" not in rows
    assert rows["optimizer/predictor/0/W.v"][0] == "rank 2"
    assert three.check("%mn_diff model").text.startswith("model: rank 2 differs in ")
    wrapped = "%mn multi = nbmn.create_multi_node_optimizer(optimizer, comm)"
    three.check(wrapped)
    assert _rows(three.check("%mn_diff multi").text)["multi.lr"][1] == "0.2, not 0.1"


def test_alike(three: Notebook) -> None:
    three.check("%mn model, optimizer = train(seed=0, lr=0.1)")
    text = three.check("%mn_diff model").text
    assert text.startswith("model: alike on ranks 0–2 (")
    assert three.check("%mn_diff optimizer 0,2").text.startswith("optimizer: alike on ranks 0, 2")
    assert three.check("%mn_diff 1 + 1").text == "1 + 1: alike on ranks 0–2"


def test_an_expression_that_fails_names_the_rank(three: Notebook) -> None:
    three.check("%%mn 1\nonly_here = 3")
    rows = three.check("%mn_diff only_here").text
    assert "raised on ranks 0, 2; only rank 1 has a value" in rows
    assert _rows(rows)["only_here"][0] == "ranks 0, 2"
    assert "NameError: name 'only_here' is not defined" in rows
    text = three.check("%mn_diff 1 / (comm.rank - 1)").text
    assert "rank 1" in text
    assert "ZeroDivisionError" in text
    assert "rank 2 differs" in text


def test_arrays_of_odd_shape_dtype_and_with_nan(three: Notebook) -> None:
    three.check(
        "%%mn\na = np.arange(6.0).reshape(2, 3)\n"
        "if comm.rank == 1: a[1, 2] = np.nan\n"
        "if comm.rank == 2: a = a[:, :2]\n"
        "b = np.ones(3, 'f' if comm.rank else 'd')"
    )
    text = three.check("%mn_diff a").text
    assert "float64 (2, 2), not float64 (2, 3)" in text
    assert "1 of 6 elements; at [1, 2] (nan, not 5.0); 1 NaN, not 0" in text
    assert "rank 0" in three.check("%mn_diff b 0,1").text
    assert "float32 (3,), not float64 (3,)" in three.check("%mn_diff b 0,1").text


def test_seeds_iterators_and_datasets(three: Notebook) -> None:
    three.check(
        "%%mn\nimport random\nnp.random.seed(comm.rank // 2); random.seed(5)\n"
        "n = 11 if comm.rank == 1 else 12\n"
        "data = chainer.datasets.TupleDataset(np.arange(n), np.zeros(n))\n"
        "iterator = chainer.iterators.SerialIterator(list(range(9)), 3, shuffle=False)\n"
        "if comm.rank == 2: iterator.next()"
    )
    assert "rank 2 differs" in three.check("%mn_diff np.random").text
    assert three.check("%mn_diff random").text == "random: alike on ranks 0–2"
    rows = _rows(three.check("%mn_diff data").text)
    assert rows["data"] == ["rank 1", "TupleDataset of 11, not TupleDataset of 12", "ranks 0, 2"]
    rows = _rows(three.check("%mn_diff iterator").text)
    assert rows["iterator.current_position"] == ["rank 2", "3, not 0", "ranks 0, 1"]


def test_what_cannot_be_compared(three: Notebook) -> None:
    ran = three.run("%mn_diff model(")
    assert not ran.ok
    assert "is not an expression" in ran.streams["stderr"]
    assert "needs an expression" in three.run("%mn_diff").streams["stderr"]
    assert "one rank only (rank 1)" in three.check("%mn_diff comm.rank 1").text
    assert "only their types: Communicator" in three.check("%mn_diff comm").text
    assert "rank 7" in three.run("%mn_diff comm.rank 7").error


def test_a_stopped_comparison_leaves_the_ranks_working(three: Notebook, tmp_path: Path) -> None:
    mark = tmp_path / "began"
    three.check(
        f"%%mn\nimport time\nfrom pathlib import Path\nkept = comm.rank\n"
        f"def slow():\n    Path({str(mark)!r}).touch()\n    time.sleep(60)"
    )
    ran = three.run("%mn_diff slow() if comm.rank == 1 else 0", interrupt_when=mark.exists)
    assert ran.error == "KeyboardInterrupt: stopped on ranks 0–2"
    rows = _rows(three.check("%mn_diff kept").text)
    assert rows["kept"] == ["rank 2", "2, not 0", "rank 0"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("comm.allreduce_obj(1) 0,1", "rank 2 does not run this cell; ranks 0, 1 waited in"),
        (
            "comm.allreduce_obj(1) if comm.rank else 0",
            "rank 0 has finished the cell; ranks 1, 2 waited in",
        ),
        (
            "comm.allreduce_obj(1 / comm.rank)",
            "rank 0 raised ZeroDivisionError: division by zero\nranks 1, 2 waited in",
        ),
    ],
)
def test_a_collective_that_not_all_ranks_call(three: Notebook, line: str, said: str) -> None:
    began = time.monotonic()
    ran = three.run(f"%mn_diff {line}", seconds=20)
    assert time.monotonic() - began < 10
    assert said in ran.error
    assert re.search(r"allreduce_obj #\d+ \(%mn_diff line 1\) for \d\.\d s", ran.error)
    assert len(ran.error.splitlines()) <= 2
    assert three.check("%mn_diff comm.allreduce_obj(1)").text.endswith("alike on ranks 0–2")


def test_an_interrupt_of_one_rank_is_its_own(three: Notebook) -> None:
    three.check("%%mn\ndef stop():\n    raise KeyboardInterrupt")
    text = three.check("%mn_diff stop() if comm.rank == 1 else 0").text
    assert text.startswith("stop() if comm.rank == 1 else 0: raised on rank 1; alike on ranks 0, 2")
    assert re.search(r"rank 1 +KeyboardInterrupt( |$)", text, re.MULTILINE)
    ran = three.run("%mn_diff stop() if comm.rank == 1 else comm.allreduce_obj(1)", seconds=20)
    assert "rank 1 raised KeyboardInterrupt\nranks 0, 2 waited in" in ran.error
    assert ran.error.endswith("and nbmn freed them")


def test_objects_that_refer_to_each_other(three: Notebook) -> None:
    three.check(
        "%%mn\nclass Node: pass\nnodes = [Node() for _ in range(14)]\n"
        "for i, node in enumerate(nodes):\n"
        "    node.number = -1 if (i, comm.rank) == (3, 2) else i\n"
        "    node.nbrs = [other for other in nodes if other is not node]\n"
        "one = {'x': np.zeros(3)}\n"
        "shared = [one, one if comm.rank else {'x': np.array([0, 0, 5.0])}]"
    )
    rows = _rows(three.check("%mn_diff nodes[0]").text)
    assert list(rows.values()) == [["rank 2", "-1, not 3", "ranks 0, 1"]]
    words = _rows(three.check("%mn_diff shared").text)["shared[1]['x']"][1]
    assert words == "1 of 3 elements; at most by 5 at [2] (5.0, not 0.0)"


def test_numbers_within_a_tolerance(three: Notebook) -> None:
    three.check("%mn near = [np.ones(3) + 1e-4 * comm.rank, 0.5 + 1e-4 * comm.rank]")
    assert "ranks 1, 2 differ in 2 of 3 entries" in three.check("%mn_diff near").text
    text = three.check("%mn_diff near --tol 1e-3").text
    assert text == "near: alike on ranks 0–2 within 0.001 (3 entries)"
    text = three.check("%mn_diff near 0,2 --tol 1.5e-4").text
    assert "near: rank 2 differs in 2 of 3 entries by more than 0.00015" in text
    wrong = three.run("%mn_diff near --tolerance 1e-3").streams["stderr"]
    assert "no option --tolerance; write %mn_diff EXPR [RANKS] [--tol 1e-3]" in wrong


def test_what_differs_as_it_should_is_said_to(three: Notebook) -> None:
    three.check(
        "%%mn\nmodel, optimizer = train(seed=0, lr=0.1)\n"
        "model.predictor[2].avg_mean[...] = comm.rank\n"
        "part = nbmn.scatter_dataset(list(range(9)) if comm.rank == 0 else None, comm)"
    )
    text = three.check("%mn_diff model").text
    assert "running statistics of batch normalization differ in data-parallel training" in text
    assert "scattered" not in text
    assert "a rank's part of a scattered dataset" in three.check("%mn_diff part").text


def test_a_rank_with_an_older_definition_of_a_class(three: Notebook) -> None:
    """As where a cell was run again on some ranks only."""
    define = "class Net(chainer.Chain):\n    def forward(self, x):\n        return x * {}"
    three.check(f"%%mn\n{define.format(2)}\nnet = Net()")
    assert "differ" not in three.check("%mn_diff net").text
    three.check(f"%%mn 0,2\n{define.format(3)}\nnet = Net()")
    text = three.check("%mn_diff net").text
    assert text.startswith("net: rank 1 differs in 1 of ")
    ranks, words, reference = _rows(text)["net.__class__.forward"]
    assert (ranks, reference) == ("rank 1", "ranks 0, 2")
    assert words == "Net.forward, but of another definition"
