"""Passes over memory that NumPy does not have, compiled by llvmlite where it can.

Averaging gradients is memory traffic, of which two things make less. A *streaming* copy writes past
the caches: an ordinary one makes the processor fetch each line that it is about to overwrite.
A *fused* mean reads each line of memory once and writes it once, where NumPy passes over a piece
for each rank's part, for the division, and for each place where the mean goes.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

from nbmn.communicators.arrays import as_bytes

LINE = 64
"""Bytes of a cache line."""

LEAST = 64 * 1024
"""Bytes from which on a streaming copy pays."""

LEAST_OF_EACH = 128 * 1024
"""Bytes of each part from which on a mean in one pass pays."""

_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
_USUAL_CACHE = 32 * 1024 * 1024
"""Bytes, where the system does not tell."""

_STEP = 4 * LINE
"""Bytes that are read before they are written."""

# The processor has to be told what a copy reads next: it does not guess so far ahead. The fence is
# for who hears by an ordinary store that the copy is there: that must not overtake these.
_COPY = """
declare void @llvm.prefetch.p0(ptr, i32, i32, i32)

define void @copy(ptr %to, ptr %from, i64 %nbytes) {
begin:
  br label %step
step:
  %at = phi i64 [0, %begin], [%next, %step]
  %source = getelementptr i8, ptr %from, i64 %at
  %ahead0 = getelementptr i8, ptr %source, i64 1024
  %ahead1 = getelementptr i8, ptr %source, i64 1088
  %ahead2 = getelementptr i8, ptr %source, i64 1152
  %ahead3 = getelementptr i8, ptr %source, i64 1216
  call void @llvm.prefetch.p0(ptr %ahead0, i32 0, i32 0, i32 1)
  call void @llvm.prefetch.p0(ptr %ahead1, i32 0, i32 0, i32 1)
  call void @llvm.prefetch.p0(ptr %ahead2, i32 0, i32 0, i32 1)
  call void @llvm.prefetch.p0(ptr %ahead3, i32 0, i32 0, i32 1)
  %lines = load <64 x i32>, ptr %source, align 1
  %target = getelementptr i8, ptr %to, i64 %at
  store <64 x i32> %lines, ptr %target, align 64, !nontemporal !0
  %next = add nuw i64 %at, 256
  %over = icmp eq i64 %next, %nbytes
  br i1 %over, label %end, label %step
end:
  fence seq_cst
  ret void
}

!0 = !{i32 1}
"""

# Addresses: of as many parts as there are, then of as many targets. Adding to -0 changes no bit.
_MEAN = Template("""
define void @$name(ptr %addresses, i64 %count, i64 %nbytes, $element %number) {
begin:
  %one = insertelement $vector poison, $element %number, i64 0
  %numbers = shufflevector $vector %one, $vector poison, <$width x i32> zeroinitializer
  %none = insertelement $vector poison, $element -0.0, i64 0
  %nones = shufflevector $vector %none, $vector poison, <$width x i32> zeroinitializer
  %targets = getelementptr ptr, ptr %addresses, i64 %count
  br label %step
step:
  %at = phi i64 [0, %begin], [%next, %written]
  br label %add
add:
  %row = phi i64 [0, %step], [%row_after, %add]
  %before = phi $vector [%nones, %step], [%sum, %add]
  %part_at = getelementptr ptr, ptr %addresses, i64 %row
  %part = load ptr, ptr %part_at
  %source = getelementptr i8, ptr %part, i64 %at
  %stored = load $stored, ptr %source, align $size
  %values = $widened
  %sum = fadd $vector %before, %values
  %row_after = add nuw i64 %row, 1
  %all_added = icmp eq i64 %row_after, %count
  br i1 %all_added, label %divide, label %add
divide:
  %quotient = $operation $vector %sum, %numbers
  %mean = $narrowed
  br label %write
write:
  %column = phi i64 [0, %divide], [%column_after, %write]
  %target_at = getelementptr ptr, ptr %targets, i64 %column
  %target = load ptr, ptr %target_at
  %place = getelementptr i8, ptr %target, i64 %at
  store $stored %mean, ptr %place, align $size
  %column_after = add nuw i64 %column, 1
  %all_written = icmp eq i64 %column_after, %count
  br i1 %all_written, label %written, label %write
written:
  %next = add nuw i64 %at, 256
  %over = icmp eq i64 %next, %nbytes
  br i1 %over, label %end, label %step
end:
  ret void
}
""")
_ELEMENTS = {
    np.dtype(np.float16): ("half", "float", ctypes.c_float),
    np.dtype(np.float32): ("float", "float", ctypes.c_float),
    np.dtype(np.float64): ("double", "double", ctypes.c_double),
}
"""How LLVM calls what has a pass, and what it is summed in, and C calls the latter."""

_OPERATIONS = {np.multiply: "fmul", np.divide: "fdiv"}
"""How LLVM calls what is done to a sum."""


def problem() -> str | None:
    """Return why there are no such passes in this process, or None; takes 0.1 s the first time."""
    compiled = _compiled()
    return compiled if isinstance(compiled, str) else None


def copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy to other memory, which this core does not read again soon; else as ``numpy.copyto``."""
    fit = (
        source.nbytes >= LEAST
        and source.dtype == target.dtype
        and source.shape == target.shape
        and source.flags.c_contiguous
        and target.flags.carray
        and target.ctypes.data % LINE == 0
    )
    stream = _pass("copy") if fit else None
    if stream is None:
        np.copyto(target, source)
        return
    whole = source.nbytes // _STEP * _STEP
    stream(target.ctypes.data, source.ctypes.data, whole)
    if whole < source.nbytes:
        as_bytes(target)[whole:] = as_bytes(source)[whole:]


