"""The parameters of a model as a table that ranks can compare, and as flat buffers."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from nbmn.communicators.arrays import summing_dtype
from nbmn.communicators.errors import MismatchError
from nbmn.communicators.reduction import division
from nbmn.gpu.placement import on_device, to_device, to_host

if TYPE_CHECKING:
    from chainer import Link as Model
    from chainer import Parameter


BFLOAT16 = "bfloat16"
"""NumPy knows it only with ml_dtypes, and by no character of its own."""


class Entry(NamedTuple):
    """One parameter, in what must be alike on all ranks."""

    name: str
    shape: tuple[int, ...] | None
    """None until it is initialised."""
    dtype: str
    present: bool
    """This rank has a value to contribute."""
    on_device: bool = False
    """It is on a GPU. Where ranks differ in this, it is averaged in host memory."""


Table = tuple[Entry, ...]


def named(model: Model) -> list[tuple[str, Parameter]]:
    """Return the parameters of a model in the order in which all ranks pack them."""
    return sorted(model.namedparams(), key=operator.itemgetter(0))


def data_table(params: Sequence[tuple[str, Parameter]]) -> Table:
    """Describe the values of parameters.

    Raises
    ------
    TypeError
        One is of a dtype of which NumPy knows the size only.
    """
    for name, param in params:
        if param.array is not None and param.array.dtype.kind == "V":
            raise TypeError(
                f"parameter {name} is of dtype {param.array.dtype}, which NumPy itself does not "
                "have: use float16, float32 or float64"
            )
    return tuple(
        Entry(name, None, "", False)
        if (array := param.array) is None
        else Entry(name, array.shape, array.dtype.str, True, on_device(array))
        for name, param in params
    )


def read_grads(params: Sequence[tuple[str, Parameter]], zero_fill: bool) -> tuple[list[Any], Table]:
    """Return the gradients of parameters and their table, see :func:`grad_table`."""
    arrays, entries = [], []
    new = tuple.__new__  # an Entry, without the function that would take it apart
    for name, param in params:
        value = param.array
        if value is None:
            # A parameter that is not initialised may refuse to be asked.
            arrays.append(None)
            entries.append(Entry(name, None, "", False))
        else:
            grad = param.grad
            arrays.append(grad)
            present = grad is not None or (zero_fill and _has_gradients(value.dtype))
            fields = (name, value.shape, value.dtype.str, present, on_device(value))
            entries.append(new(Entry, fields))
    return arrays, tuple(entries)


def grad_table(
    params: Sequence[tuple[str, Parameter]], grads: Sequence[Any], zero_fill: bool
) -> Table:
    """Describe the gradients; one that is None counts as present if it is to be filled."""
    return tuple(
        Entry(name, None, "", False)
        if (array := param.array) is None
        else Entry(
            name,
            array.shape,
            array.dtype.str,
            grad is not None or (zero_fill and _has_gradients(array.dtype)),
            on_device(array),
        )
        for (name, param), grad in zip(params, grads, strict=True)
    )


def _has_gradients(dtype: np.dtype) -> bool:
    # Optimizers leave integers alone, as long as these have no gradient.
    return dtype.kind in "fc"


def check_together(tables: Sequence[Table]) -> None:
    """Raise MismatchError if two ranks hold different parameters under one name."""
    names = [[entry.name for entry in table] for table in tables]
    for rank, theirs in enumerate(names):
        if theirs != names[0]:
            odd = sorted(set(theirs) ^ set(names[0]))
            raise MismatchError(
                f"the model on rank {rank} has other parameters than on rank 0: "
                f"{', '.join(odd) or 'the same in another order'}"
            )
    for entries in zip(*tables, strict=True):
        kinds: dict[tuple[Any, Any], list[str]] = {}
        for rank, entry in enumerate(entries):
            if entry.shape is not None:
                kinds.setdefault((entry.shape, entry.dtype), []).append(str(rank))
        if len(kinds) > 1:
            told = "; ".join(
                f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}: {shape} {np.dtype(dtype)}"
                for (shape, dtype), ranks in kinds.items()
            )
            raise MismatchError(f"parameter {entries[0].name} differs between ranks ({told})")


def uninitialized_somewhere(tables: Sequence[Table]) -> list[str]:
    """Return the names of parameters that some ranks have initialised and others not."""
    return [
        entries[0].name
        for entries in zip(*tables, strict=True)
        if len({entry.shape is None for entry in entries}) > 1
    ]


def union(tables: Sequence[Table]) -> Table:
    """Return the table of what is present on any rank, given tables that fit together."""
    return tuple(
        entries[0]._replace(
            present=any(entry.present for entry in entries),
            on_device=all(entry.on_device for entry in entries),
        )
        for entries in zip(*tables, strict=True)
    )


def known_somewhere(tables: Sequence[Table]) -> Table:
    """Return, for each parameter, the entry of the first rank that has initialised it."""
    return tuple(
        next((entry for entry in entries if entry.shape is not None), entries[0])
        for entries in zip(*tables, strict=True)
    )


@dataclass(frozen=True, slots=True)
class Span:
    """Where one parameter's values lie in a flat buffer."""

    index: int
    """In the table."""
    shape: tuple[int, ...]
    dtype: np.dtype
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Packing:
    """Values that travel in one buffer."""

    dtype: np.dtype
    size: int
    spans: tuple[Span, ...]


