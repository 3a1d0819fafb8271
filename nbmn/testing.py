"""Helpers for tests of multi-node code."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from chainer.backend import Device


def get_device(device_id: int | None = None, use_chainerx: bool = False) -> Device:
    """Return Chainer's device object of a GPU, or with None of the CPU; local.

    Parameters
    ----------
    device_id
        Number of the GPU on this host.
    use_chainerx
        For arrays of ChainerX rather than NumPy and CuPy.

    Raises
    ------
    RuntimeError
        CuPy or ChainerX is needed and not there.
    """
    import chainer

    if use_chainerx:
        return chainer.get_device("native:0" if device_id is None else f"cuda:{device_id}")
    return chainer.get_device("@numpy" if device_id is None else f"@cupy:{device_id}")
