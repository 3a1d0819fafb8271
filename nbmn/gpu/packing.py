"""Values of many arrays in one flat buffer, and back; on the GPU by one launch each way."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Protocol

import numpy as np

from nbmn.gpu import kernels
from nbmn.gpu.kernels import Conversion, conversion
from nbmn.gpu.kernels_table import Batch, batches
from nbmn.gpu.placement import on_device, to_device, to_host

_SILENT: dict[str, Any] = {"over": "ignore", "under": "ignore", "invalid": "ignore"}
"""A GPU says nothing of overflow; neither is it said on the host."""


class Span(Protocol):
    """Where one array's values lie in a flat buffer."""

    @property
    def index(self) -> int:
        """Among the arrays."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The array's."""

    @property
    def dtype(self) -> np.dtype:
        """The array's own."""

    @property
    def begin(self) -> int:
        """In elements of the buffer."""

    @property
    def end(self) -> int:
        """In elements of the buffer."""


class Packing(Protocol):
    """What one buffer holds; hashable, for its layout is kept."""

    @property
    def dtype(self) -> np.dtype:
        """Of the buffer's elements."""

    @property
    def spans(self) -> Sequence[Span]:
        """Ascending, of different parts of the buffer."""


def as_dtype(name: str | np.dtype) -> np.dtype:
    """Return the dtype of this name, bfloat16 among them.

    Raises
    ------
    ImportError
        It is bfloat16 and ml_dtypes is not installed.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError as error:
            raise ImportError("bfloat16 needs ml_dtypes: pip install ml-dtypes") from error
        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def pack(
    buffer: Any,
    packing: Packing,
    arrays: Sequence[Any],
    *,
    scale: float = 1.0,
    wire: str | np.dtype | None = None,
) -> None:
    """Write arrays into ``buffer``, rounded to ``wire``, times ``scale``; zeros where one is None.

    Reals are rounded to nearest even, and scaled in float64 if what is scaled or the buffer is
    float64, otherwise in float32; infinities, NaN and subnormals stay what they are. Without a
    cast and a scale, all bits stay. The buffer may hold the arrays themselves.

    Local. On the GPU it is queued on the current stream, in one launch per dtype of arrays (up to
    1,360 arrays each; 168 before CUDA 12.1 or Volta), and one more for each array that is not
    contiguous.

    Parameters
    ----------
    buffer
        NumPy or CuPy, flat and contiguous; it may be of another dtype with the itemsize of
        ``packing.dtype``, as uint16 for bfloat16, which CuPy need not have.
    arrays
        NumPy or CuPy; the spans' indexes point into it.

    Raises
    ------
    TypeError
        ``scale`` is not 1 and the values are not floating-point.
    ValueError
        An array is not as large as its span, or on another device than ``buffer``.
    """
    wire = None if wire is None else as_dtype(wire)
    write = _pack_on_host if isinstance(buffer, np.ndarray) else _pack_on_device
    write(buffer, packing, arrays, scale, wire)


def unpack(buffer: Any, packing: Packing, arrays: Sequence[Any]) -> list[Any]:
    """Return the arrays that ``buffer`` holds, in the spans' shapes and dtypes.

    Those of the buffer's own dtype are views into it. The others are views into one new array per
    dtype, which the GPU writes by one launch on the current stream. Local; does not wait.

    Parameters
    ----------
    arrays
        Those that were packed, or others as many.

    Returns
    -------
    One per array, where ``buffer`` lies; None for those that have no span.
    """
    parts: list[Any] = [None] * len(arrays)
    members: dict[np.dtype, list[Span]] = {}
    for span in packing.spans:
        members.setdefault(span.dtype, []).append(span)
    for dtype, spans in members.items():
        first, last = spans[0].begin, spans[-1].end
        flat = _cast(buffer[first:last], packing.dtype, dtype)
        view = _host_view if isinstance(flat, np.ndarray) else _device_view
        for span in spans:
            parts[span.index] = view(flat, span.begin - first, span.shape)
    return parts


def unpack_into(
    buffer: Any, packing: Packing, arrays: Sequence[Any], chosen: Collection[int] | None = None
) -> None:
    """Overwrite arrays by what ``buffer`` holds; local, on the GPU queued on the current stream.

    Parameters
    ----------
    arrays
        Of the spans' shapes and dtypes, where ``buffer`` lies, of any layout.
    chosen
        The indexes of those that are overwritten; None for all that have a span.
    """
    copy = np.copyto
    if not isinstance(buffer, np.ndarray):
        import cupy

        copy = cupy.copyto
    for index, part in enumerate(unpack(buffer, packing, arrays)):
        if part is not None and (chosen is None or index in chosen):
            copy(arrays[index], part)


def _host_view(flat: np.ndarray, begin: int, shape: tuple[int, ...]) -> np.ndarray:
    return flat[begin : begin + prod(shape)].reshape(shape)


def _device_view(flat: Any, begin: int, shape: tuple[int, ...]) -> Any:
    # Half the time of a slice and a reshape, of which a model has hundreds.
    return type(flat)(shape, flat.dtype, flat.data + begin * flat.itemsize)


def _cast(values: Any, source: np.dtype, target: np.dtype) -> Any:
    """Return flat ``values``, which are of dtype ``source``, as ``target``."""
    if source == target:
        return _typed(values, source)
    how = conversion(source, target)
    if how is None or isinstance(values, np.ndarray):
        with np.errstate(**_SILENT):
            return _typed(values, source).astype(target)
    import cupy

    cast = cupy.empty(values.size, target)
    whole = batches([0], [values.size * how.parts], how.tiling.tile, kernels.capacity())
    kernels.launch(how, whole, np.array([values.data.ptr], np.uint64), cast, 1.0)
    return cast


@dataclass(frozen=True, slots=True, eq=False)
class _Group:
    """Arrays that one kernel packs."""

    dtype: np.dtype
    """That they must have."""
    conversion: Conversion
    spans: tuple[Span, ...]
    extent: np.ndarray
    """Where they begin in the buffer and how many elements they are; uint64, shape (2, spans)."""
    batches: tuple[Batch, ...]


@functools.lru_cache(maxsize=64)
def _groups(
    packing: Packing, wire: np.dtype | None, scales: bool, capacity: int
) -> tuple[_Group, ...]:
    members: dict[tuple[np.dtype, Conversion], list[Span]] = {}
    for span in packing.spans:
        dtype = span.dtype
        how = conversion(dtype, packing.dtype, wire=wire, scales=scales)
        if how is None:
            # CuPy casts them beforehand.
            dtype = packing.dtype
            how = conversion(dtype, dtype, scales=scales)
        if how is None:
            raise TypeError(f"arrays of dtype {span.dtype} cannot be scaled: only floating-point")
        members.setdefault((dtype, how), []).append(span)
    groups = []
    for (dtype, how), spans in members.items():
        begins = [span.begin for span in spans]
        counts = [span.end - span.begin for span in spans]
        launches = batches(
            [begin * how.parts for begin in begins],
            [count * how.parts for count in counts],
            how.tiling.tile,
            capacity,
        )
        extent = np.array([begins, counts], np.uint64)
        groups.append(_Group(dtype, how, tuple(spans), extent, launches))
    return tuple(groups)


def _pack_on_device(
    buffer: Any, packing: Packing, arrays: Sequence[Any], scale: float, wire: np.dtype | None
) -> None:
    for group in _groups(packing, wire, scale != 1, kernels.capacity()):
        # Held until the launch is queued: a temporary's memory may be reused by what comes later
        # on this stream only.
        held = [_ready(arrays[span.index], span, group.dtype, buffer) for span in group.spans]
        pointers = np.array([0 if a is None else a.data.ptr for a in held], np.uint64)
        for row in _in_the_way(pointers, group, buffer):
            held[row] = held[row].copy()
            pointers[row] = held[row].data.ptr
        kernels.launch(group.conversion, group.batches, pointers, buffer, scale)


def _ready(array: Any, span: Span, dtype: np.dtype, buffer: Any) -> Any:
    """Return ``array`` as the kernel can read it: as it is, if possible."""
    if array is None:
        return None
    if type(array) is not type(buffer) and not on_device(array):
        array = to_device(array)
    if array.size != span.end - span.begin:
        raise ValueError(_size_error(array, span))
    if array.data.device_id != buffer.data.device_id:
        raise ValueError(
            f"array {span.index} is on {array.device}, the buffer on {buffer.device}: "
            "move the model to the device of its communicator"
        )
    if array.dtype != dtype:
        return array.astype(dtype, order="C")
    return array if array.flags.c_contiguous else array.copy(order="C")


def _in_the_way(pointers: np.ndarray, group: _Group, buffer: Any) -> list[int]:
    """Return which arrays the kernel cannot read where they are: not aligned to their elements,
    or written to before they are read."""
    begins, counts = group.extent
    itemsize = np.uint64(group.dtype.itemsize)
    first = np.uint64(buffer.data.ptr)
    overlap = (pointers < first + np.uint64(buffer.nbytes)) & (first < pointers + counts * itemsize)
    if group.dtype.itemsize == buffer.itemsize:
        overlap &= pointers != first + begins * itemsize
    odd = pointers % np.uint64(group.conversion.itemsize) != 0
    return np.flatnonzero((overlap & (counts > 0)) | odd).tolist()


def _pack_on_host(
    buffer: np.ndarray,
    packing: Packing,
    arrays: Sequence[Any],
    scale: float,
    wire: np.dtype | None,
) -> None:
    buffer = _typed(buffer, packing.dtype)
    given = [None if a is None else to_host(a) for a in arrays]
    # What lies in the buffer is copied before anything is written.
    given = [a.copy() if a is not None and np.may_share_memory(a, buffer) else a for a in given]
    with np.errstate(**_SILENT):
        for span in packing.spans:
            place = buffer[span.begin : span.end].reshape(span.shape)
            array = given[span.index]
            if array is None:
                place.fill(0)
                continue
            if array.shape != span.shape:
                raise ValueError(_size_error(array, span))
            if wire is not None and _is_real(array.dtype):
                array = array.astype(wire, copy=False)
            if scale != 1:
                array = _scaled(array, scale, packing.dtype)
            np.copyto(place, array, casting="unsafe")


def _scaled(array: np.ndarray, scale: float, target: np.dtype) -> np.ndarray:
    if not (_is_real(array.dtype) or array.dtype.kind == "c"):
        raise TypeError(f"arrays of dtype {array.dtype} cannot be scaled: only floating-point")
    double = {array.dtype.name, target.name} & {"float64", "complex128"}
    number = np.dtype(np.float64 if double else np.float32)
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array)
        parts = array.reshape(-1).view(np.empty(0, array.dtype).real.dtype)
        scaled = _scaled(parts, scale, target)
        return scaled.view(np.result_type(number, 1j)).reshape(array.shape)
    return np.multiply(array.astype(number, copy=False), number.type(scale))


def _typed(buffer: Any, dtype: np.dtype) -> Any:
    return buffer if buffer.dtype == dtype else buffer.view(dtype)


def _is_real(dtype: np.dtype) -> bool:
    return dtype.kind == "f" or dtype.name == "bfloat16"


def _size_error(array: Any, span: Span) -> str:
    return (
        f"array {span.index} has shape {array.shape}, but its place in the buffer is "
        f"for {span.shape}"
    )
