"""A cell that failed for want of memory: whose GPU, how much, what held it; and then lets go of it.

What failed stays reachable by ``sys.last_value``, with the variables of all functions on the
way: they would take the memory that the next try needs.
"""

from __future__ import annotations

import gc
import math
import os
import re
import socket
import sys
import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import psutil

from nbmn.engine.memory_owners import (
    GpuBlocks,
    chainer_parts,
    host_block,
    local_variables,
    variables,
)
from nbmn.engine.nvml import DriverError, gpu_of
from nbmn.engine.tracebacks import defined_in
from nbmn.gpu.memory import Block, Holder, Root, holders
from nbmn.gpu.memory_report import Account, Neighbour, Pool, report
from nbmn.gpu.runtime import this_gpu
from nbmn.parent import VARIABLE

_WORDS = re.compile(r"out.?of.?memory|ALLOC_FAILED|MemoryAllocation", re.IGNORECASE)
"""What errors of CUDA, its libraries and NCCL say."""
_SO_FAR = re.compile(r" \(allocated so far:[^)]*\)")
_ASKED = re.compile(r"allocating ([\d,]+) bytes")
_LIBRARIES = ("cupy", "cupy_backends", "nccl", "nbmn")
_RANKS = ("PMI_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID")


def wanted_memory(error: BaseException) -> bool:
    """Whether an error, or one that it comes from, says that there was too little memory."""
    return any(isinstance(e, MemoryError) or _is_of_gpu(e) for e in _chain(error))


def explain(error: BaseException, namespace: dict[str, Any], rank: int) -> str:
    """Say what held the memory, and let go of what the failed call held. Local.

    Parameters
    ----------
    error
        One that :func:`wanted_memory`; the variables of its traceback's functions are gone
        afterwards.
    namespace
        The user's variables.

    Raises
    ------
    Exception
        The device does not answer.
    """
    on_gpu = any(_is_of_gpu(each) for each in _chain(error))
    inside = reversed(list(_frames(error)))
    roots = [*variables(namespace), *local_variables(inside)]
    account = (_gpu_account if on_gpu else _host_account)(roots, (namespace, sys.modules))
    roots.clear()
    _let_go(error)
    released = account.used - (_pool().used if on_gpu else _resident())
    return report(replace(account, rank=rank, asked=asked(error), released=max(0, released)))


def _gpu_account(roots: list[Root], besides: tuple[Any, ...]) -> Account:
    import cupy

    device = cupy.cuda.runtime.getDevice()
    free, total = cupy.cuda.runtime.memGetInfo()
    properties = cupy.cuda.runtime.getDeviceProperties(device)
    pool = _pool()
    return Account(
        device=f"GPU {device} ({properties['name'].decode()})",
        free=free,
        total=total,
        used=pool.used,
        holders=_held(roots, GpuBlocks(cupy, device), besides),
        pool=pool,
        neighbours=_neighbours(device),
    )


def _host_account(roots: list[Root], besides: tuple[Any, ...]) -> Account:
    memory = psutil.virtual_memory()
    return Account(
        device=socket.gethostname(),
        free=memory.available,
        total=memory.total,
        used=_resident(),
        holders=_held(roots, host_block, besides),
    )


def alike(message: str) -> str:
    """An error's message without what differs by rank, so that ranks' errors are told as one."""
    return _SO_FAR.sub("", message)


def asked(error: BaseException) -> int | None:
    """Bytes that were asked for, where the error tells."""
    for each in _chain(error):
        shape, dtype = getattr(each, "shape", None), getattr(each, "dtype", None)
        if isinstance(each, MemoryError) and shape is not None and dtype is not None:
            return math.prod(shape) * dtype.itemsize  # NumPy's
        told = _ASKED.search(str(each))
        if told:
            return int(told[1].replace(",", ""))
    return None


def _is_of_gpu(error: BaseException) -> bool:
    library = defined_in(error)
    return library in _LIBRARIES and _WORDS.search(str(error)) is not None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error and those it comes from."""
    seen: set[int] = set()
    following: BaseException | None = error
    while following is not None and id(following) not in seen:
        seen.add(id(following))
        yield following
        following = following.__cause__ or following.__context__


def _frames(error: BaseException) -> Iterator[types.FrameType]:
    """Frames of functions; those of cells and modules have the user's variables."""
    for each in _chain(error):
        trace = each.__traceback__
        while trace is not None:
            if trace.tb_frame.f_locals is not trace.tb_frame.f_globals:
                yield trace.tb_frame
            trace = trace.tb_next


def _let_go(error: BaseException) -> None:
    for frame in _frames(error):
        try:
            frame.clear()
        except RuntimeError:
            continue  # it still runs: it is ours, above the cell
        frame.f_locals  # noqa: B018 - up to Python 3.12 a copy, brought up to date by the look
    gc.collect()


def _held(
    roots: list[Root], block_of: Callable[[Any], Block | None], besides: tuple[Any, ...]
) -> tuple[Holder, ...]:
    return holders(roots, block_of, chainer_parts, last=("graph",), besides=besides)


# What the system, the device's runtime and its driver say.


def _resident() -> int:
    return psutil.Process().memory_info().rss


def _pool() -> Pool:
    import cupy

    default = cupy.get_default_memory_pool()
    chosen = getattr(cupy.cuda.get_allocator(), "__self__", default)
    pool = chosen if hasattr(chosen, "n_free_blocks") else default
    try:
        blocks, limit = pool.n_free_blocks(), pool.get_limit()
    except NotImplementedError:
        # CUDA's own (MemoryAsyncPool): its limit says how much it keeps, not how much it may take.
        blocks, limit = None, 0
    return Pool(pool.used_bytes(), pool.total_bytes(), blocks, limit)


def _neighbours(device: int) -> tuple[Neighbour, ...]:
    runtime = this_gpu().runtime
    try:
        tenants = gpu_of(runtime.uuid(device), runtime.bus_id(device)).tenants()
    except DriverError:
        return ()
    if os.getpid() not in {tenant.pid for tenant in tenants}:
        return ()  # a container: these are not the pids that are known here
    return tuple(
        Neighbour(tenant.pid, tenant.used, *process(tenant.pid))
        for tenant in tenants
        if tenant.pid != os.getpid()
    )


def process(pid: int) -> tuple[str, bool]:
    """What a process is, and whether it is a rank of the same notebook."""
    try:
        other = psutil.Process(pid)
        command, variables = other.cmdline(), other.environ()
    except psutil.Error:
        return "", False
    rank = next((variables[name] for name in _RANKS if name in variables), None)
    if "nbmn.engine" not in command or rank is None:
        return " ".join(command)[:60], False
    notebook = os.environ.get(VARIABLE)
    mine = notebook is not None and variables.get(VARIABLE) == notebook
    return (f"rank {rank}", True) if mine else (f"rank {rank} of another notebook", False)
