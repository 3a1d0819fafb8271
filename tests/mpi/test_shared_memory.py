"""Shared memory among more ranks than the other checks use, and under interrupts."""

import sys

import mpi_session
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")

SCRIPT = """
import chainer
import numpy as np
import nbmn

comm = nbmn.create_communicator("shared_memory")
model = chainer.Link()
with model.init_scope():
    for n, shape in enumerate([(3,), (300, 211), (77, 1000), (5,)]):
        setattr(model, f"p{n}", chainer.Parameter(np.zeros(shape, np.float32)))
for step in range(3):
    for n, param in enumerate(model.params()):
        ramp = np.arange(param.size, dtype=np.float32).reshape(param.shape)
        param.grad = ramp % 1000 + comm.rank * (step + 1)
    comm.multi_node_mean_grad(model)
    for param in model.params():
        ramp = np.arange(param.size, dtype=np.float32).reshape(param.shape)
        np.testing.assert_array_equal(param.grad, ramp % 1000 + (comm.size - 1) / 2 * (step + 1))
print("right", flush=True)
"""

INTERRUPTED = """
import os
import random
import signal
import threading
import chainer
import numpy as np
import nbmn
from nbmn.communicators import world

comm = nbmn.create_communicator("auto")
model = chainer.Link()
with model.init_scope():
    for n, shape in enumerate([(3,), (300, 211), (77, 1000), (64, 300)]):
        setattr(model, f"p{n}", chainer.Parameter(np.zeros(shape, np.float32)))


def step(number):
    for param in model.params():
        param.grad = np.full(param.shape, number + comm.rank, np.float32)
    comm.multi_node_mean_grad(model)
    mean = number + (comm.size - 1) / 2
    assert all((param.grad == mean).all() for param in model.params())


moment = random.Random(comm.rank)
for number in range(30):
    timer = threading.Timer(0.03 * moment.random(), os.kill, (os.getpid(), signal.SIGINT))
    try:
        timer.start()
        while True:  # each rank is interrupted, at a moment of its own
            step(number)
    except KeyboardInterrupt:
        pass
    timer.join()
    world().renew()
    for again in range(3):
        step(1000 + number + again)
print("right", flush=True)
"""


@pytest.mark.parametrize("module", ["check_shared_memory", "check_shared_memory_faults"])
def test_every_check_on_four_ranks(module):
    session = mpi_session.session(module, 4)
    checks = [check for other, check in mpi_session.checks() if other == module]
    for report in session.reports:
        assert len(report) == len(checks), session.output[-4000:]
        assert {check: result for check, result in report.items() if result != "ok"} == {}


@pytest.mark.parametrize("ranks", [8, 16])
def test_many_ranks(ranks):
    command = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", str(ranks)]
    output = mpi_session.run([*command, sys.executable, "-c", SCRIPT], 90)
    assert output.count("right") == ranks, output


def test_interrupts_at_random_moments():
    command = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", "3"]
    output = mpi_session.run([*command, sys.executable, "-c", INTERRUPTED], 90)
    assert output.count("right") == 3, output
