"""Run on two ranks: gives MPI memory of a GPU, as training would. See ``cuda_aware``."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from mpi4py import MPI

from nbmn.communicators.cuda_aware import say_proved

SIZES = (1, 1000, 3_000_000)
"""Elements: MPIs send short and long messages in different ways."""


def prove(comm: MPI.Comm, xp: Any) -> bool:
    """Say whether sums and broadcasts of arrays of ``xp`` are right; collective."""
    right = True
    for size in SIZES:
        bytes_ = np.arange(size) % 251
        sent = xp.asarray(bytes_ * (comm.Get_rank() == 0), dtype=np.uint8)
        values = xp.asarray(np.arange(size) % 1000 + comm.Get_rank(), dtype=np.float32)
        if xp is not np:
            xp.cuda.get_current_stream().synchronize()
        comm.Iallreduce(MPI.IN_PLACE, values, MPI.SUM).Wait()
        comm.Ibcast(sent, 0).Wait()
        ranks = comm.Get_size()
        expected = ranks * (np.arange(size) % 1000) + sum(range(ranks))
        got, came = (values, sent) if xp is np else (values.get(), sent.get())
        right &= np.array_equal(got, expected.astype(np.float32))
        right &= np.array_equal(came, bytes_.astype(np.uint8))
    return comm.allreduce(right, MPI.LAND)


if __name__ == "__main__":
    import cupy

    device = MPI.COMM_WORLD.Get_rank() % cupy.cuda.runtime.getDeviceCount()
    cupy.cuda.Device(device).use()
    proved = prove(MPI.COMM_WORLD, cupy)
    if MPI.COMM_WORLD.Get_rank() == 0 and proved:
        say_proved()
    sys.exit(0 if proved else 1)