def check_averages(dtype: np.dtype) -> None:
    """Raise TypeError if gradients of this dtype have no mean in it; local."""
    if not _has_gradients(dtype):
        kind = "a dtype that NumPy itself does not have" if dtype.kind == "V" else f"dtype {dtype}"
        raise TypeError(f"gradients of {kind} cannot be averaged: use float16, float32 or float64")


def check_wire(wire: str | None) -> None:
    """Raise ValueError if host memory has no values of this dtype; local."""
    if wire == BFLOAT16:
        raise ValueError(
            "allreduce_grad_dtype bfloat16 is for gradients on GPUs, and these are averaged in "
            "host memory: set float16, float32 or None by comm.set_config('allreduce_grad_dtype', "
            "...)"
        )


@functools.lru_cache(maxsize=64)
def plan_packing(table: Table, *, summed: bool, wire: str | None = None) -> tuple[Packing, ...]:
    """Lay out the present parameters, one buffer per dtype; equal on all ranks.

    Parameters
    ----------
    summed
        For a mean: widen dtypes to what can be summed (float16 travels as float32).
    wire
        The dtype in which values travel; None for their own.

    Raises
    ------
    TypeError
        Values of some dtype cannot be summed, or have no mean in it.
    ValueError
        Host memory has no values of the dtype ``wire``.
    """
    check_wire(wire)

    def travelling(own: np.dtype) -> np.dtype:
        if summed:
            check_averages(own)
        dtype = np.dtype(wire) if wire is not None and own.kind == "f" else own
        return summing_dtype(dtype) if summed else dtype

    return lay_out(table, travelling)