def mean(
    parts: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    operation: np.ufunc,
    number: np.generic,
) -> int:
    """Write the mean of arrays into as many others, which may be the same, but not overlap.

    To the last bit what NumPy comes to that adds them in their order, and divides; NaNs are NaNs.

    Parameters
    ----------
    parts, targets
        Flat, contiguous, of one dtype and size; float16 is summed in float32 and rounded once.
    operation, number
        What is done to their sum: ``numpy.multiply`` or ``numpy.divide``, and by what.

    Returns
    -------
    How many elements from the first on are written; 0 where there is no such pass, or it would
    not pay.
    """
    first = parts[0]
    fit = first.nbytes >= LEAST_OF_EACH and first.dtype in _ELEMENTS
    average = _pass(_name(first.dtype, operation)) if fit else None
    if average is None:
        return 0
    nbytes = first.nbytes // _STEP * _STEP
    table = np.array([array.ctypes.data for side in (parts, targets) for array in side], np.uintp)
    average(table.ctypes.data, len(parts), nbytes, float(number))
    return nbytes // first.itemsize


@functools.cache
def _cache() -> int:
    """Return the bytes of the processor's last cache."""
    sizes = []
    for path in _CACHES.glob("index*/size"):
        with contextlib.suppress(OSError, ValueError):
            sizes.append(1024 * int(path.read_text().strip().removesuffix("K")))
    return max(sizes, default=0) or _USUAL_CACHE


def exceeds_caches(nbytes: int) -> bool:
    """Say whether memory that this host works on is too much for its caches: what is then copied
    is better not left in them."""
    return nbytes > _cache()


def _name(dtype: np.dtype, operation: np.ufunc) -> str:
    return f"{operation.__name__}_{dtype.name}"


def _pass(name: str) -> Callable[..., None] | None:
    compiled = _compiled()
    return None if isinstance(compiled, str) else compiled.get(name)


@functools.cache
def _compiled() -> Mapping[str, Callable[..., None]] | str:
    """Return the passes by name, or why there are none."""
    text, arguments = [_COPY], {"copy": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)}
    try:
        for dtype, (kept, element, c_type) in _ELEMENTS.items():
            if kept == "half" and not _converts_halves():
                continue
            width = _STEP // dtype.itemsize
            stored, vector = f"<{width} x {kept}>", f"<{width} x {element}>"
            wider, narrower = ("freeze",) * 2 if stored == vector else ("fpext", "fptrunc")
            to, back = ("", "") if stored == vector else (f" to {vector}", f" to {stored}")
            for operation, code in _OPERATIONS.items():
                name = _name(dtype, operation)
                text.append(
                    _MEAN.substitute(
                        name=name,
                        element=element,
                        stored=stored,
                        vector=vector,
                        operation=code,
                        widened=f"{wider} {stored} %stored{to}",
                        narrowed=f"{narrower} {vector} %quotient{back}",
                        width=width,
                        size=dtype.itemsize,
                    )
                )
                arguments[name] = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, c_type)
        # LLVM does not notice where a process may not make memory executable.
        mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_WRITE | mmap.PROT_EXEC).close()
        engine = _compile("".join(text))
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    passes = {}
    for name, types in arguments.items():
        passes[name] = ctypes.CFUNCTYPE(None, *types)(engine.get_function_address(name))
        passes[name].engine = engine  # the code lives as long as it does
    return passes


def _compile(text: str) -> Any:
    """Return what holds the code of a text in LLVM's language, for this processor."""
    from llvmlite import binding

    engine = binding.create_mcjit_compiler(binding.parse_assembly(text), _machine())
    engine.finalize_object()
    return engine


def _converts_halves() -> bool:
    """Say whether the processor does: otherwise LLVM calls functions that are not there."""
    from llvmlite import binding

    triple = binding.get_default_triple()
    if triple.startswith(("x86", "i386", "i686", "amd64")):
        return binding.get_host_cpu_features().get("f16c", False)
    return triple.startswith(("aarch64", "arm64"))


def _machine() -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    return binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=2
    )
