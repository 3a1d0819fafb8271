"""Broadcasts a model's values and averages its gradients over the ranks of a link."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from nbmn.communicators import objects
from nbmn.communicators.agreement import Vote, exchange, prepare_together, raise_together
from nbmn.communicators.backend import Backend, MeanRequest
from nbmn.communicators.errors import MismatchError
from nbmn.communicators.host_copies import HostCopies, devices_of
from nbmn.communicators.link import Link
from nbmn.communicators.parameters import (
    Entry,
    Table,
    beside,
    check_together,
    data_table,
    grad_table,
    known_somewhere,
    named,
    pack,
    plan_packing,
    read_grads,
    uninitialized_somewhere,
    union,
    unpack_data,
)
from nbmn.gpu.placement import on_device
from nbmn.gpu.runtime import Runtime

if TYPE_CHECKING:
    import numpy as np
    from chainer import Link as Model
    from chainer import Parameter


class Share(NamedTuple):
    """Which ranks' gradients count in a mean."""

    counts: bool
    """This rank's does."""
    total: int
    """How many ranks' do; the divisor."""


class Averaged(Enum):
    """What came of an attempt to average."""

    DONE = "done"
    STALE = "stale"
    """Some rank found its parameters changed: nothing was averaged."""


def broadcast(link: Link, backend: Backend, runtime: Runtime, model: Model, root: int = 0) -> bool:
    """Give all ranks the root's values; collective.

    A parameter that is not initialised at the root comes from the lowest rank that has
    initialised it; one that no rank has initialised stays so.

    Returns
    -------
    Whether a value that this rank had was replaced by a different one.
    """
    params, table, devices, error = [], (), 0, None
    try:
        params = named(model)
        table = data_table(params)
        devices = len(devices_of(_values(params), runtime))
    except (AttributeError, TypeError) as caught:
        error = caught
    outcome = Vote(link, ("bcast_data", devices, table), failed=error is not None).outcome()
    if outcome.failed:
        try:
            raise_together(link, "bcast_data", error)
        finally:
            error = None  # its traceback leads to this frame, and to the model's values
    tables = [table] * link.size
    if not outcome.unanimous:
        tables = exchange(link, "bcast_data", None, table)
        check_together(tables)
    elif devices == 1 and all(entry.on_device for entry in table if entry.present):
        changed = backend.bcast_on_device(_values(params), root)
        if changed is not None:
            return changed
    known = known_somewhere(tables)

    def reach() -> HostCopies:
        for (_, param), entry in zip(params, known, strict=True):
            if entry.shape is not None and param.array is None:
                param.initialize(entry.shape)
        return HostCopies(link, runtime, _values(params))

    # On each rank the same is known; where there is nothing that could fail there is no vote.
    plain = outcome.unanimous and not devices
    copies = reach() if plain else prepare_together(link, "bcast_data", reach)
    try:
        sources = [_source(entries, root) for entries in zip(*tables, strict=True)]
        fresh = _broadcast_from(link, backend, sources, copies.arrays(), known)
        copies.write_back(fresh)
    except BaseException as failure:
        link.fail(failure)
        raise
    finally:
        copies.let_go()
    for index, array in fresh.items():
        param = params[index][1]
        if not on_device(param.array) and array is not param.array:
            param.array = array
    return any(table[index].present for index in fresh)


def _values(params: Sequence[tuple[str, Parameter]]) -> list[Any]:
    return [param.array for _, param in params]


class Gradients(NamedTuple):
    """This rank's gradients of a model, as they were when they were collected."""

    params: Sequence[tuple[str, Parameter]] = ()
    table: Table = ()
    arrays: Sequence[Any] = ()
    """NumPy or CuPy, one per parameter; None where there is none."""
    error: Exception | None = None
    """Why they cannot be averaged."""
    home: Any = None
    """A value of a parameter, on the GPU on which parameters are; None if none is on one."""

    def size(self) -> tuple[int, np.dtype | None]:
        """Return their bytes, and the dtype of the first."""
        nbytes, dtype = 0, None
        for array in self.arrays:
            if array is not None:
                nbytes += array.nbytes
                dtype = dtype or array.dtype
        return nbytes, dtype


def collect(model: Model, zero_fill: bool) -> Gradients:
    """Take down the gradients of a model; local."""
    try:
        params = named(model)
        arrays, table = read_grads(params, zero_fill)
        return Gradients(params, table, arrays, home=_home(params, table))
    except (AttributeError, TypeError) as error:
        return Gradients(error=error)


def describe(
    params: Sequence[tuple[str, Parameter]], arrays: Sequence[Any], zero_fill: bool
) -> Gradients:
    """Return gradients of the parameters, with the shapes that these have now; local."""
    table = grad_table(params, arrays, zero_fill)
    return Gradients(params, table, arrays, home=_home(params, table))


def _home(params: Sequence[tuple[str, Parameter]], table: Table) -> Any:
    for (_, param), entry in zip(params, table, strict=True):
        if entry.on_device:
            return param.array
    return None


