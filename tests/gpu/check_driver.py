"""What the driver tells of the GPU is what nvidia-smi tells; and what it costs to ask."""

from __future__ import annotations

import statistics
import time

from facts import smi
from gpu_tools import STANDIN, Report, Skip

from nbmn.engine.gpu_watch import sample
from nbmn.engine.nvml import DriverError, gpu_of
from nbmn.gpu.runtime import this_gpu

MIB = 1 << 20


def run(report: Report) -> None:
    uuid = this_gpu().runtime.uuid(0)
    try:
        gpu = gpu_of(uuid)
    except DriverError as error:
        raise Skip(str(error)) from error
    times = []
    for _ in range(20):
        began = time.perf_counter()
        told = sample(gpu, 0, "run")
        times.append(time.perf_counter() - began)
    report(
        "one look at the GPU",
        milliseconds=1e3 * statistics.median(times),
        longest_milliseconds=1e3 * max(times),
        used_mib=None if told.used is None else told.used / MIB,
        total_mib=None if told.total is None else told.total / MIB,
        utilisation_percent=told.utilisation,
        degrees=told.temperature,
        link=told.link,
        slowed=told.slowed,
        tenants=len(gpu.tenants()),
    )
    if STANDIN:
        return
    rows = smi("uuid,memory.total,memory.used,temperature.gpu")
    if rows is None:
        raise Skip("there is no nvidia-smi to compare with")
    fields = {row.split(", ")[0]: row.split(", ")[1:] for row in rows}
    name = next((name for name in fields if name.lower().replace("-", "").endswith(uuid)), None)
    assert name is not None, f"CUDA's {uuid} is not among {sorted(fields)}"
    total, used, degrees = (float(field) for field in fields[name])
    assert abs(told.total / MIB - total) <= 0.02 * total, (told.total / MIB, total)
    # The other checks of this round come and go.
    assert abs(told.used / MIB - used) <= 0.2 * total, (told.used / MIB, used)
    assert told.temperature is not None
    assert abs(told.temperature - degrees) <= 10, (told.temperature, degrees)
