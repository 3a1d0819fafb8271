"""Wraps what a training loop uses, so that a fault strikes in it.

A wrapper passes everything on to what it wraps; only the calls that count as steps go
through the fault first.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nbmn.debug.faults import Fault

_GRADIENTS = ("average_gradients", "multi_node_mean_grad", "allreduce_grad")
_VALUES = ("bcast_data", "broadcast_data", "replace_data")
OPERATIONS = frozenset(
    {
        *("allreduce", "bcast", "gather", "allgather", "alltoall", "scatter", "barrier"),
        *("allreduce_obj", "bcast_obj", "gather_obj", "allgather_obj"),
        *("send", "recv", "send_obj", "recv_obj"),
        *_GRADIENTS,
        *_VALUES,
    }
)
"""Methods of a communicator that count as steps."""


class Skipped(Exception):
    """Raised by a fault in order that its wrapper does nothing."""


def inject(target: Any, fault: Fault, operation: str | None = None) -> Any:
    """Wrap ``target`` so that a fault strikes in it; local, to be called on all ranks.

    Parameters
    ----------
    target
        A communicator: its collectives and messages count as steps, and faults that change
        arrays change what is passed. An optimizer: updates; what is passed to the loss
        function. An iterator: batches; the batch. A dataset: examples that are read; the example.
    operation
        Of a communicator, the method that counts, such as ``allreduce``; ``gradients`` for the
        averaging of gradients, however it is called. All of them by default.

    Raises
    ------
    TypeError
        ``target`` is nothing of these, ``fault`` is none, or it cannot strike in the target.
    ValueError
        There is no such operation.
    """
    if not hasattr(fault, "meet"):
        what = f"the function {fault.__name__}" if inspect.isfunction(fault) else repr(fault)
        raise TypeError(
            f"{what} is no fault; make one, as in "
            "faults.inject(comm, faults.raising(rank=1, at_step=3))"
        )
    if operation is not None and not hasattr(target, "allreduce"):
        raise TypeError(f"operation goes with a communicator, not with a {type(target).__name__}")
    if hasattr(target, "allreduce"):
        return FaultyCommunicator(target, fault, _operations(operation))
    if hasattr(target, "update") and hasattr(target, "setup"):
        return FaultyOptimizer(target, fault)
    if fault.skips:
        raise TypeError(
            f"skipping strikes in a communicator or an optimizer, not in a {type(target).__name__}"
        )
    if hasattr(target, "__next__"):
        from nbmn.debug.faulty_iterator import FaultyIterator

        return FaultyIterator(target, fault)
    if hasattr(target, "__getitem__") and hasattr(target, "__len__"):
        return FaultyDataset(target, fault)
    raise TypeError(
        f"a {type(target).__name__} is no communicator, optimizer, iterator or dataset; "
        "call the fault in the loop instead"
    )


def _operations(name: str | None) -> frozenset[str]:
    if name is None:
        return OPERATIONS
    if name in ("gradients", *_GRADIENTS):
        return frozenset(_GRADIENTS)
    if name not in OPERATIONS:
        names = ", ".join(sorted(OPERATIONS))
        raise ValueError(f"no operation {name!r}; there are gradients, {names}")
    return frozenset({name})


class Wrapper:
    """Passes on what it does not define, reading and writing."""

    def __init__(self, actual: Any, fault: Fault) -> None:
        object.__setattr__(self, "_actual", actual)
        object.__setattr__(self, "_fault", fault)

    def __getattr__(self, name: str) -> Any:
        if name in ("_actual", "_fault"):  # not there yet: while being copied or unpickled
            raise AttributeError(name)
        return getattr(self._actual, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._actual, name, value)

    def __repr__(self) -> str:
        return f"<{self._actual!r} with a fault on rank {self._fault.rank}>"


class FaultyCommunicator(Wrapper):
    """A communicator in which a fault strikes."""

    def __init__(self, actual: Any, fault: Fault, operations: frozenset[str]) -> None:
        super().__init__(actual, fault)
        object.__setattr__(self, "_operations", operations)

    def __getattr__(self, name: str) -> Any:
        method = super().__getattr__(name)
        if name == "in_background" and self._operations.issuperset(_GRADIENTS):
            return lambda: FaultyBackground(method(), self._fault)
        if name == "_operations" or name not in self._operations:
            return method

        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                args = self._fault.meet(args)
            except Skipped:
                return _unchanged(name, args)
            return method(*args, **kwargs)

        return call


def _unchanged(name: str, args: tuple[Any, ...]) -> Any:
    """What a collective of one rank alone would return."""
    if name == "average_gradients":
        from nbmn.communicators.models import Averaged

        return Averaged.DONE
    if name == "replace_data":
        return False
    if name in (*_GRADIENTS, *_VALUES, "barrier", "send", "send_obj") or not args:
        return None
    return args[0]


class FaultyBackground(Wrapper):
    """Averaging in the background in which a fault strikes, where it is started."""

    def __init__(self, actual: Any, fault: Fault) -> None:
        super().__init__(actual, fault)
        object.__setattr__(self, "_skipped", None)

    def start(self, gradients: Any, terms: Any) -> None:
        """Begin to average, unless the fault has it otherwise."""
        arrays = list(gradients.arrays)
        object.__setattr__(self, "_skipped", None)
        try:
            (altered,) = self._fault.meet((arrays,))
        except Skipped:
            object.__setattr__(self, "_skipped", arrays)
            return
        table = tuple(
            entry if array is None else entry._replace(shape=array.shape, dtype=array.dtype.str)
            for entry, array in zip(gradients.table, altered, strict=True)
        )
        self._actual.start(gradients._replace(arrays=altered, table=table), terms)

    def finish_mean_grad(self) -> Any:
        """Return the means; where averaging was left out, this rank's gradients."""
        return self._actual.finish_mean_grad() if self._skipped is None else self._skipped

    def wait(self) -> Any:
        """As :meth:`finish_mean_grad`, of this rank alone."""
        return self._actual.wait() if self._skipped is None else self._skipped


class FaultyOptimizer(Wrapper):
    """An optimizer in whose updates a fault strikes."""

    def setup(self, link: Any) -> FaultyOptimizer:
        """Set the model to train."""
        self._actual.setup(link)
        return self

    def update(self, lossfun: Any = None, *args: Any, **kwds: Any) -> None:
        """Update the parameters, unless the fault has it otherwise."""
        try:
            args = self._fault.meet(args)
        except Skipped:
            return
        self._actual.update(lossfun, *args, **kwds)


class FaultyDataset(Wrapper):
    """A dataset in whose examples a fault strikes."""

    def __len__(self) -> int:
        return len(self._actual)

    def __getitem__(self, index: Any) -> Any:
        return self._fault.meet(self._actual[index])
