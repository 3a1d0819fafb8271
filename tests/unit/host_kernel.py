"""The packing kernel compiled for the host: its blocks and threads run one after the other."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from nbmn.gpu import kernels
from nbmn.gpu.kernels import Conversion, options
from nbmn.gpu.kernels_source import SOURCE
from nbmn.gpu.kernels_table import Batch, batches

BEFORE = """
#define __global__
#define __device__
#define __grid_constant__
#define __launch_bounds__(threads)
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) uint2 { unsigned x, y; };
struct Index { unsigned x; };
static Index threadIdx, blockIdx, gridDim;
static unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
struct f16;
static float widen(f16);
static void narrow(float, f16&);
static void narrow(double, f16&);
"""

# float16 in terms of doubles, which hold all its values and their halves.
AFTER = """
static float widen(f16 x)
{
    int exponent = x.bits >> 10 & 31, digits = x.bits & 1023;
    double size = exponent == 31 ? (digits ? __builtin_nan("") : __builtin_inf())
                : exponent ? __builtin_ldexp(1024 + digits, exponent - 25)
                : __builtin_ldexp(digits, -24);
    return x.bits >> 15 ? -size : size;
}
static void narrow(double x, f16& y)
{
    double size = __builtin_fabs(x);
    int exponent = size < 0x1p-14 ? -14 : __builtin_ilogb(size);
    unsigned bits = x != x ? 0x7e00 : size >= 65520 ? 0x7c00
        : (exponent + 14) * 1024 + (int)__builtin_nearbyint(__builtin_ldexp(size, 10 - exponent));
    y.bits = (__builtin_signbit(x) ? 0x8000 : 0) | bits;
}
static void narrow(float x, f16& y) { narrow(double(x), y); }

extern "C" void run(const Table* table, u32 entries, u32 tiles, TARGET* buffer, f64 scale,
                    u32 first, u32 last, u32 grid)
{
    gridDim.x = grid;
    for (blockIdx.x = first; blockIdx.x < last; blockIdx.x++)
        for (threadIdx.x = 0; threadIdx.x < THREADS; threadIdx.x++)
            pack(*table, entries, tiles, buffer, scale);
}
"""

Launch = Callable[..., None]


def compiled(conversion: Conversion, capacity: int, folder: Path) -> Launch:
    """Return a function of table, entries, tiles, address of the buffer, scale, blocks, grid."""
    name = f"{conversion.source}_{conversion.wire}_{conversion.target}_{capacity}"
    source, library = folder / f"{name}.cpp", folder / f"{name}.so"
    if not library.exists():
        source.write_text(BEFORE + SOURCE + AFTER)
        flags = ("-O1", "-shared", "-fPIC", "-fno-strict-aliasing", "-ffp-contract=off", "-w")
        macros = options(conversion, capacity)
        subprocess.run(["g++", *flags, *macros, "-o", library, source], check=True, timeout=120)
    run = ctypes.CDLL(str(library)).run
    u32, pointer = ctypes.c_uint32, ctypes.c_void_p
    run.argtypes = [pointer, u32, u32, pointer, ctypes.c_double, u32, u32, u32]
    run.restype = None

    def launch(
        table: np.ndarray,
        entries: int,
        tiles: int,
        buffer: int,
        scale: float,
        blocks: range,
        grid: int,
    ) -> None:
        run(table.ctypes.data, entries, tiles, buffer, scale, blocks.start, blocks.stop, grid)

    return launch


def launch_all(
    library: Callable[[Conversion, int], Launch],
    conversion: Conversion,
    laid_out: Iterable[Batch],
    addresses: list[int],
    buffer: int,
    scale: float = 1.0,
    grid: int = 3,
) -> None:
    """Run all launches with these many blocks each."""
    pointers = np.array(addresses, np.uint64)
    for batch in laid_out:
        library(conversion, batch.capacity)(
            batch.table(pointers, conversion.itemsize),
            batch.entries,
            batch.tiles,
            buffer,
            scale,
            range(grid),
            grid,
        )


def stand_for_device(folder: Path) -> None:
    """Let nbmn's kernels run on the host in this process, on memory that is the host's anyway."""

    def launch(
        conversion: Conversion,
        laid_out: Iterable[Batch],
        pointers: np.ndarray,
        target: Any,
        scale: float,
    ) -> None:
        launch_all(
            lambda how, capacity: compiled(how, capacity, folder),
            conversion,
            laid_out,
            pointers.tolist(),
            target.data.ptr,
            scale,
        )

    kernels.launch = launch
    kernels.capacity = lambda: kernels.SMALL


def lay_out(
    conversion: Conversion, begins: list[int], counts: list[int], capacity: int
) -> tuple[Batch, ...]:
    """Return the launches for arrays of a conversion."""
    return batches(
        [begin * conversion.parts for begin in begins],
        [count * conversion.parts for count in counts],
        conversion.tiling.tile,
        capacity,
    )
