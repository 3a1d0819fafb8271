"""Makes communicators by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nbmn.communicators.activity import collective
from nbmn.communicators.agreement import agree
from nbmn.communicators.communicator import Communicator, compose
from nbmn.communicators.composition import check
from nbmn.communicators.configuration import Configuration
from nbmn.communicators.topology import host_identity
from nbmn.communicators.world import World, world
from nbmn.gpu.runtime import this_gpu

if TYPE_CHECKING:
    from mpi4py import MPI

_OPTIONS = ("allreduce_grad_dtype", "batched_copy", "timeout")


def create_communicator(
    communicator_name: str = "auto", mpi_comm: MPI.Comm | None = None, **kwargs: Any
) -> Communicator:
    """Make a communicator; collective over the ranks of ``mpi_comm``.

    Names differ in how gradients are averaged:

    ``auto``
        The fastest of the others that works where it runs.
    ``naive``, ``flat``, ``non_cuda_aware``
        All ranks alike, through host memory and MPI.
    ``shared_memory``, ``single_node``
        In memory that all ranks share; they must be on one host.
    ``hierarchical``
        On each host, then between the hosts' first ranks.
    ``two_dimensional``
        In shards: on each host, then between ranks of equal place on their hosts.
    ``dummy``
        Not at all: to measure how long the rest takes.
    ``pure_nccl``
        What is on GPUs by NCCL, which ``auto`` does too where it can; raises where there is no
        NCCL or no GPU.

    With all but ``dummy``, what is on GPUs and cannot go by NCCL (because two ranks use one GPU,
    say) is packed there and copied through host memory as a whole; with ``naive`` and ``flat`` on
    one host only if MPI cannot be given such memory, which is tried in processes of its own. With
    these, ``auto`` and ``pure_nccl``, sums of arrays go the same way as gradients.

    Parameters
    ----------
    communicator_name
        One of the above, the same on all ranks.
    mpi_comm
        An mpi4py communicator whose ranks take part; None for all. It is duplicated.
    allreduce_grad_dtype
        dtype to which gradients are rounded before they are averaged: float16, float32,
        float64, None for their own, and for gradients on GPUs bfloat16 (with ml_dtypes). By NCCL
        they are also added in it, divided beforehand; elsewhere float16 is added in float32.
    batched_copy
        Accepted and without effect: gradients are always packed together.
    timeout
        Seconds to wait for the other ranks in one call, None for ever; see
        :attr:`Communicator.timeout`.

    Raises
    ------
    ValueError
        On all ranks: the name is unknown or cannot work here (the message says why), an option
        cannot be had, or the ranks do not ask for the same.
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
        config = None
        try:
            check(name, this_gpu())
            config = _configuration(options)
        except (TypeError, ValueError) as caught:
            error = caught
        link, hosts = self.world.open_link(mpi_comm, host_identity())
        statement = (name, None if config is None else tuple(sorted(config.all().items())))
        agree(link, "create_communicator", str(statement), error)
        return compose(self.world, link, hosts, name, config)


def _configuration(options: dict[str, Any]) -> Configuration:
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise TypeError(f"create_communicator got unknown options: {', '.join(unknown)}")
    return Configuration(options)
