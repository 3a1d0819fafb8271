"""One launch that copies, casts and scales any number of arrays into a flat buffer.

How fast it can be is a matter of bytes. ResNet-50 has 161 gradients of 25.6 million elements:
from float32 to float32 102 MB are read and 102 MB written, to float16 51 MB. A GPU that copies at
4.3 TB/s (an H200, read and written counted) needs 48 µs and 36 µs. One launch for each gradient
would cost 161 times 2 to 3 µs between kernels. Python takes some 0.1 ms to gather the pointers,
while the GPU is still busy with the backward pass.

Arrays that begin at 16-byte boundaries, as do their places in the buffer, are moved 16 bytes of the
wider dtype at a time, so that what a warp reads or writes at a time is in one piece; so are those
that are off by the same number of elements. The others go element by element, eight loads of a
thread in flight: as many bytes, in more instructions.

That nothing but the memory holds it up is reckoned, not measured. To keep 4.8 TB/s busy, each of an
H200's 132 multiprocessors must have 36 KB under way for each microsecond that a tile takes. A tile
takes some 1.5: half a microsecond to find its entry (8 steps for ResNet-50, 11 for the largest
table, each a read of constant memory that all threads share), 0.8 to load under load, the rest to
be launched and to store; which makes 55 KB. Compiled for sm_90 a thread needs 40 to 59 registers,
so that 4 blocks at the least are there at a time, with 4 loads of 16 bytes a thread before the
first store: 96 KB and more, read and written (a test holds it to that), and at most 40 % of what a
multiprocessor can issue. What arrays leave of their last tiles is 1.5 % of ResNet-50's blocks.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nbmn.gpu.kernels_source import SOURCE
from nbmn.gpu.kernels_table import LARGE, SMALL, THREADS, Batch, Tiling, tiling

if TYPE_CHECKING:
    import cupy

BLOCKS = 2**16
"""Most blocks of a launch; each then walks over many tiles."""

_MAJOR = 75  # cudaDevAttrComputeCapabilityMajor
_FLOATS = {"float16": "f16", "bfloat16": "bf16", "float32": "f32", "float64": "f64"}
_EXACT_IN = {
    "f16": {"f16", "f32", "f64"},
    "bf16": {"bf16", "f32", "f64"},
    "f32": {"f32", "f64"},
    "f64": {"f64"},
}
_SIZES = {"u8": 1, "u16": 2, "u32": 4, "u64": 8, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
_PARTS = {"complex64": ("f32", 2), "complex128": ("f64", 2)}


@dataclass(frozen=True, slots=True)
class Conversion:
    """From elements of one type to those of another; types by their names in the source."""

    source: str
    target: str
    wire: str | None = None
    """What is rounded to first."""
    parts: int = 1
    """Elements of these types to one of the arrays': 2 in complex numbers."""

    @property
    def tiling(self) -> Tiling:
        """How blocks walk over elements."""
        return tiling(_SIZES[self.source], _SIZES[self.target])

    @property
    def itemsize(self) -> int:
        """Bytes of an element of the source's type."""
        return _SIZES[self.source]


def conversion(
    source: np.dtype, target: np.dtype, *, wire: np.dtype | None = None, scales: bool = False
) -> Conversion | None:
    """Return how the kernel converts between dtypes, or None if it does not.

    It copies any dtype to itself, and casts and scales floating-point ones.

    Parameters
    ----------
    wire
        What reals are rounded to before they are scaled; None for no rounding.
    scales
        Values are multiplied by a scale other than 1.
    """
    own, parts = _number(source)
    to, to_parts = _number(target)
    rounds = _number(wire)[0] if wire is not None and source.kind != "c" else None
    if own is None or rounds in _EXACT_IN.get(own, ()) or (rounds == to and not scales):
        rounds = None
    if source == target and not scales and rounds is None:
        size = next(size for size in (8, 4, 2, 1) if source.itemsize % size == 0)
        return Conversion(f"u{8 * size}", f"u{8 * size}", parts=source.itemsize // size)
    if own is None or to is None or parts != to_parts:
        return None
    return Conversion(own, to, rounds, parts)


def _number(dtype: np.dtype) -> tuple[str | None, int]:
    if not dtype.isnative:
        return None, 1
    return _PARTS.get(dtype.name) or (_FLOATS.get(dtype.name), 1)


def options(conversion: Conversion, capacity: int) -> tuple[str, ...]:
    """Return the compiler's options for the source: its macros."""
    tiles = conversion.tiling
    reckoned = {conversion.wire or conversion.source, conversion.target}
    values: dict[str, str | int] = {
        "SOURCE": conversion.source,
        "TARGET": conversion.target,
        "NUMBER": "f64" if "f64" in reckoned else "f32",
        "LANES": tiles.lanes,
        "UNROLL": tiles.unroll,
        "TILE": tiles.tile,
        "THREADS": THREADS,
        "CAPACITY": capacity,
    }
    if conversion.wire is not None:
        values["WIRE"] = conversion.wire
    if conversion.source.startswith("u"):
        values["COPIES"] = 1
    return tuple(f"-D{name}={value}" for name, value in values.items())


def capacity() -> int:
    """Return how many arrays one launch takes on this thread's device."""
    from cupy.cuda import runtime

    return _capacity(runtime.getDevice())


@functools.cache
def _capacity(device: int) -> int:
    from cupy.cuda import nvrtc, runtime

    recent = runtime.driverGetVersion() >= 12010 and nvrtc.getVersion() >= (12, 1)
    volta = runtime.deviceGetAttribute(_MAJOR, device) >= 7
    return LARGE if recent and volta else SMALL


@functools.cache
def _kernel(conversion: Conversion, capacity: int) -> cupy.RawKernel:
    import cupy

    return cupy.RawKernel(SOURCE, "pack", options(conversion, capacity))


def launch(
    conversion: Conversion,
    batches: Sequence[Batch],
    pointers: np.ndarray,
    target: Any,
    scale: float,
) -> None:
    """Copy arrays into ``target`` on the current stream; local, does not wait.

    Parameters
    ----------
    conversion
        Its ``parts`` are in the counts and offsets of ``batches`` already.
    pointers
        uint64, the arrays' addresses on the current device, each a multiple of the itemsize; 0
        stands for zeros. The memory must not be reused before the stream is past this.
    target
        The CuPy array that begins where the buffer begins.
    """
    for batch in batches:
        _kernel(conversion, batch.capacity)(
            (min(batch.tiles, BLOCKS),),
            (THREADS,),
            (
                batch.table(pointers, conversion.itemsize),
                np.uint32(batch.entries),
                np.uint32(batch.tiles),
                target,
                np.float64(scale),
            ),
        )
