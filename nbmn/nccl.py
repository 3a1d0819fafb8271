"""What ChainerMN names of CuPy's NCCL; looked up when first used, for CuPy may not be there."""

from __future__ import annotations

from typing import Any

_NAMES = frozenset(
    {
        "NCCL_FLOAT",
        "NCCL_FLOAT16",
        "NCCL_FLOAT32",
        "NCCL_FLOAT64",
        "NCCL_SUM",
        "NcclCommunicator",
        "NcclError",
        "get_build_version",
        "get_unique_id",
        "get_version",
    }
)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'nbmn.nccl' has no attribute {name!r}")
    try:
        from cupy.cuda import nccl
    except ImportError as error:
        raise AttributeError(f"nbmn.nccl.{name} needs CuPy with NCCL: {error}") from error
    return getattr(nccl, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
