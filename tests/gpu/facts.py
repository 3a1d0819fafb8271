"""Which machine this is."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess

from gpu_tools import Report, Skip


def run(report: Report) -> None:
    """Tell versions; skip where there is no GPU that CuPy can use."""
    if importlib.util.find_spec("cupy") is None:
        raise Skip("CuPy is not installed")
    from nbmn.gpu.cupy_runtime import CupyRuntime
    from nbmn.gpu.nccl import version_text
    from nbmn.gpu.nccl_cupy import CupyNccl

    problem = CupyRuntime().problem()
    if problem is not None:
        raise Skip(problem)
    import cupy
    import numpy

    runtime, nccl = cupy.cuda.runtime, CupyNccl()
    properties = runtime.getDeviceProperties(0)
    report(
        "machine",
        gpu=properties["name"].decode(),
        gpus=runtime.getDeviceCount(),
        memory_gib=properties.get("totalGlobalMem", 0) / 2**30,
        multiprocessors=properties.get("multiProcessorCount"),
        driver=driver(),
        driver_cuda=runtime.driverGetVersion(),
        runtime_cuda=runtime.runtimeGetVersion(),
        nvrtc=".".join(map(str, cupy.cuda.nvrtc.getVersion())),
        cupy=cupy.__version__,
        nccl=nccl.problem() or version_text(nccl.version()),
        numpy=numpy.__version__,
        python=platform.python_version(),
        system=platform.platform(),
        cores=os.cpu_count(),
    )
    # A device that is there and does not compute is a failure, not a reason to skip.
    values = cupy.asarray(numpy.arange(3))
    assert values.get().tolist() == [0, 1, 2]


def driver() -> str:
    """The driver's own version."""
    told = smi("driver_version")
    return told[0] if told else "unknown"


def smi(query: str) -> list[str] | None:
    """What nvidia-smi says of each GPU; None where it is not to be had."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return None
    command = [program, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    return ran.stdout.strip().splitlines() if ran.returncode == 0 else None
