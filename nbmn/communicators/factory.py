"""Makes communicators by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmn.communicators.activity import collective
from nbmn.communicators.agreement import agree
from nbmn.communicators.communicator import Communicator, compose
from nbmn.communicators.topology import host_identity
from nbmn.communicators.world import World, world

if TYPE_CHECKING:
    from mpi4py import MPI

_HOST = frozenset({"auto", "naive", "flat"})
_NOT_YET = {
    "dummy": "it only measures what remains without communication",
    "hierarchical": "it needs a backend per host and one between hosts",
    "non_cuda_aware": "it needs a backend for GPUs",
    "pure_nccl": "it needs the NCCL backend",
    "shared_memory": "it needs the shared-memory backend",
    "single_node": "it needs the NCCL backend",
    "two_dimensional": "it needs a backend per host and one between hosts",
}


def create_communicator(
    communicator_name: str = "auto", mpi_comm: MPI.Comm | None = None, **kwargs: Any
) -> Communicator:
    """Make a communicator; collective over the ranks of ``mpi_comm``.

    Parameters
    ----------
    communicator_name
        ``auto`` takes the fastest that works where it runs. ``naive`` and ``flat`` average
        through host memory and MPI.
    mpi_comm
        An mpi4py communicator whose ranks take part; None for all. It is duplicated.
    allreduce_grad_dtype
        dtype in which gradients travel. None: their own, and float32 for float16.
    batched_copy
        Accepted and without effect: gradients are always packed.

    Raises
    ------
    ValueError
        On all ranks: the name is unknown or cannot work here (the message says why), an option
        cannot be had with it, or the ranks do not name the same.
    TypeError
        On all ranks: an unknown option.
    """
    return _Maker(world()).create_communicator(communicator_name, mpi_comm, kwargs)


class _Maker:
    def __init__(self, world: World) -> None:
        self.world = world
        self.track = world.track

    @collective
    def create_communicator(
        self, name: str, mpi_comm: MPI.Comm | None, options: dict[str, Any]
    ) -> Communicator:
        error: Exception | None = None
        try:
            _check(name, dict(options))
        except (TypeError, ValueError) as caught:
            error = caught
        link, hosts = self.world.open_link(mpi_comm, host_identity())
        statement = (name, tuple(sorted((key, str(value)) for key, value in options.items())))
        agree(link, "create_communicator", statement, error)
        return compose(self.world, link, hosts, name)


def _check(name: str, options: dict[str, Any]) -> None:
    if name in _NOT_YET:
        raise ValueError(
            f"communicator {name!r} does not exist in this version: {_NOT_YET[name]}; "
            "use 'auto' or 'naive'"
        )
    if name not in _HOST:
        raise ValueError(f"unknown communicator {name!r}; there are {', '.join(sorted(_HOST))}")
    options.pop("batched_copy", None)
    dtype = options.pop("allreduce_grad_dtype", None)
    if dtype is not None:
        raise ValueError(f"communicator {name!r} cannot choose allreduce_grad_dtype ({dtype})")
    if options:
        raise TypeError(f"create_communicator got unknown options: {', '.join(sorted(options))}")
