"""Tells the notebook what this rank's GPU does, once a second while a cell runs.

In a thread of its own: a driver whose GPU is failing may answer late or never, and the
reporter's thread must go on hearing interrupts.
"""

from __future__ import annotations

import threading
import time
from typing import Protocol

from nbmn.engine.nvml import DriverError, Gpu, gpu_of
from nbmn.records import GpuSample, Record

PERIOD = 1.0
"""Seconds between two samples."""


class Line(Protocol):
    """A rank's line to the notebook, as :class:`nbmn.engine.reporter.Reporter`."""

    rank: int

    @property
    def run(self) -> str: ...
    def send(self, record: Record) -> None: ...


def watch_gpu(line: Line, uuid: str, bus_id: str = "") -> None:
    """Start to tell of the GPU that has this UUID and bus id, as CUDA gives them. Local."""
    names = (line, uuid, bus_id)
    threading.Thread(target=_watch, args=names, name="nbmn-gpu", daemon=True).start()


def _watch(line: Line, uuid: str, bus_id: str) -> None:
    gpu: Gpu | None = None
    while True:
        run = line.run
        if run:
            try:
                gpu = gpu_of(uuid, bus_id) if gpu is None else gpu
                line.send(sample(gpu, line.rank, run))
            except DriverError as error:
                line.send(GpuSample(line.rank, run, time.time(), problem=str(error)))
        time.sleep(PERIOD)


def sample(gpu: Gpu, rank: int, run: str) -> GpuSample:
    """What the GPU does at this moment; raises as its methods do."""
    used, total = gpu.memory() or (None, None)
    return GpuSample(
        rank,
        run,
        time.time(),
        used,
        total,
        gpu.utilisation(),
        gpu.temperature(),
        gpu.link(),
        gpu.slowed(),
    )
