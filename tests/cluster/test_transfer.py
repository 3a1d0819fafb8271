"""%mn_push and %mn_pull."""

from __future__ import annotations

from pathlib import Path

import pytest
from notebook_kernel import Notebook, works

MODEL = """
import chainer, chainer.links as L, numpy
class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.hidden = L.Linear(5, 4)
            self.out = L.Linear(4, 3)
    def forward(self, x):
        return self.out(chainer.functions.relu(self.hidden(x)))
    def total(self):
        return float(sum(abs(p.array).sum() for p in self.params()))
model = Net()
"""


def test_a_model_defined_in_the_notebook(two: Notebook) -> None:
    two.check(MODEL)
    assert "model → ranks 0, 1" in two.check("%mn_push model").text
    two.check("%%mn -o totals\nmodel.total()")
    two.check("assert totals == {0: model.total(), 1: model.total()}")
    two.check("%%mn\nmodel.hidden.W.array[...] = comm.rank + 7; model.cleargrads()")
    two.check("before = model\n%mn_pull model 1")
    two.check(
        "assert type(model) is Net and model is not before\n"
        "assert (model.hidden.W.array == 8).all()\n"
        "model.hidden.W.array += 1\n"
        "model(numpy.zeros((1, 5), 'f'))"
    )
    two.check("%mn_pull model")
    two.check("assert [type(model[r]) for r in (0, 1)] == [Net, Net]")
    two.check("assert float(model[0].hidden.W.array[0, 0]) == 7.0")


def test_a_subset_of_ranks_and_several_names(two: Notebook) -> None:
    two.check("%mn one = two = 'old'")
    two.check("one, two = 1, {'two': [2]}\n%mn_push one, two --ranks 1")
    two.check("%%mn -o got\none, two")
    assert two.value("got") == {0: ("old", "old"), 1: (1, {"two": [2]})}


def test_a_large_array_is_pickled_once_and_writable(two: Notebook) -> None:
    two.check(
        """
import numpy
class Holder:
    reduced = 0
    def __init__(self, array): self.array = array
    def __reduce__(self):
        type(self).reduced += 1
        return _remake, (self.array,)
def _remake(array): return Holder(array)
big = Holder(numpy.arange(50_000_000, dtype=numpy.float32))
"""
    )
    assert "200.0 MB" in two.check("%mn_push big").text
    assert two.value("Holder.reduced") == 1
    two.check("%%mn -o sums\nbig.array[0] = comm.rank\nbig.array[:3].tolist(), int(big.array[-1])")
    assert two.value("sums") == {0: ([0.0, 1.0, 2.0], 50_000_000), 1: ([1.0, 1.0, 2.0], 50_000_000)}
    two.check("%mn big = big.array")
    two.check("%mn_pull big 1\nassert big[0] == 1 and big.nbytes == 200_000_000\nbig[0] = 3")
    two.check("%mn del big\ndel big")


def test_many_arrays(two: Notebook) -> None:
    two.check("import numpy\nmany = [numpy.full(3, i) for i in range(500)]\n%mn_push many")
    two.check("%%mn -o ok\nmany[499][0] = 1\nlen(many), int(many[498][2])")
    assert two.value("ok") == {0: (500, 498), 1: (500, 498)}
    two.check("%mn_pull many 0\nassert many[499].tolist() == [1, 499, 499]\nmany[0][0] = 1")


def test_an_unknown_name(two: Notebook) -> None:
    ran = two.run("%mn_push nowhere")
    assert not ran.ok
    assert "the notebook has no variable nowhere" in ran.streams["stderr"]
    ran = two.run("%mn_pull nowhere")
    assert "ranks 0, 1 raised NameError: no variable 'nowhere' on this rank" in ran.error
    two.check("%%mn 1\nonly_here = 1")
    ran = two.run("only_here = 'mine'\n%mn_pull only_here")
    assert "rank 0 raised NameError" in ran.error
    assert two.value("only_here") == "mine"
    assert "not a variable's name" in two.run("%mn_pull a.b").streams["stderr"]


def test_what_cannot_be_pickled_is_named_and_nothing_is_lost(two: Notebook) -> None:
    two.check("%mn good = lock = 'as before'")
    two.check("import threading\ngood, lock = 1, threading.Lock()")
    ran = two.run("%mn_push good lock")
    assert not ran.ok
    assert "lock was not sent to any rank" in ran.error
    two.check("%mn assert (good, lock) == ('as before', 'as before')")
    two.check("%mn import threading; lock = threading.Lock()")
    ran = two.run("%mn_pull lock 0")
    assert "rank 0 raised TypeError" in ran.error
    two.check("%mn comm.barrier()")


def test_a_module_that_only_the_notebook_has(two: Notebook, tmp_path: Path) -> None:
    two.check(
        f"import sys, pathlib\npathlib.Path({str(tmp_path)!r}, 'private_tools.py')"
        ".write_text('class Tool: pass')\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\nimport private_tools\ntool = private_tools.Tool()"
    )
    ran = two.run("%mn_push tool")
    assert "ranks 0, 1 raised ModuleNotFoundError" in ran.error
    assert "private_tools" in ran.error
    two.check("%mn comm.barrier()")


@pytest.mark.parametrize("presses", [1, 2])
def test_an_interrupted_push_leaves_ranks_working(
    two: Notebook, tmp_path: Path, presses: int
) -> None:
    started = tmp_path / "started"
    two.check(
        f"""
class Slow:
    def __reduce__(self): return _slow, ()
def _slow():
    import pathlib, time
    pathlib.Path({str(started)!r}).touch()
    time.sleep(60)
slow = Slow()
"""
    )
    ran = two.run("%mn_push slow", interrupt_when=started.exists, seconds=20, presses=presses)
    assert (ran.error_name, ran.error) == (
        "RanksInterrupted",
        "KeyboardInterrupt: stopped on ranks 0, 1",
    )
    works(two)


def test_classes_that_name_the_communicator_come_and_go(two: Notebook) -> None:
    two.check(
        "%%mn\n"
        "class M(chainer.Chain):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        with self.init_scope():\n"
        "            self.bn = nbmn.links.MultiNodeBatchNormalization(3, comm)\n"
        "    def half(self, x): return x / comm.size\n"
        "named = M()"
    )
    two.check("%mn_pull named 0")
    assert two.value("(type(named).__name__, named.bn.gamma.shape)") == ("M", (3,))
    assert "stays on its rank" in two.run("named.half(3)").error
    two.check("%mn_push named")
    two.check("%%mn -o got\nnamed.half(3)")
    assert two.value("got") == {0: 1.5, 1: 1.5}
    assert "stays on its rank" in two.run("%mn_pull comm").error
