"""Wheels for a machine without network, of Python 3.12 on x86-64: gathered, and used there."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = "3.12"
CHAINER = "chainer==7.8.1"
PACKAGES = (
    *("mpich", "mpi4py", "cloudpickle", "psutil", "nvidia-ml-py", "ml-dtypes"),
    # Chainer's needs; pkg_resources, which chainer.gradient_check imports, is gone from 82.
    *("six", "filelock", "typing-extensions", "protobuf", "setuptools<82"),
)
"""Without NumPy and CuPy, which are there, and in each other's versions."""
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in (28, 27, 24, 17, 12, 5))
MOST = 64 << 20
"""Bytes that may be carried."""


def collect(folder: Path) -> str:
    """Gather the wheels in a folder; needs a network. Returns what to say."""
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.glob("*.whl")):
        raise SystemExit(f"{folder} has wheels already, maybe of other versions: name a new folder")
    constraints = str(ROOT / "build-constraints.txt")
    # pip 25.3 and later take the second, earlier ones the first.
    building = {"PIP_CONSTRAINT": constraints, "PIP_BUILD_CONSTRAINT": constraints}
    _pip("wheel", "--no-deps", "-w", str(folder), CHAINER, more=building)
    _pip(
        *("download", "--no-deps", "--only-binary=:all:", "-d", str(folder)),
        *("--python-version", PYTHON, "--implementation", "cp"),
        *(word for name in PLATFORMS for word in ("--platform", name)),
        *PACKAGES,
    )
    found = sorted(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in found)
    if size > MOST:
        raise SystemExit(f"{size / 2**20:.0f} MiB of wheels in {folder} are too many to carry")
    return f"{len(found)} wheels, {size / 2**20:.1f} MiB, in {folder}"


def install(folder: Path, site: Path) -> str:
    """Install the wheels of a folder below ``site``, for this Python; needs no network.

    Not in a virtual environment: one made from another sees only what the first was made from,
    and CuPy looks for CUDA's libraries beside the interpreter.
    """
    found = sorted(map(str, folder.resolve().glob("*.whl")))
    _pip(
        *("install", "--no-index", "--no-deps", "--no-compile", "--ignore-installed"),
        *("--no-warn-script-location", "--prefix", str(site), *found),
    )
    return f"installed {len(found)} wheels"


def using(site: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Return what in the environment makes Python and mpiexec use what was installed."""
    packages = [p for name in ("site-packages", "dist-packages") for p in site.rglob(name)]
    mpi = next(site.rglob("libmpi.so.12"))
    launcher = next(path for path in site.rglob("mpiexec") if os.access(path, os.X_OK))
    return {
        "PYTHONPATH": os.pathsep.join([*map(str, packages), environment["PYTHONPATH"]]),
        "PATH": os.pathsep.join([str(launcher.parent), environment.get("PATH", os.defpath)]),
        "MPI4PY_LIBMPI": str(mpi),
    }


def _pip(*arguments: str, more: Mapping[str, str] | None = None) -> None:
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", **(more or {})}
    command = [sys.executable, "-m", "pip", "-q", *arguments]
    # Elsewhere than in the checkout, whose folders pip might take for packages.
    with tempfile.TemporaryDirectory() as elsewhere:
        ran = subprocess.run(
            command,
            cwd=elsewhere,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if ran.returncode:
        raise SystemExit(f"pip {arguments[0]} failed:\n{ran.stdout[-4000:]}")
