"""Whether MPI takes memory of the GPU is found out without harm; sums are right either way."""

from __future__ import annotations

import time
import warnings

import numpy as np
from check_collectives import SUMMED
from gpu_tools import Report
from gpu_values import averages, broadcasts, put, same

import nbmn
from nbmn.communicators import cuda_aware


def run(report: Report) -> None:
    comm = nbmn.create_communicator("non_cuda_aware", timeout=100)
    began = time.perf_counter()
    refusal = cuda_aware.refusal() if comm.rank == 0 else None
    seconds = time.perf_counter() - began
    refusal = comm.bcast_obj(refusal)
    report("MPI given memory of the GPU", seconds_to_find_out=seconds, refusal=refusal)
    for name in ("flat", "naive"):
        made = nbmn.create_communicator(name, timeout=100)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for seed, dtype in enumerate(("float32", "float64", "float16")):
                averages(made, dtype, seed)
        told = [str(w.message) for w in caught if "host memory" in str(w.message)]
        assert len(told) == (refusal is not None and made.rank == 0), told
        for dtype in SUMMED:
            host = np.asarray(np.arange(1000) % 5, dtype)
            total = made.allreduce(put(host))
            same(total, np.asarray(made.size * host, dtype), what=f"{name}: sum of {dtype}")
        broadcasts(made)
