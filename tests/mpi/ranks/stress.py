"""Interrupts ranks at random moments and renews; also a program: ``stress.py ROUNDS``."""

import contextlib
import gc
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import nbmn
from nbmn.communicators import CommunicatorError, streaming, world
from nbmn.communicators.runtime import mpi


@dataclass(frozen=True)
class Outcome:
    """What a number of rounds came to."""

    rounds: int
    seconds: float
    interrupted: int
    """Rounds in which this rank was interrupted."""
    in_renewal: int
    """Interrupts during renewals."""
    grown: int
    """Bytes by which the resident memory grew, after a tenth of the rounds."""
    abandoned: int
    """MPI communicators given up."""
    contexts: int
    """MPI communicators that could still be made, less than before."""


class Interrupter:
    """Sends this process SIGINT after a while, and again until it says that it has seen it.

    Python drops what is raised in a finalizer, a KeyboardInterrupt too.
    """

    def __init__(self):
        self._go = threading.Semaphore(0)
        self._delay = 0.0
        self._wanted = False
        self._idle = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def after(self, seconds):
        self._delay, self._wanted = seconds, True
        self._idle.clear()
        self._go.release()

    def stop(self):
        """Send no more; returns, when the last has been seen, how many were seen here."""
        seen = 0
        while True:
            try:
                self._wanted = False
                self._idle.wait()
                time.sleep(1e-3)  # whatever is under way to this thread is there afterwards
                return seen
            except KeyboardInterrupt:
                seen += 1

    def _run(self):
        while True:
            self._idle.set()
            self._go.acquire()
            delay = self._delay
            while self._wanted:
                end = time.monotonic() + delay
                while self._wanted and time.monotonic() < end:
                    time.sleep(min(max(end - time.monotonic(), 0), 1e-3))
                if self._wanted:
                    os.kill(os.getpid(), signal.SIGINT)
                delay = 0.5


def interrupt_often(comm, rounds, first_ticket, seed=7, within=0.004):
    """Interrupt one rank a round, all of them in the end, and heal; returns an Outcome."""
    together, alone = random.Random(seed), random.Random(seed + 1 + comm.rank)
    part = comm.split(0 if comm.rank < max(comm.size - 1, 1) else 1, comm.rank)
    import chainer  # after nbmn, which repairs it

    model = chainer.Sequential(chainer.links.Linear(300, 200), chainer.links.Linear(3, 2))
    streaming.problem()  # a compiler in memory is no growth
    interrupter = Interrupter()
    begin = time.monotonic()
    interrupted = in_renewal = 0
    memory = None
    contexts = contexts_left()
    for number in range(rounds):
        if rounds >= 1000 and number % 500 == 0 and comm.rank == 0:
            print(f"{number} rounds in {time.monotonic() - begin:.0f} s", flush=True)
        if number == rounds // 10:
            gc.collect()
            memory = resident()
        victim = together.randrange(comm.size) == comm.rank
        delay = together.random() * within + (0 if victim else within + alone.random() * within)
        again = alone.random() < 0.3
        with contextlib.suppress(CommunicatorError):
            try:
                interrupter.after(delay)
                talk_for_ever(comm, part, model, number)
            except KeyboardInterrupt:
                interrupted += 1
        interrupter.stop()
        while True:  # an interrupted renewal is repeated
            try:
                if again:
                    again = False
                    interrupter.after(alone.random() * within / 4)
                world().renew(first_ticket + number)
                break
            except KeyboardInterrupt:
                in_renewal += 1
                interrupter.stop()
        interrupter.stop()
        for link in (comm, part):
            total = link.allreduce(np.array([number, link.rank]))
            assert total.tolist() == [number * link.size, link.size * (link.size - 1) // 2]
    assert comm.allgather_obj(rounds) == [rounds] * comm.size
    seconds = time.monotonic() - begin
    world().renew(first_ticket + rounds)
    gc.collect()
    grown = resident() - memory
    contexts -= contexts_left()
    abandoned = world().abandoned
    return Outcome(rounds, seconds, interrupted, in_renewal, grown, abandoned, contexts)


def talk_for_ever(comm, part, model, seed):
    """All kinds of operations, with checks, until something is raised."""
    rank, size = comm.rank, comm.size
    for number in itertools.count(seed):
        link = comm if number % 3 else part
        total = link.allreduce(np.full(1 + number * 7919 % 5000, link.rank + 1.0))
        np.testing.assert_array_equal(total, link.size * (link.size + 1) / 2)
        kind = number % 12
        if kind == 0:
            nbmn.create_communicator("flat").barrier()
        elif kind == 1:
            assert comm.bcast_obj((number, "x" * (number % 2000)))[0] == number
        elif kind == 2:
            right = [number] * size if rank == 0 else None
            assert comm.gather_obj(number) == right
        elif kind == 3:
            right, left = (rank + 1) % size, (rank - 1) % size
            if size > 1:
                for sender in range(size):
                    if rank == sender:
                        comm.send_obj((number, rank, "y" * (number % 3 * 700)), right)
                    elif left == sender:
                        assert comm.recv_obj(left)[:2] == (number, left)
        elif kind == 4:
            made = comm.split(rank % 2, -rank)
            assert made.allreduce(np.array([1]))[0] == made.size
        elif kind == 5:
            got = comm.alltoall(tuple(np.full(r + 1, number + rank) for r in range(size)))
            assert [int(array[0]) for array in got] == [number + r for r in range(size)]
        elif kind == 6:
            got = comm.allgather(np.full(number % 5, number + rank))
            assert [array.tolist() for array in got] == [
                [number + r] * (number % 5) for r in range(size)
            ]
        elif kind == 7:
            made = nbmn.create_communicator("flat", part.mpi_comm)
            assert made.size == part.size
        elif kind == 8:
            parts = tuple(np.full(3, number + r) for r in range(size)) if rank == 0 else None
            assert comm.scatter(parts).tolist() == [number + rank] * 3
        elif kind == 9:
            large = comm.bcast(np.full(100_000, number, np.int32) if rank == 0 else None)
            assert (large == number).all()
        elif kind == 10:
            for param in model.params():
                param.grad = np.full(param.shape, number + rank, param.dtype)
            comm.multi_node_mean_grad(model)
            mean = number + (size - 1) / 2
            assert all((param.grad == mean).all() for param in model.params())
        else:
            comm.barrier()


def contexts_left(most=2100):
    """Return how many communicators MPI still hands out to this process, ``most`` at most."""
    MPI = mpi()
    made = []
    with contextlib.suppress(MPI.Exception):
        for _ in range(most):
            made.append(MPI.COMM_SELF.Dup())
    for comm in made:
        comm.Free()
    return len(made)


def resident():
    """Return the memory of this process, in bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    talker = nbmn.create_communicator(sys.argv[2] if len(sys.argv) > 2 else "auto")
    result = interrupt_often(talker, int(sys.argv[1]), 1)
    for who in range(talker.size):
        if who == talker.rank:
            print(json.dumps(asdict(result)), flush=True)
        talker.barrier()
