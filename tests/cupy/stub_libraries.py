"""CUDA's libraries with nothing in them, for CuPy's modules that are linked against them."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections import defaultdict
from pathlib import Path

BESIDES = ("libcublasLt", "libnvJitLink")  # loaded by name, in cuBLAS' version
SIZES = {  # functions of cuSOLVER that tell sizes of workspaces: at which arguments, of what type
    "Xsyevd": ((12, 13), "long"),
    **{kind + name: ((6,), "int") for kind in "SDCZ" for name in ("potrf", "getrf", "geqrf")},
    **{kind + name: ((8,), "int") for kind in "SD" for name in ("orgqr", "syevd")},
    **{kind + name: ((8,), "int") for kind in "CZ" for name in ("ungqr", "heevd")},
    **{kind + "gesvd": ((4,), "int") for kind in "SDCZ"},
}
SIZE = "_bufferSize"
STUBBED = ("libcublas", "libcurand", "libcusolver", "libcusparse", "libcufft")


def build(folder: Path) -> None:
    """Compile the libraries that the installed CuPy wants, of functions that return 0."""
    wanted: defaultdict[str, set[str]] = defaultdict(set)
    for module in modules():
        listed = subprocess.run(
            ["nm", "-D", "--undefined-only", module], capture_output=True, text=True, check=True
        )
        for symbol, library in re.findall(r" U (\w+)@(\S+)", listed.stdout):
            if library.startswith(STUBBED):
                wanted[library].add(symbol)
        wanted["libnccl.so.2"] |= set(re.findall(r" U (nccl\w+)$", listed.stdout, re.MULTILINE))
    for library, symbols in wanted.items():
        compile_library(folder, library, symbols)
        if library.startswith("libcublas.so"):
            for name in BESIDES:
                compile_library(folder, library.replace("libcublas", name), set())


def modules() -> list[Path]:
    backends = Path(importlib.util.find_spec("cupy_backends").origin).parent
    return [*backends.rglob("*.so"), *(backends.parent / "cupy" / "cuda").glob("*.so")]


def compile_library(folder: Path, name: str, symbols: set[str]) -> None:
    versions = folder / f"{name}.map"
    versions.write_text(f"{name} {{ global: *; }};\n")
    source = folder / f"{name}.c"
    source.write_text("".join(function(symbol) for symbol in sorted(symbols)))
    subprocess.run(
        [
            *("cc", "-shared", "-fPIC", "-w", "-o", folder / name, source),
            *(f"-Wl,-soname,{name}", f"-Wl,--version-script={versions}"),
        ],
        check=True,
    )


def function(symbol: str) -> str:
    positions, kind = SIZES.get(symbol.removeprefix("cusolverDn").removesuffix(SIZE), ((), ""))
    if not positions or not symbol.endswith(SIZE):
        return f"int {symbol}(void) {{ return 0; }}\n"
    arguments = ", ".join(
        f"{kind}* a{n}" if n in positions else f"long a{n}" for n in range(1, max(positions) + 1)
    )
    told = " ".join(f"*a{n} = 1;" for n in positions)
    return f"int {symbol}({arguments}) {{ {told} return 0; }}\n"


if __name__ == "__main__":
    import sys

    build(Path(sys.argv[1]))