class Terms(NamedTuple):
    """On what terms gradients are averaged."""

    zero_fill: bool
    """Give parameters that no rank has a gradient of a zero gradient. Without it they are left
    alone; a gradient that only some ranks have counts as zero on the others either way, and all
    ranks get the mean."""
    stale: bool = False
    """Call the averaging off, on all ranks."""
    share: Share | None = None
    """Whose gradients count; None for all ranks'."""
    lenient: bool = False
    """Call it off, instead of raising, where the ranks' parameters differ in being initialised."""
    wire: str | None = None
    """The dtype to which each rank's gradients are rounded before they are averaged; None for
    their own. The means have the gradients' dtype."""


def average(link: Link, backend: Backend, gradients: Gradients, terms: Terms) -> Averaged:
    """Replace gradients by their means over ranks; collective."""
    prepared = agree_to_average(link, backend, gradients, terms)
    if prepared is None:
        return Averaged.STALE
    means = backend.mean(prepared)
    for (_, param), array, mean in zip(gradients.params, gradients.arrays, means, strict=True):
        if mean is not None and mean is not array:
            param.grad = beside(param, mean)
    return Averaged.DONE


class Prepared(NamedTuple):
    """Gradients as a backend has prepared them, or why it cannot."""

    value: Any = None
    error: Exception | None = None


def prepare(link: Link, backend: Backend, gradients: Gradients, terms: Terms) -> Prepared:
    """Let a backend prepare gradients; local."""
    if gradients.error is not None:
        return Prepared(error=gradients.error)
    try:
        return Prepared(backend.prepare(_request(link, gradients, terms, gradients.table)))
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks are told
        return Prepared(error=error)


def agree_to_average(
    link: Link,
    backend: Backend,
    gradients: Gradients,
    terms: Terms,
    early: Prepared | None = None,
) -> Any:
    """Return what the backend has prepared, None if the averaging is called off; collective.

    What it raises it raises on all ranks.

    Parameters
    ----------
    early
        What :func:`prepare` has returned for these; None to do that now.
    """
    share = _share(link, terms)
    table = gradients.table
    # Before the vote, so that its outcome says that all ranks have prepared.
    early = early or prepare(link, backend, gradients, terms)
    prepared, error = early.value, early.error
    # What must be alike; the rest may differ, as long as the tables fit together.
    options = f"zero_fill={terms.zero_fill}, allreduce_grad_dtype={terms.wire}, of {share.total}"
    statement = ("multi_node_mean_grad", options, table)
    step, failed = backend.step, error is not None
    outcome = Vote(link, statement, step=step, failed=failed, flag=terms.stale).outcome()
    if outcome.failed:
        raise_together(link, "multi_node_mean_grad", error)
    if not outcome.unanimous:
        said = exchange(link, "multi_node_mean_grad", options, (table, step))
        tables: list[Table] = [theirs for theirs, _ in said]
        if len({theirs for _, theirs in said}) > 1:
            backend.restart()
        check_together(tables)
        odd = uninitialized_somewhere(tables)
        if odd and terms.lenient:
            return None
        if odd:
            raise MismatchError(
                f"parameters initialised on some ranks only: {', '.join(odd)}; "
                "call bcast_data(model) on all ranks first"
            )
        request = _request(link, gradients, terms, union(tables))
        prepared = prepare_together(link, "multi_node_mean_grad", lambda: backend.prepare(request))
    return None if outcome.flagged else prepared


def _share(link: Link, terms: Terms) -> Share:
    return terms.share or Share(True, link.size)


def _request(link: Link, gradients: Gradients, terms: Terms, table: Table) -> MeanRequest:
    """Return what a backend is to average, of what ``table`` says is present."""
    share = _share(link, terms)
    grads = [
        array if share.counts and entry.present else None
        for array, entry in zip(gradients.arrays, table, strict=True)
    ]
    return MeanRequest(table, grads, share.total, terms.wire, gradients.home)


def count_ranks(link: Link, counts: bool) -> Share:
    """Tell all ranks how many of them count; collective."""
    flags = objects.allgather(link, counts)
    return Share(counts, sum(flags))


def _broadcast_from(
    link: Link,
    backend: Backend,
    sources: Sequence[int | None],
    arrays: Sequence[Any],
    table: Table,
) -> dict[int, np.ndarray]:
    """Broadcast each array from its source; return by index what was others on this rank."""
    changed: dict[int, np.ndarray] = {}
    for source in sorted({rank for rank in sources if rank is not None}):
        part = tuple(
            entry if rank == source else entry._replace(present=False)
            for entry, rank in zip(table, sources, strict=True)
        )
        for packing in plan_packing(part, summed=False):
            buffer = backend.buffer(packing.dtype, packing.size)
            if link.rank == source:
                pack(buffer, packing, arrays)
            backend.bcast(buffer, source)
            if link.rank != source:
                changed |= unpack_data(buffer, packing, arrays)
    return changed


def _source(entries: Sequence[Entry], root: int) -> int | None:
    if entries[root].shape is not None:
        return root
    return next((r for r, entry in enumerate(entries) if entry.shape is not None), None)
