"""What a communicator is, apart from what it does: ranks, hosts, state, settings."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from nbmn.communicators.composition import Composition
from nbmn.communicators.configuration import Configuration
from nbmn.communicators.link import Link
from nbmn.communicators.topology import locate

if TYPE_CHECKING:
    from mpi4py import MPI

    from nbmn.communicators.world import World


class Group:
    """The ranks of a communicator; everything here is local."""

    def __init__(
        self,
        world: World,
        link: Link,
        hosts: Sequence[Hashable],
        name: str,
        parts: Composition,
        config: Configuration,
    ) -> None:
        self._world = world
        self._link = link
        self._hosts = tuple(hosts)
        self._topology = locate(hosts, link.rank)
        self._parts = parts
        self._config = config
        self._in_config_scope = False
        self.name = name
        self.track = world.track
        self._apply()
        for own, value in config.own().items():
            object.__setattr__(self, own, value)

    def __repr__(self) -> str:
        state = f", {self._link.broken}" if self._link.broken else ""
        kind = "" if self._parts.kind == self.name else f" ({self._parts.kind})"
        return f"<Communicator {self.name!r}{kind}: rank {self.rank} of {self.size}{state}>"

    @property
    def rank(self) -> int:
        """This process among the ranks of this communicator."""
        return self._link.rank

    @property
    def size(self) -> int:
        """How many ranks."""
        return self._link.size

    @property
    def intra_rank(self) -> int:
        """This process among the ranks on its host."""
        return self._topology.intra_rank

    @property
    def intra_size(self) -> int:
        """How many ranks are on this host."""
        return self._topology.intra_size

    @property
    def inter_rank(self) -> int:
        """This host among the hosts."""
        return self._topology.inter_rank

    @property
    def inter_size(self) -> int:
        """How many hosts."""
        return self._topology.inter_size

    def is_within(self, other: Group) -> bool:
        """Say whether all ranks of this communicator are in another one too."""
        return set(self._link.members) <= set(other._link.members)

    @property
    def mpi_comm(self) -> MPI.Comm:
        """The MPI communicator underneath, until the next renewal."""
        return self._link.comm

    @property
    def broken(self) -> str | None:
        """How it broke, or None if it can be used."""
        return self._link.dirty

    @property
    def timeout(self) -> float | None:
        """Seconds to wait for the other ranks in one collective, None for ever.

        A collective that waits longer raises CollectiveTimeoutError and breaks the communicator.
        The error says which ranks have not come, and where they are instead; where ranks are on
        several hosts it asks them for that, which takes 2.5 s at most. Where it is certain that
        ranks of this host wait for each other's messages for ever, they raise it without a timeout
        too.
        """
        return self._link.timeout

    @timeout.setter
    def timeout(self, seconds: float | None) -> None:
        self._config.set("timeout", seconds)
        self._apply()

    def _apply(self) -> None:
        self._link.timeout = self._config.get("timeout")
        self._link.verify = self._config.get("verify")

    def set_config(self, name: str, value: Any = True, **kwargs: Any) -> None:
        """Set a value of this communicator; what is split off it later gets the same.

        Parameters
        ----------
        name
            ``allreduce_grad_dtype``: dtype to which gradients are rounded before they are
            averaged (float16, float32, float64, and for gradients on GPUs bfloat16), None for
            their own; the same on all ranks.
            ``batched_copy``: accepted and without effect, gradients are always packed together.
            ``timeout``: see :attr:`timeout`. ``verify``: compare every call across ranks before
            data moves; to be set on all ranks.

        Raises
        ------
        ValueError
            There is no such name, or the value cannot be had.
        TypeError
            Other keywords were given.
        """
        if kwargs:
            raise TypeError(f"set_config got unknown options: {', '.join(sorted(kwargs))}")
        self._config.set(name, value)
        self._apply()

    def get_config(self, name: str | None = None) -> Any:
        """Return a value of this communicator, or without a name all in a dict.

        Raises
        ------
        KeyError
            There is no such name.
        """
        return self._config.all() if name is None else self._config.get(name)

    @property
    def within_config_scope(self) -> bool:
        """The caller is in a :meth:`config_scope`."""
        return self._in_config_scope

    @contextmanager
    def config_scope(self) -> Iterator[None]:
        """While it is entered, attributes that are set become configuration values too."""
        before = self._in_config_scope
        self._in_config_scope = True
        try:
            yield
        finally:
            object.__setattr__(self, "_in_config_scope", before)

    def __setattr__(self, name: str, value: Any) -> None:
        if getattr(self, "_in_config_scope", False) and not name.startswith("_"):
            self._config.put(name, value)
        object.__setattr__(self, name, value)

    @property
    def allreduce_grad_dtype(self) -> Any:
        """The configuration value of this name."""
        return self._config.get("allreduce_grad_dtype")

    @allreduce_grad_dtype.setter
    def allreduce_grad_dtype(self, value: Any) -> None:
        self._config.set("allreduce_grad_dtype", value)

    @property
    def batched_copy(self) -> bool:
        """The configuration value of this name."""
        return self._config.get("batched_copy")

    @batched_copy.setter
    def batched_copy(self, value: bool) -> None:
        self._config.set("batched_copy", value)

    def finalize(self) -> None:
        """Let go of everything; any later use raises BrokenCommunicatorError. May be repeated.

        To be called on all ranks; its MPI communicators are freed when all have called it,
        the next time that one is made or renewed.
        """
        for link in (self._link, *self._parts.links):
            self._world.release(link)
        self._parts.gradients.close()
        self._parts.arrays.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            "a communicator belongs to its process and cannot be pickled; save what holds it, such "
            "as an optimizer, with chainer.serializers"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> Group:
        return self  # a copied model talks to the same ranks
