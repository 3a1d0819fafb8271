"""Links defined in a notebook, sent to another process."""

from __future__ import annotations

from types import ModuleType

from nbmn.compat.repair import Repair


def _device_resident(module: ModuleType) -> None:
    # Found by name, it is pickled by name: then both processes mean the same class.
    metaclass = type(module.DeviceResident)
    metaclass.__module__ = module.__name__
    metaclass.__qualname__ = metaclass.__name__ = "DeviceResidentMeta"
    module.DeviceResidentMeta = metaclass


REPAIRS = (
    Repair(
        "chainer.device_resident",
        "a name for the metaclass of all links",
        "it is local to a function, so cloudpickle sent it by value with every class defined in "
        "a notebook, and the receiver found a metaclass conflict with its own Chain",
        after=_device_resident,
    ),
)
