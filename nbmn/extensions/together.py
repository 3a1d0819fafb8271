"""An exception on one rank becomes an error on all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmn.communicators import Communicator


@contextmanager
def together(comm: Communicator, operation: str) -> Iterator[None]:
    """Run the body, which must not communicate, and leave it only when all ranks do; collective.

    Raises
    ------
    Exception
        Where the body raised it; elsewhere an error that names the rank and quotes it.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as caught:  # noqa: BLE001 - re-raised, on all ranks
        error = caught
    try:
        comm.agree(operation, error=error)
    except Exception:
        if error is None:
            raise
    if error is not None:
        raise error  # the original, with its traceback and cause, where it happened


def at_root(comm: Communicator, operation: str, root: int, function: Callable[[], Any]) -> Any:
    """Return on all ranks what ``function`` returns at the root; collective."""
    result = None
    with together(comm, operation):
        if comm.rank == root:
            result = function()
    return comm.bcast_obj(result, root=root)
