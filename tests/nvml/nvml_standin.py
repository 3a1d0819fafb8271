"""A stand-in for NVIDIA's driver library, compiled here, and what it says of GPUs."""

from __future__ import annotations

import functools
import importlib.util
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
GIB = 1 << 30
GPU_IS_LOST, NOT_SUPPORTED = 15, 3


def reason_to_skip() -> str | None:
    if importlib.util.find_spec("pynvml") is None:
        return "nvidia-ml-py is not installed"
    return None if shutil.which("gcc") else "no gcc installed"


@functools.cache
def library() -> Path:
    """Compile the stand-in; return its file."""
    path = Path(tempfile.mkdtemp(prefix="nbmn-nvml-")) / "libnvidia-ml.so.1"
    subprocess.run(
        [
            *("gcc", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"),
            *("-Werror", "-o", path, HERE / "libnvidia_ml_standin.c"),
        ],
        check=True,
        timeout=60,
    )
    return path


def environment(says: Path) -> dict[str, str]:
    """Return the variables under which a process meets the stand-in, to say what a file says."""
    earlier = os.environ.get("LD_LIBRARY_PATH")
    folder = str(library().parent)
    return {
        "LD_LIBRARY_PATH": f"{folder}:{earlier}" if earlier else folder,
        "NBMN_NVML_STANDIN": str(says),
    }


def uuid(number: int) -> str:
    """Return a UUID as CUDA gives it."""
    return f"{number:032x}"


def name(number: int, kind: str = "GPU") -> str:
    """Return the same as the driver gives it."""
    digits = uuid(number)
    return f"{kind}-{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


def gpu(device: str, links: int = 0, **told: int) -> str:
    """Return the lines of one device; ``used_`` for ``used!``, ``-`` is written ``_`` elsewhere."""
    told = {"exists": 1, **told, **{f"link-{n}": 1 for n in range(links)}}
    return "".join(f"{device} {_key(what)} {value}\n" for what, value in told.items())


def _key(what: str) -> str:
    failing = what.endswith("_")
    return what.rstrip("_").replace("_", "-") + "!" * failing


def say(path: Path, *lines: str) -> None:
    """Write what the stand-in says, at once."""
    beside = path.with_suffix(".new")
    beside.write_text("".join(lines))
    beside.replace(path)
