"""Makes an engine a rank: imports, device, communicator, namespace, reporter."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import sys
from typing import Any

from nbmn.messages import Endpoint, RankInfo


def prepare() -> None:
    """Import what every rank needs, before the engine reports itself ready."""
    from nbmn.engine.streams import CurrentStdout

    with contextlib.redirect_stdout(CurrentStdout()):
        import chainer  # noqa: F401
    from mpi4py import MPI  # noqa: F401

    import nbmn.compat.chainermn  # noqa: F401 - a script in a cell says `import chainermn`

    if sys.modules.get("debugpy", ...) is None:
        del sys.modules["debugpy"]  # kept out of the start only; the user may want it
    gc.enable()
    gc.freeze()


def bind_device(local_rank: int, share: bool) -> tuple[str, Any]:
    """Give this rank its GPU, if CuPy sees any. Local.

    Returns
    -------
    tuple
        The device's name and the array module (``cupy`` or ``numpy``).

    Raises
    ------
    RuntimeError
        This host has more ranks than GPUs and sharing was not allowed.
    """
    import numpy

    try:
        import cupy

        count = cupy.cuda.runtime.getDeviceCount()
    except ImportError:
        return "CPU", numpy
    except cupy.cuda.runtime.CUDARuntimeError:  # CuPy without a driver or a GPU
        return "CPU", numpy
    if count == 0:
        return "CPU", numpy
    if local_rank >= count and not share:
        raise RuntimeError(
            f"local rank {local_rank} has no GPU of its own: {socket.gethostname()} has {count}. "
            "Start fewer ranks, or allow sharing with --share-gpus"
        )
    index = local_rank % count
    cupy.cuda.Device(index).use()
    name = cupy.cuda.runtime.getDeviceProperties(index)["name"].decode()
    return f"GPU {index} ({name})", cupy


def become_rank(endpoint: Endpoint, share_gpus: bool) -> RankInfo:
    """Turn this engine into an MPI rank ready for cells. Collective.

    Puts ``comm``, ``nbmn``, ``chainer``, ``np`` and ``xp`` (and ``cupy`` on a
    GPU) into the user's namespace.
    """
    import chainer
    import numpy
    from IPython import get_ipython
    from mpi4py import MPI

    import nbmn
    from nbmn.communicators import world
    from nbmn.compat.text_bars import use_text_bars
    from nbmn.engine.blackbox import install
    from nbmn.engine.cells import prepare_shell
    from nbmn.engine.gpu_watch import watch_gpu
    from nbmn.engine.leaving import leaving
    from nbmn.engine.lifeline import lifeline
    from nbmn.engine.reporter import reporter
    from nbmn.engine.shared_files import forget_names
    from nbmn.engine.tracing import Tracer
    from nbmn.engine.transfer import channel
    from nbmn.engine.where import Lookout
    from nbmn.gpu.runtime import this_gpu
    from nbmn.parent import VARIABLE, Parent

    comm = nbmn.create_communicator()
    channel()
    forget_names()
    device, xp = bind_device(comm.intra_rank, share_gpus)
    shell = get_ipython()
    prepare_shell(shell)
    use_text_bars()
    names = {"comm": comm, "nbmn": nbmn, "chainer": chainer, "np": numpy, "xp": xp}
    if xp is not numpy:
        names["cupy"] = xp
    shell.user_ns.update(names)

    line = reporter()
    line.lookout, line.tracer = Lookout(world()), Tracer(world())
    line.connect(comm.rank, endpoint, expect_pings=not _notebook_is_here(VARIABLE, Parent))
    if xp is not numpy:
        runtime = this_gpu().runtime
        current = runtime.current_device()
        watch_gpu(line, runtime.uuid(current), runtime.bus_id(current))
    box = install()
    leaving().watch(MPI.COMM_WORLD.Dup(), box)
    return RankInfo(
        rank=comm.rank,
        size=comm.size,
        local_rank=comm.intra_rank,
        host=socket.gethostname(),
        pid=os.getpid(),
        device=device,
        mpi=_library(MPI.Get_library_version()),
        box=box,
        lifeline=lifeline(),
    )


def _notebook_is_here(variable: str, parent: Any) -> bool:
    text = os.environ.get(variable)
    return bool(text) and parent.decode(text).is_local


def _library(version: str) -> str:
    """Name and number out of MPI's multi-line version text."""
    words = version.replace(":", " ").replace(",", " ").replace("Version", " ").split()
    if words[:1] == ["MPICH"]:
        return f"MPICH {words[1]}"
    if words[:2] == ["Open", "MPI"]:
        return f"Open MPI {words[2].removeprefix('v')}"
    return " ".join(words[:3])


def renew_communicators(ticket: int) -> None:
    """Make every live communicator usable again after a failed cell. Collective.

    ``ticket`` rises from call to call, see :meth:`nbmn.communicators.world.World.renew`.

    Raises
    ------
    RuntimeError
        The user's code has ended MPI.
    """
    from mpi4py import MPI

    from nbmn.communicators import world

    if MPI.Is_finalized():
        raise RuntimeError("a cell has called MPI.Finalize()")
    world().renew(ticket)
