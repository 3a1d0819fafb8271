"""Fails for want of memory on a CuPy without a device; prints what is told of it as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

import device_standin  # before CuPy

sys.path.append(str(Path(__file__).parents[1] / "nvml"))
import chainer
import cupy
import numpy as np
import nvml_standin

from nbmn.engine.out_of_memory import alike, asked, explain, wanted_memory

GIB, MIB = 1 << 30, 1 << 20
NOTEBOOK = "host/1/2.0"
BUS_ID = "0000:07:00.0"
pool = cupy.get_default_memory_pool()


def failed(wanted: int) -> Exception:
    """An error of CuPy's pool, out of functions that hold something."""

    def forward(depth: int) -> cupy.ndarray:
        h = cupy.empty(2 * MIB, np.float32)
        return forward(depth - 1) if depth else h + cupy.empty(wanted, np.uint8)

    try:
        forward(2)
    except MemoryError as error:
        return error
    raise AssertionError


def driver_error(message: str) -> Exception:
    """What CuPy raises where there is a driver, which it asks for the message."""
    kind = cupy.cuda.driver.CUDADriverError
    return kind.__new__(kind, message)


def told(error: Exception, namespace: dict) -> dict:
    before = pool.used_bytes()
    account = explain(error, namespace, 1)
    return {
        "wanted": wanted_memory(error),
        "asked": asked(error),
        "account": account.split("\n"),
        "message": alike(str(error)),
        "kind": type(error).__module__,
        "released": before - pool.used_bytes(),
    }


def asynchronous() -> dict:
    """Use CUDA's own pool, which holds 96 MiB, 80 MiB of them in arrays, and keeps 64 MiB."""
    device_standin.CUDAS_POOL |= {4: 64 * MIB, 5: 96 * MIB, 7: 80 * MIB}
    cupy.cuda.set_allocator(cupy.cuda.MemoryAsyncPool().malloc)
    return {"y": cupy.empty(1000, np.uint8)}


def neighbour(rank: int | None) -> int:
    """Start a process on the same GPU; returns its pid, which lives as long as this one."""
    more = {} if rank is None else {"PMI_RANK": str(rank), "NBMN_NOTEBOOK": NOTEBOOK}
    words = "import sys; sys.stdin.read()"
    command = [sys.executable, "-c", words, *([] if rank is None else ["nbmn.engine"])]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, env={**os.environ, **more})
    return process.pid


def main() -> dict:
    os.environ["NBMN_NOTEBOOK"] = NOTEBOOK
    pids = (os.getpid(), neighbour(3), neighbour(None))
    processes = {f"process_{i}_pid": pid for i, pid in enumerate(pids)}
    used = {f"process_{i}_used": n * GIB for i, n in enumerate((1, 9, 5))}
    says = Path(os.environ["NBMN_NVML_STANDIN"])
    nvml_standin.say(says, nvml_standin.gpu(BUS_ID, **processes, **used))
    x = cupy.empty((4, 3, MIB), np.float32)  # 48 MiB
    model = chainer.links.Linear(1024, 2048).to_device("@cupy:0")  # 8 MiB and 8 KiB
    loss = model(chainer.Variable(x[0, 0, : 16 * 1024].reshape(16, 1024)))
    namespace = {"x": x, "model": model, "loss": loss, "view": x[1:], "cupy": cupy}
    pool.set_limit(size=128 * MIB)
    results = {"pool": told(failed(1 * GIB), namespace)}
    pool.set_limit(size=0)
    results["pids"] = pids
    for name, error in (
        ("runtime", cupy.cuda.runtime.CUDARuntimeError(2)),
        ("driver", driver_error("CUDA_ERROR_OUT_OF_MEMORY: out of memory")),
        ("cublas", cupy.cuda.cublas.CUBLASError(3)),
    ):
        results[name] = told(error, namespace)
    nvml_standin.say(says, nvml_standin.gpu(BUS_ID, process_0_pid=1))
    results["in a container"] = told(driver_error("out of memory"), namespace)
    results["async"] = told(driver_error("out of memory"), asynchronous())
    results["illegal"] = wanted_memory(cupy.cuda.runtime.CUDARuntimeError(700))
    return results


if __name__ == "__main__":
    try:
        print(json.dumps(main()))
    except BaseException:  # noqa: BLE001 - told before the process ends as it must
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # memory is given back after Python has ended, when nothing here can answer
