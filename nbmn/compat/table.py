"""All repairs, in one table."""

from __future__ import annotations

from nbmn.compat import (
    cupy_kernels,
    environment,
    interface,
    numbers,
    numpy_names,
    pickling,
    precision,
    processes,
    protobuf,
)
from nbmn.compat.repair import Repair

REPAIRS: tuple[Repair, ...] = (
    *environment.REPAIRS,
    *numpy_names.REPAIRS,
    *precision.REPAIRS,
    *numbers.REPAIRS,
    *processes.REPAIRS,
    *protobuf.REPAIRS,
    *pickling.REPAIRS,
    *interface.REPAIRS,
    *cupy_kernels.REPAIRS,
)


def of_module(name: str) -> tuple[Repair, ...]:
    """Return the repairs of the module called `name`."""
    return tuple(repair for repair in REPAIRS if repair.module == name)
