"""The communicator that users hold."""

from __future__ import annotations

import functools
import operator
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

from nbmn.communicators import collectives, messages, objects
from nbmn.communicators.activity import collective
from nbmn.communicators.agreement import agree, prepare_together
from nbmn.communicators.composition import build, check_here
from nbmn.communicators.configuration import Configuration
from nbmn.communicators.link import Link
from nbmn.communicators.runtime import mpi
from nbmn.communicators.training import Training
from nbmn.communicators.transport import CHUNK
from nbmn.gpu.runtime import Gpu, this_gpu

if TYPE_CHECKING:
    from mpi4py import MPI

    from nbmn.communicators.world import World


class Communicator(Training):
    """Talks to the other ranks; made by :func:`create_communicator`.

    Methods are collective (all ranks must call them, in the same order) unless they
    say *local*. All of them see SIGINT at once. A communicator whose collective was
    interrupted raises BrokenCommunicatorError until ``world().renew()``; what
    cannot work with the arguments of one rank is the same error on all, and so is
    another collective than the other ranks'.

    An *array* is one of NumPy or CuPy, of any layout, size (0 included) and dtype without
    Python objects. Where one is expected, a tuple or list of arrays will do, and
    comes out as a tuple. What comes out is new memory, on the device of what went in.
    """

    @collective
    def barrier(self) -> None:
        """Return when all ranks have called it."""
        agree(self._link, "barrier")

    @collective
    def send(self, data: Any, dest: int, tag: int = 0) -> None:
        """Send an array to one rank, which must call :meth:`recv`; local, returns when it does.

        Raises
        ------
        TypeError
            Here and at ``dest``: not an array.
        ValueError
            Only here: there is no other rank ``dest``, or no such tag (0 to 32767).
        """
        messages.send(self._link, data, dest, tag)

    @collective
    def recv(self, source: int, tag: int = 0) -> Any:
        """Return the array that one rank sends by :meth:`send` with the same tag; local.

        ``MPI.ANY_SOURCE`` and ``MPI.ANY_TAG`` take what comes first.

        Raises
        ------
        TypeError
            What was to be sent was not an array.
        ValueError
            There is no such rank or tag, or an object was sent (by :meth:`send_obj`).
        """
        return messages.recv(self._link, *_pattern(source, tag))

    @collective
    def bcast(self, x: Any = None, root: int = 0) -> Any:
        """Return the root's array; what other ranks pass is ignored.

        Returns
        -------
        ``x`` itself at the root, a new array of the same shape and dtype elsewhere.

        Raises
        ------
        TypeError, ValueError
            On all ranks: the root's ``x`` is not an array, there is no such root, or the
            ranks name different ones.
        """
        return collectives.bcast(self._link, x, root)

    @collective
    def gather(self, x: Any, root: int = 0) -> tuple[Any, ...] | None:
        """Return the arrays of all ranks in rank order at the root, None elsewhere.

        Shapes may differ between ranks, dtypes may not.

        Raises
        ------
        TypeError, ValueError
            On all ranks: not an array, no such root, or ranks differ in dtype or root.
        """
        return collectives.gather(self._link, x, root)

    @collective
    def allgather(self, x: Any) -> tuple[Any, ...]:
        """Return the arrays of all ranks in rank order.

        Shapes may differ between ranks, dtypes may not.

        Raises
        ------
        TypeError, ValueError
            On all ranks: not an array, or dtypes differ.
        """
        return collectives.allgather(self._link, x)

    @collective
    def alltoall(self, xs: Sequence[Any]) -> tuple[Any, ...]:
        """Return what each rank has for this one, in rank order.

        Parameters
        ----------
        xs
            One array for each rank, or one array whose first axis is as long as there are
            ranks. Shapes may differ, dtypes may not.

        Raises
        ------
        TypeError, ValueError
            On all ranks: not arrays, not as many as ranks, or dtypes differ.
        """
        return collectives.alltoall(self._link, xs)

    @collective
    def scatter(self, xs: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return this rank's array of the root's; what other ranks pass is ignored.

        Parameters
        ----------
        xs
            At the root: one array for each rank, or one array whose first axis is as long as
            there are ranks. Shapes may differ, dtypes may not.

        Raises
        ------
        TypeError, ValueError
            On all ranks: not arrays, not as many as ranks, dtypes differ, there is no such root,
            or the ranks name different ones.
        """
        return collectives.scatter(self._link, xs, root)

    @collective
    def allreduce(self, x: Any) -> Any:
        """Return the sum over ranks, elementwise.

        Parameters
        ----------
        x
            Array of integer, real or complex numbers, of the same shape and dtype on all
            ranks. Integers wrap around as in NumPy; float16 is summed in float32 and
            rounded once.

        Returns
        -------
        A new array of the shape and dtype of ``x``, on the device of ``x``.

        Raises
        ------
        MismatchError
            On all ranks: shapes or dtypes differ between ranks.
        TypeError
            On all ranks: not an array, or not of numbers (dates, texts, truth values).
        """
        return collectives.allreduce(self._link, self._parts.arrays, x)

    @collective
    def send_obj(self, obj: Any, dest: int, tag: int = 0) -> None:
        """Send an object to one rank, which must call :meth:`recv_obj`; local.

        Returns when it is being received, or earlier where it is short.

        Raises
        ------
        TypeError
            Here and at ``dest``: it cannot be pickled.
        ValueError
            Only here: there is no other rank ``dest``, or no such tag (0 to 32767).
        """
        messages.send_obj(self._link, obj, dest, tag)

    @collective
    def recv_obj(
        self, source: int, status: MPI.Status | None = None, tag: int | None = None
    ) -> Any:
        """Return the object that one rank sends by :meth:`send_obj`; local.

        Parameters
        ----------
        source
            Its rank; ``MPI.ANY_SOURCE`` takes what comes first.
        status
            Is told source and tag.
        tag
            None or ``MPI.ANY_TAG`` for any.

        Raises
        ------
        TypeError
            What was to be sent cannot be pickled.
        ValueError
            There is no such rank or tag, or an array was sent (by :meth:`send`).
        """
        payload = messages.recv_obj(self._link, *_pattern(source, tag), status)
        self.track.end()  # who looks from outside must not think that it still waits
        return objects.load(payload)

    @collective
    def bcast_obj(self, obj: Any = None, max_buf_len: int = CHUNK, root: int = 0) -> Any:
        """Return the root's object, pickled, in messages of ``max_buf_len`` bytes at most.

        Returns
        -------
        ``obj`` itself at the root. Large arrays in it go without another copy.

        Raises
        ------
        TypeError, ValueError
            On all ranks: the object cannot be pickled, there is no such root, or the ranks
            name different ones.
        """
        payload, error = None, None
        try:
            root = collectives.check_root(self._link, root)
            if operator.index(max_buf_len) < 1:
                raise ValueError(f"max_buf_len must be positive, not {max_buf_len}")
            payload = objects.dump(obj) if self.rank == root else None
        except (TypeError, ValueError) as caught:
            error = caught
        agree(self._link, "bcast_obj", f"from root {root}, in {max_buf_len} bytes", error)
        got = objects.bcast(self._link, payload, root, max_buf_len)
        return obj if self.rank == root else got

    @collective
    def gather_obj(self, obj: Any, root: int = 0) -> list[Any] | None:
        """Return the objects of all ranks in rank order at the root, None elsewhere.

        Raises
        ------
        TypeError, ValueError
            On all ranks: an object cannot be pickled, there is no such root, or the ranks
            name different ones.
        """
        payload, error = None, None
        try:
            root = collectives.check_root(self._link, root)
            payload = objects.dump(obj)
        except (TypeError, ValueError) as caught:
            error = caught
        agree(self._link, "gather_obj", f"to root {root}", error)
        return objects.gather_dumped(self._link, payload, root)

    @collective
    def allgather_obj(self, obj: Any) -> list[Any]:
        """Return the objects of all ranks in rank order.

        Raises
        ------
        TypeError
            On all ranks: an object cannot be pickled.
        """
        return self._allgather("allgather_obj", obj)

    @collective
    def allreduce_obj(self, obj: Any) -> Any:
        """Return the sum (``+``) of the objects of all ranks, in rank order.

        Raises
        ------
        TypeError
            On all ranks: an object cannot be pickled, or two cannot be added.
        """
        return functools.reduce(operator.add, self._allgather("allreduce_obj", obj))

    def _allgather(self, operation: str, obj: Any) -> list[Any]:
        payload = prepare_together(self._link, operation, lambda: objects.dump(obj))
        return objects.allgather_dumped(self._link, payload)

    @collective
    def split(self, color: int | None, key: int) -> Communicator | None:
        """Return a communicator among the ranks with the same color, ordered by key.

        It has the name, timeout and configuration of this one.

        Parameters
        ----------
        color
            A number from 0 on; None (or ``MPI.UNDEFINED``) takes part without joining
            any, and returns None.
        key
            Ranks with equal keys keep their order.

        Raises
        ------
        TypeError, ValueError
            On all ranks: ``color`` or ``key`` of one is no such number.
        """
        error = None
        try:
            color, key = _color(color), _int32("key", key)
        except (TypeError, ValueError) as caught:
            error = caught
        agree(self._link, "split", None, error)
        link = self._world.split(self._link, color, key)
        if link is None:
            return None
        hosts = [self._hosts[self._link.members.index(member)] for member in link.members]
        return compose(self._world, link, hosts, self.name, self._config.copy(), self._parts.gpu)


def compose(
    world: World,
    link: Link,
    hosts: Sequence[Hashable],
    name: str,
    config: Configuration | None = None,
    gpu: Gpu | None = None,
) -> Communicator:
    """Put a communicator together; collective over ``link``.

    Parameters
    ----------
    hosts
        The host of each rank, in rank order; the same on all.
    gpu
        By what devices are used; None for CuPy.

    Raises
    ------
    ValueError
        On all ranks: it cannot work on these hosts.
    """
    check_here(name, hosts)
    parts = build(world, link, hosts, name, gpu or this_gpu())
    return Communicator(world, link, hosts, name, parts, config or Configuration())


def _pattern(source: int, tag: int | None) -> tuple[int | None, int | None]:
    MPI = mpi()
    return (
        None if source == MPI.ANY_SOURCE else source,
        None if tag is None or tag == MPI.ANY_TAG else tag,
    )


def _color(color: int | None) -> int | None:
    if color is None or color == mpi().UNDEFINED:
        return None
    if _int32("color", color) < 0:
        raise ValueError(f"color must not be negative, but is {color}")
    return operator.index(color)


def _int32(what: str, value: int) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{what} must be an integer, not {value!r}") from None
    if not -(2**31) <= number < 2**31:
        raise ValueError(f"{what} must fit into 32 bits, but is {number}")
    return number
