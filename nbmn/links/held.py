"""How a link holds a communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


class Held:
    """A communicator that copies of a link share, and that a pickle of it leaves behind."""

    def __init__(self, comm: Communicator | None = None) -> None:
        self._comm = comm

    def get(self) -> Communicator:
        """Return it.

        Raises
        ------
        RuntimeError
            The link was pickled, maybe in another process.
        """
        if self._comm is None:
            raise RuntimeError(
                "this link was unpickled, and a communicator belongs to its process: "
                "give the link one of this process before it is used to train"
            )
        return self._comm

    def __deepcopy__(self, memo: dict[int, Any]) -> Held:
        return self

    def __reduce__(self) -> Any:
        return Held, ()


class HeldCommunicator:
    """The attribute of a link that is such a communicator."""

    def __get__(self, link: Any, owner: type | None = None) -> Communicator:
        return self if link is None else link._held.get()  # type: ignore[return-value]

    def __set__(self, link: Any, comm: Communicator) -> None:
        link._held = Held(comm)
