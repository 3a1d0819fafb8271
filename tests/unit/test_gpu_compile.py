"""The packing kernel compiled by NVRTC, without a GPU, to machine code of several of them."""

from __future__ import annotations

import ctypes
import functools
import itertools
import re
from importlib import metadata

import pytest

from nbmn.gpu.kernels import Conversion, options
from nbmn.gpu.kernels_source import SOURCE
from nbmn.gpu.kernels_table import LARGE, SMALL, THREADS

FLOATS = ("f16", "bf16", "f32", "f64")
CONVERSIONS = [
    *itertools.starmap(Conversion, itertools.product(FLOATS, FLOATS)),
    *(Conversion(f"u{size}", f"u{size}") for size in (8, 16, 32, 64)),
    Conversion("f32", "f16", "f16"),
    Conversion("f64", "f32", "bf16"),
]

SIZES = {"f16": 2, "bf16": 2, "f32": 4, "f64": 8, "u8": 1, "u16": 2, "u32": 4, "u64": 8}
REGISTERS = 65_536
"""Of a multiprocessor, given out in eights for each thread."""
UNDER_WAY = 4.8e12 * 1.5e-6 / 132
"""Bytes for each multiprocessor of an H200 that keep its memory busy while a tile takes 1.5 µs."""


@functools.cache
def compilers():
    """Return NVRTC, each that is installed, by the generations of GPUs that it knows."""
    known = {}
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                nvrtc = ctypes.CDLL(str(file.locate()))
                known = dict.fromkeys(generations(nvrtc), nvrtc) | known
    return known


def generations(nvrtc):
    count = ctypes.c_int()
    assert nvrtc.nvrtcGetNumSupportedArchs(ctypes.byref(count)) == 0
    numbers = (ctypes.c_int * count.value)()
    assert nvrtc.nvrtcGetSupportedArchs(numbers) == 0
    return [f"sm_{number}" for number in numbers]


def compile_cubin(arch, macros):
    """Return the machine code, and what the assembler says of it."""
    nvrtc = compilers().get(arch)
    if nvrtc is None:
        pytest.skip(f"needs the wheel nvidia-cuda-nvrtc of a version that knows {arch}")
    program = ctypes.c_void_p()
    create = nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), SOURCE.encode(), b"pack.cu", 0, None, None
    )
    assert create == 0
    flags = [f"--gpu-architecture={arch}", "--ptxas-options=-v", *macros]
    given = (ctypes.c_char_p * len(flags))(*(flag.encode() for flag in flags))
    status = nvrtc.nvrtcCompileProgram(program, len(flags), given)
    log = read(nvrtc, program, "ProgramLog").decode().rstrip("\0")
    assert status == 0, log
    cubin = read(nvrtc, program, "CUBIN")
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return cubin, log


def read(nvrtc, program, what):
    size = ctypes.c_size_t()
    assert getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size)) == 0
    data = ctypes.create_string_buffer(size.value)
    assert getattr(nvrtc, f"nvrtcGet{what}")(program, data) == 0
    return data.raw


@pytest.mark.parametrize("arch", ["sm_90", "sm_80"])
@pytest.mark.parametrize("conversion", CONVERSIONS, ids=lambda c: f"{c.source}-{c.wire}-{c.target}")
def test_compiles_without_spills(conversion, arch):
    cubin, log = compile_cubin(arch, options(conversion, SMALL))
    assert cubin.startswith(b"\x7fELF")
    assert "warning" not in log
    # Nothing of the table or of what is in flight goes through local memory.
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    registers = int(re.search(r"Used (\d+) registers", log)[1])
    blocks = REGISTERS // (-(-registers // 8) * 8 * THREADS)
    tile = conversion.tiling.tile * (SIZES[conversion.source] + SIZES[conversion.target])
    assert blocks * tile >= UNDER_WAY


@pytest.mark.parametrize("arch", ["sm_90", "sm_75", "sm_70"])
def test_large_tables_compile(arch):
    _, log = compile_cubin(arch, options(Conversion("f32", "f16"), LARGE))
    assert "0 bytes stack frame" in log


@pytest.mark.parametrize("arch", ["sm_50", "sm_60", "sm_61", "sm_70", "sm_75", "sm_100"])
@pytest.mark.parametrize("conversion", [Conversion("f64", "bf16"), Conversion("f32", "f16")])
def test_other_generations(arch, conversion):
    _, log = compile_cubin(arch, options(conversion, SMALL))
    assert "0 bytes stack frame" in log