def lay_out(
    table: Table, travelling: Callable[[np.dtype], np.dtype], line: int = 1
) -> tuple[Packing, ...]:
    """Lay out the present parameters in one buffer per dtype in which they travel.

    Parameters
    ----------
    line
        Every parameter begins at a multiple of so many bytes.
    """
    spans: dict[np.dtype, list[Span]] = {}
    for index, entry in enumerate(table):
        if entry.present and entry.shape is not None:
            own = np.dtype(entry.dtype)
            dtype = travelling(own)
            row = spans.setdefault(dtype, [])
            step = max(line // dtype.itemsize, 1)
            begin = -(-row[-1].end // step) * step if row else 0
            row.append(Span(index, entry.shape, own, begin, begin + prod(entry.shape)))
    return tuple(
        Packing(dtype, spans[dtype][-1].end, tuple(spans[dtype]))
        for dtype in sorted(spans, key=lambda dtype: (dtype.str, dtype.name))
    )


def views_of(buffer: np.ndarray, packing: Packing) -> list[np.ndarray]:
    """Return where each parameter lies in ``buffer``, in its shape."""
    return [buffer[span.begin : span.end].reshape(span.shape) for span in packing.spans]


def pack(
    buffer: np.ndarray, packing: Packing, arrays: Sequence[Any], wire: str | None = None
) -> None:
    """Copy arrays into ``buffer``, rounded to ``wire``; zeros where one is None."""
    pack_into(views_of(buffer, packing), packing, arrays, wire)


def pack_into(
    places: Sequence[np.ndarray], packing: Packing, arrays: Sequence[Any], wire: str | None
) -> None:
    """Like :func:`pack`, given the views of a buffer."""
    plain = np.ndarray
    for span, place in zip(packing.spans, places, strict=True):
        array = arrays[span.index]
        if type(array) is plain and wire is None and array.dtype == place.dtype:
            place[...] = array  # in half the time of copyto, which refuses what loses something
        elif array is None:
            place.fill(0)
        else:
            np.copyto(place, rounded(to_host(array), wire))


def rounded(array: np.ndarray, wire: str | None) -> np.ndarray:
    """Return ``array`` in the dtype ``wire`` if it is one of reals; otherwise as it is."""
    if wire is None or array.dtype.kind != "f":
        return array
    return array.astype(wire, copy=False)


def unpack_means(
    buffer: np.ndarray, packing: Packing, arrays: Sequence[Any], means: list[Any], count: int
) -> None:
    """Set ``means`` to the parts of ``buffer`` divided by ``count``, in place of ``arrays``
    where that is safe, otherwise in new arrays."""
    means_from(views_of(buffer, packing), packing, arrays, means, count)


def means_from(
    totals: Sequence[np.ndarray],
    packing: Packing,
    arrays: Sequence[Any],
    means: list[Any],
    count: int,
) -> None:
    """Like :func:`unpack_means`, given the views of a buffer."""
    operation, number = division(packing.dtype, count)
    written: set[int] = set()
    for span, total in zip(packing.spans, totals, strict=True):
        array = arrays[span.index]
        if overwritable(array, span) and id(array) not in written:
            written.add(id(array))
        else:
            array = np.empty(span.shape, span.dtype)
        means[span.index] = operation(total, number, out=array, casting="same_kind")


def overwritable(array: Any, span: Span) -> bool:
    """Say whether a gradient may be overwritten, if it is not that of another parameter too.

    Chainer lets gradients share memory (of an addition, both operands get the same
    array) and be read-only views (of a sum): those must not be written to.
    """
    if type(array) is not np.ndarray or array.dtype != span.dtype:
        return False
    flags = array.flags
    return flags.owndata and flags.writeable


def unpack_data(
    buffer: np.ndarray, packing: Packing, arrays: Sequence[Any]
) -> dict[int, np.ndarray]:
    """Replace each array that differs from its part of ``buffer``, in place if it can be.

    Returns
    -------
    By the index of each such array, that with the values of the buffer.
    """
    changed = {}
    for span in packing.spans:
        fresh = buffer[span.begin : span.end].reshape(span.shape)
        array = arrays[span.index]
        if _same_bits(fresh, to_host(array)):
            continue
        if type(array) is np.ndarray and array.flags.writeable:
            np.copyto(array, fresh, casting="same_kind")
        else:
            array = fresh.copy()
        changed[span.index] = array
    return changed


def _same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    # NaN is equal to itself here, and 0.0 differs from -0.0.
    return a.dtype == b.dtype and a.tobytes() == b.tobytes()


def beside(param: Parameter, values: np.ndarray) -> Any:
    """Return ``values`` on the device of ``param``."""
    if on_device(param.array) and not on_device(values):
        with param.array.device:
            return to_device(values)
    return values
