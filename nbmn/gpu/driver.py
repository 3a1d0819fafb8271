"""What CUDA's driver is asked itself, because CuPy does not pass it on whole."""

from __future__ import annotations

import ctypes
import functools

_UUID = ctypes.c_char * 16


def uuid(device: int) -> str:
    """Return a device's UUID, or that of the part of it (MIG) which this process sees; local.

    CuPy's ends before its first zero byte, which one in sixteen has.

    Returns
    -------
    32 hexadecimal digits; empty where the driver does not tell.
    """
    driver = _library()
    handle, found = ctypes.c_int(), _UUID()
    if driver is None or driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(handle), device):
        return ""
    failed = driver.cuDeviceGetUuid_v2(found, handle)
    return "" if failed else found.raw.hex()


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        driver.cuDeviceGetUuid_v2  # noqa: B018 - older drivers do not have it
    except (OSError, AttributeError):
        return None
    return driver
