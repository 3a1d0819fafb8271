"""Loops with double buffering that make fewer updates on one rank, and never flush."""

from __future__ import annotations

from notebook_kernel import Notebook, works

SETUP = """%%mn
import threading
import chainer.functions as F
import chainer.links as L

model = L.Linear(3, 2)
optimizer = nbmn.create_multi_node_optimizer(
    chainer.optimizers.SGD(0.1), comm, double_buffering=True).setup(model)

def step():
    x = np.full((2, 3), comm.rank + 1, "f")
    optimizer.update(lambda: F.sum(model(x)))

step()
optimizer.flush()
"""
THREAD = """%%mn
reached, go = threading.Event(), threading.Event()

def work():
    for i in range(1 + comm.rank): step()
    reached.set()
    go.wait(60)
    if comm.rank == 0: step()

thread = threading.Thread(target=work)
thread.start()
assert reached.wait(60)
"""
ALIKE = "same = comm.allgather(model.W.array); assert (same[0] == same[1]).all()"


def test_the_cell_fails_and_the_next_update_makes_ranks_alike_again(two: Notebook) -> None:
    two.check(SETUP)
    cell = two.run("%%mn\nfor i in range(4 + comm.rank): step()")
    assert cell.error_name == "RanksStuck", cell.error
    assert "rank 0 called optimizer.update at least once less than rank 1" in cell.error
    two.check(f"%%mn\nstep()\noptimizer.flush()\n{ALIKE}")
    works(two)


def test_no_alarm_for_ranks_that_take_turns(two: Notebook) -> None:
    two.check(SETUP)
    two.check("%%mn 1\nstep()")
    two.check("%%mn\nprint(optimizer.t)")
    two.check("%%mn 0\nstep()")
    two.check("%%mn 0\nstep()")
    two.check("%%mn\nif comm.rank == 1: step()")
    two.check(f"%%mn\noptimizer.flush()\n{ALIKE}")
    works(two)


def test_no_alarm_while_a_thread_goes_on(two: Notebook) -> None:
    two.check(SETUP)
    two.check(THREAD)
    two.check("%%mn\ngo.set(); thread.join()")
    two.check(f"%%mn\noptimizer.flush()\n{ALIKE}")
    works(two)
