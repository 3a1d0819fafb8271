"""The packing kernel compiled by NVRTC, without a GPU, to machine code of several of them."""

from __future__ import annotations

import ctypes
import itertools
import re
from importlib import metadata

import pytest

from nbmn.gpu.kernels import Conversion, options
from nbmn.gpu.kernels_source import SOURCE
from nbmn.gpu.kernels_table import LARGE, SMALL

FLOATS = ("f16", "bf16", "f32", "f64")
CONVERSIONS = [
    *itertools.starmap(Conversion, itertools.product(FLOATS, FLOATS)),
    *(Conversion(f"u{size}", f"u{size}") for size in (8, 16, 32, 64)),
    Conversion("f32", "f16", "f16"),
    Conversion("f64", "f32", "bf16"),
]


@pytest.fixture(scope="module")
def nvrtc():
    for name in ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12"):
        try:
            files = metadata.files(name) or []
        except metadata.PackageNotFoundError:
            continue
        for file in files:
            if re.fullmatch(r"libnvrtc\.so\.\d+", file.name):
                return ctypes.CDLL(str(file.locate()))
    return pytest.skip("needs the wheel nvidia-cuda-nvrtc")


def compile_cubin(nvrtc, arch, macros):
    """Return the machine code, and what the assembler says of it."""
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
def test_compiles_without_spills(nvrtc, conversion, arch):
    cubin, log = compile_cubin(nvrtc, arch, options(conversion, SMALL))
    assert cubin.startswith(b"\x7fELF")
    assert "warning" not in log
    # Nothing of the table or of what is in flight goes through local memory.
    assert "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads" in log
    # Two blocks fit at the least, with 32 KiB in flight.
    assert int(re.search(r"Used (\d+) registers", log)[1]) <= 128


def test_large_tables_compile(nvrtc):
    _, log = compile_cubin(nvrtc, "sm_90", options(Conversion("f32", "f16"), LARGE))
    assert "0 bytes stack frame" in log


@pytest.mark.parametrize("arch", ["sm_75", "sm_100"])
def test_other_generations(nvrtc, arch):
    compile_cubin(nvrtc, arch, options(Conversion("f64", "bf16"), SMALL))
