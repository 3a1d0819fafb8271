"""Passes over memory that NumPy does not have, compiled by llvmlite where it can.

Averaging gradients is memory traffic, of which two things make less. A *streaming* copy writes past
the caches: an ordinary one makes the processor fetch each line that it is about to overwrite.
A *fused* mean reads each line of memory once and writes it once, where NumPy passes over a piece
for each rank's part, for the division, and for each place where the mean goes.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import numpy as np

LEAST = 64 * 1024
"""Bytes from which on a streaming copy pays."""

LINE = 64
"""Bytes of a cache line, on which a streaming copy's target begins."""

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
  %values = load $vector, ptr %source, align $size
  %sum = fadd $vector %before, %values
  %row_after = add nuw i64 %row, 1
  %all_added = icmp eq i64 %row_after, %count
  br i1 %all_added, label %divide, label %add
divide:
  %mean = $operation $vector %sum, %numbers
  br label %write
write:
  %column = phi i64 [0, %divide], [%column_after, %write]
  %target_at = getelementptr ptr, ptr %targets, i64 %column
  %target = load ptr, ptr %target_at
  %place = getelementptr i8, ptr %target, i64 %at
  store $vector %mean, ptr %place, align $size
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
_ELEMENTS = {"f": ("float", ctypes.c_float), "d": ("double", ctypes.c_double)}
"""LLVM's name of what NumPy has a letter for, and C's."""


def available() -> bool:
    """Say whether there are such passes in this process."""
    return _compiled() is not None


def copy(target: np.ndarray, source: np.ndarray) -> None:
    """Copy to an array of the same shape, which this core does not read again soon."""
    passes = _compiled() if source.nbytes >= LEAST else None
    if (
        passes is None
        or source.dtype != target.dtype
        or not (source.flags.c_contiguous and target.flags.c_contiguous)
        or target.ctypes.data % LINE
    ):
        np.copyto(target, source)
        return
    rest = source.nbytes % _STEP
    passes["copy"](target.ctypes.data, source.ctypes.data, source.nbytes - rest)
    if rest:
        end = source.size - rest // source.itemsize
        np.copyto(target.reshape(-1)[end:], source.reshape(-1)[end:])


def mean(parts: Sequence[np.ndarray], targets: Sequence[np.ndarray], divisor: int) -> int:
    """Write the mean of flat arrays of one dtype into as many others, which may be the same.

    To the last bit what NumPy comes to that adds them in their order, and divides.

    Returns
    -------
    How many elements from the first on are written; 0 where there is no such pass.
    """
    dtype = parts[0].dtype
    nbytes = parts[0].nbytes // _STEP * _STEP
    passes = _compiled() if nbytes and dtype.char in _ELEMENTS else None
    if passes is None:
        return 0
    addresses = [array.ctypes.data for side in (parts, targets) for array in side]
    table = np.array(addresses, np.uintp)
    operation, number = ("fmul", 1 / divisor) if is_exact(divisor) else ("fdiv", divisor)
    passes[_name(dtype.char, operation)](table.ctypes.data, len(parts), nbytes, number)
    return nbytes // dtype.itemsize


@functools.cache
def _cache() -> int:
    """Return the bytes of the processor's last cache."""
    sizes = [path.read_text().strip() for path in _CACHES.glob("index*/size")]
    known = [1024 * int(size[:-1]) for size in sizes if size.endswith("K")]
    return max(known, default=_USUAL_CACHE)


def exceeds_caches(nbytes: int) -> bool:
    """Say whether memory that this host works on is too much for its caches: what is then copied
    is better not left in them."""
    return nbytes > _cache()


def is_exact(divisor: int) -> bool:
    """Say whether to multiply by the inverse, which is cheaper, changes no bit."""
    return divisor > 0 and divisor & (divisor - 1) == 0


def _name(char: str, operation: str) -> str:
    return f"mean_{char}_{operation}"


@functools.cache
def _compiled() -> Mapping[str, Callable[..., None]] | None:
    """Return the passes by name, None where they cannot be compiled; takes 0.1 s."""
    text, arguments = [_COPY], {"copy": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)}
    for char, (element, c_type) in _ELEMENTS.items():
        size = ctypes.sizeof(c_type)
        width = _STEP // size
        for operation in ("fmul", "fdiv"):
            name, vector = _name(char, operation), f"<{width} x {element}>"
            names = {"name": name, "element": element, "vector": vector, "operation": operation}
            text.append(_MEAN.substitute(names, width=width, size=size))
            arguments[name] = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, c_type)
    try:
        engine = _compile("".join(text))
    except (ImportError, OSError, RuntimeError):
        return None  # there is no llvmlite, or none that knows this language and processor
    passes = {}
    for name, types in arguments.items():
        passes[name] = ctypes.CFUNCTYPE(None, *types)(engine.get_function_address(name))
        passes[name].engine = engine  # the code lives as long as it does
    return passes


def _compile(text: str) -> Any:
    from llvmlite import binding

    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=binding.get_host_cpu_name(), features=binding.get_host_cpu_features().flatten(), opt=2
    )
    engine = binding.create_mcjit_compiler(binding.parse_assembly(text), machine)
    engine.finalize_object()
    return engine
