"""The communicator that users hold."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.communicators import models, objects, scattering, transport
from nbmn.communicators.activity import collective
from nbmn.communicators.agreement import Vote, agree
from nbmn.communicators.arrays import is_array, on_device, summing_dtype, to_device, to_host
from nbmn.communicators.backend import HostBackend
from nbmn.communicators.link import Link
from nbmn.communicators.topology import Topology, host_identity, locate
from nbmn.communicators.transport import CHUNK

if TYPE_CHECKING:
    from chainer import Link as Model
    from mpi4py import MPI

    from nbmn.communicators.backend import Backend
    from nbmn.communicators.world import World


class Communicator:
    """Talks to the other ranks; made by :func:`create_communicator`.

    Methods are collective (all ranks must call them, in the same order) unless they
    say *local*. All of them see SIGINT at once. A communicator whose collective was
    interrupted raises BrokenCommunicatorError until ``world().renew()``; what
    cannot work with the arguments of one rank is the same error on all.
    """

    def __init__(
        self, world: World, link: Link, backend: Backend, topology: Topology, name: str
    ) -> None:
        self._world = world
        self._link = link
        self._backend = backend
        self._topology = topology
        self.name = name
        self.track = world.track

    def __repr__(self) -> str:
        state = f", {self._link.broken}" if self._link.broken else ""
        return f"<Communicator {self.name!r}: rank {self.rank} of {self.size}{state}>"

    @property
    def rank(self) -> int:
        """This process among the ranks of this communicator; local."""
        return self._link.rank

    @property
    def size(self) -> int:
        """How many ranks; local."""
        return self._link.size

    @property
    def intra_rank(self) -> int:
        """This process among the ranks on its host; local."""
        return self._topology.intra_rank

    @property
    def intra_size(self) -> int:
        """How many ranks are on this host; local."""
        return self._topology.intra_size

    @property
    def inter_rank(self) -> int:
        """This host among the hosts; local."""
        return self._topology.inter_rank

    @property
    def inter_size(self) -> int:
        """How many hosts; local."""
        return self._topology.inter_size

    @property
    def mpi_comm(self) -> MPI.Comm:
        """The MPI communicator underneath, until the next renewal; local."""
        return self._link.comm

    @property
    def broken(self) -> str | None:
        """How it broke, or None if it can be used; local."""
        return self._link.dirty

    @property
    def timeout(self) -> float | None:
        """Seconds to wait for the other ranks in one collective, None for ever; local.

        A collective that waits longer raises CollectiveTimeoutError and breaks the communicator.
        """
        return self._link.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._link.timeout = seconds

    def __reduce__(self) -> Any:
        raise TypeError("a communicator belongs to its process and cannot be pickled")

    def __deepcopy__(self, memo: dict[int, Any]) -> Communicator:
        return self  # a copied model talks to the same ranks

    @collective
    def barrier(self) -> None:
        """Return when all ranks have called it."""
        transport.barrier(self._link)

    @collective
    def allreduce(self, x: Any) -> Any:
        """Return the sum over ranks.

        Parameters
        ----------
        x
            Array of integer, real or complex numbers, of the same shape and dtype on all
            ranks. float16 is summed in float32 and rounded once.

        Returns
        -------
        A new array of the shape and dtype of ``x``, on the device of ``x``.

        Raises
        ------
        MismatchError
            On all ranks: shapes or dtypes differ between ranks.
        TypeError
            On all ranks: not an array, or not of numbers.
        """
        error: Exception | None = None
        total = statement = None
        try:
            _require_array("allreduce", x)
            host = to_host(x)
            wide = summing_dtype(host.dtype)
            statement = (host.shape, host.dtype.str)
            # A flat copy: whatever the layout of x, MPI gets contiguous native numbers.
            total = np.array(host, wide, order="C", copy=True)
        except TypeError as caught:
            error = caught
        agree(self._link, "allreduce", statement, error)
        assert total is not None
        self._backend.sum(total.reshape(-1))
        result = total.astype(x.dtype, copy=False)
        return to_device(result) if on_device(x) else result

    @collective
    def bcast(self, x: Any = None, root: int = 0) -> Any:
        """Return the root's array; what other ranks pass is ignored.

        Returns
        -------
        ``x`` itself at the root, a new array of the same shape and dtype elsewhere.

        Raises
        ------
        TypeError
            On all ranks: the root's ``x`` is no array, or one of Python objects.
        """
        host, meta = None, None
        if self.rank == root:
            try:
                _require_array("bcast", x)
                host = to_host(x)
                # ascontiguousarray would turn 0-d into 1-d.
                host = np.array(host, order="C", copy=None)
                meta = (host.shape, host.dtype, on_device(x))
            except TypeError as caught:
                meta = str(caught)
        meta = objects.bcast(self._link, meta, root)
        if isinstance(meta, str):
            raise TypeError(f"on rank {root}: {meta}")
        shape, dtype, device = meta
        if host is None:
            host = np.empty(shape, dtype)
        transport.bcast_in_place(self._link, host, root)
        if self.rank == root:
            return x
        return to_device(host) if device else host

    @collective
    def bcast_obj(self, obj: Any = None, max_buf_len: int = CHUNK, root: int = 0) -> Any:
        """Return the root's object, pickled in messages of ``max_buf_len`` bytes at most.

        Raises
        ------
        TypeError
            On all ranks: the object cannot be pickled.
        """
        return objects.bcast(self._link, obj, root, max_buf_len)

    @collective
    def gather_obj(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks in rank order at the root, None elsewhere.

        Raises
        ------
        TypeError
            On all ranks: an object cannot be pickled.
        """
        return objects.gather(self._link, obj, root)

    @collective
    def allgather_obj(self, obj: Any) -> list[Any]:
        """Return the objects of all ranks in rank order.

        Raises
        ------
        TypeError
            On all ranks: an object cannot be pickled.
        """
        return objects.allgather(self._link, obj)

    @collective
    def allreduce_obj(self, obj: Any) -> Any:
        """Return the sum (``+``) of the objects of all ranks, in rank order."""
        first, *others = objects.allgather(self._link, obj)
        for other in others:
            first = first + other
        return first

    @collective
    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object to one rank, which must call ``recv_obj``; returns when it has."""
        objects.send(self._link, obj, dest, tag)

    @collective
    def recv_obj(self, source: int, tag: int = 0) -> Any:
        """Return the object that one rank sends by ``send_obj`` with the same tag."""
        return objects.recv(self._link, source, tag)

    @collective
    def bcast_data(self, model: Model) -> None:
        """Give the model the values that it has on rank 0.

        Parameters that rank 0 has not initialised come from the lowest rank that has;
        they are initialised where they are not.

        Raises
        ------
        MismatchError
            On all ranks: the parameters differ in name, shape or dtype.
        """
        models.broadcast(self._link, self._backend, model)

    def broadcast_data(self, model: Model) -> None:
        """The older name of :meth:`bcast_data`."""
        self.bcast_data(model)

    @collective
    def multi_node_mean_grad(self, model: Model, zero_fill: bool = False) -> None:
        """Replace each gradient of the model by its mean over ranks.

        A gradient that is None on some ranks counts as zero there, and all ranks get the
        mean. float16 is averaged in float32 and rounded once.

        Parameters
        ----------
        model
            With the same parameters on all ranks.
        zero_fill
            What to do with gradients that are None on all ranks: leave them (False), or
            make them zeros (True). Parameters that are not initialised are left.

        Raises
        ------
        MismatchError
            On all ranks: the parameters differ in name, shape or dtype, or some are initialised
            on some ranks only.
        """
        models.average(self._link, self._backend, model, zero_fill)

    def allreduce_grad(self, model: Model, zero_fill: bool = False) -> None:
        """The older name of :meth:`multi_node_mean_grad`."""
        self.multi_node_mean_grad(model, zero_fill)

    @collective
    def replace_data(self, model: Model) -> bool:
        """Like :meth:`bcast_data`; return whether a value this rank had was a different one."""
        return models.broadcast(self._link, self._backend, model)

    @collective
    def average_gradients(
        self,
        model: Model,
        zero_fill: bool,
        *,
        stale: bool = False,
        share: models.Share | None = None,
    ) -> models.Averaged:
        """Like :meth:`multi_node_mean_grad`, for optimizers.

        Parameters
        ----------
        stale
            This rank's parameters are not those that were last broadcast: nothing is averaged on
            any rank, and STALE returned on all.
        share
            Whose gradients count; None for all ranks'.
        """
        return models.average(
            self._link, self._backend, model, zero_fill, stale=stale, share=share, lenient=True
        )

    @collective
    def count_ranks(self, counts: bool) -> models.Share:
        """Return on how many ranks ``counts`` is true."""
        return models.count_ranks(self._link, counts)

    @collective
    def scatter_parts(
        self,
        operation: str,
        make: Callable[[], Sequence[Callable[[], Any]]],
        root: int = 0,
        max_buf_len: int = CHUNK,
        remedy: str = "",
    ) -> Any:
        """Return this rank's part of what the root makes.

        Parameters
        ----------
        operation
            Its name in errors.
        make
            Called at the root; returns one function per rank, each of which makes a part.
        max_buf_len
            Longest single message in bytes.
        remedy
            What the error says to do about a part that cannot be pickled.

        Raises
        ------
        Exception
            On all ranks: the root cannot make a part, or it cannot be pickled.
        """
        return scattering.scatter(self._link, operation, make, root, max_buf_len, remedy)

    @collective
    def agree(self, operation: str, statement: Any = None, error: Exception | None = None) -> None:
        """Return if no rank has an error and all make the same (hashable) statement.

        Raises
        ------
        MismatchError
            On all ranks: the statements differ.
        Exception
            On all ranks: the error of the lowest rank that has one.
        """
        agree(self._link, operation, statement, error)

    @collective
    def any_rank(self, flag: bool) -> bool:
        """Say whether ``flag`` is true on any rank."""
        return Vote(self._link, "any_rank", flag=flag).outcome().flagged

    @collective
    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return a communicator among the ranks with the same color, ordered by key.

        None as color takes part without joining any; it returns None.
        """
        link = self._world.split(self._link, color, key)
        if link is None:
            return None
        return compose(self._world, link, objects.allgather(link, host_identity()), self.name)


def compose(world: World, link: Link, hosts: list[str], name: str) -> Communicator:
    """Put a communicator together over a link; local."""
    return Communicator(world, link, HostBackend(link), locate(hosts, link.rank), name)


def _require_array(operation: str, x: Any) -> None:
    if not is_array(x):
        raise TypeError(f"{operation} takes an array, not {type(x).__name__}")
    if x.dtype.hasobject:
        raise TypeError(f"{operation} takes an array of numbers, not of Python objects")
