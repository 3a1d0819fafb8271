"""What NVIDIA's driver tells of a GPU, asked through nvidia-ml-py, which is loaded when first used.

Devices are found by their UUID or place on the PCI bus: the numbers by which CUDA knows them in
this process say nothing to the driver (``CUDA_VISIBLE_DEVICES``).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

LINKS = 36
"""NVLinks of a GPU at most."""

_HOT, _BRAKED = 0x20 | 0x40, 0x80
"""Why clocks are low, by the numbers of ``nvml.h``: nvidia-ml-py has changed their names."""


class DriverError(RuntimeError):
    """The driver cannot be asked, or does not know the GPU any more."""


@dataclass(frozen=True, slots=True)
class Tenant:
    """A process that uses a GPU."""

    pid: int
    """In the driver's eyes; in a container it may have another."""
    used: int | None
    """Bytes; None where the driver does not tell."""


class Gpu:
    """One GPU, or one instance of a GPU that is divided (MIG). Local; of any thread.

    Parameters
    ----------
    uuid : str
        As CUDA gives it, 32 hexadecimal digits; empty if it is not known.
    bus_id : str
        As CUDA gives it: domain, bus, device and function; empty if it is not known.
    visible : str
        What ``CUDA_VISIBLE_DEVICES`` says, where CUDA may give the UUID of the whole GPU.

    Raises
    ------
    DriverError
        nvidia-ml-py or the driver is missing, or the driver knows no such GPU. So do all methods
        once the driver has lost the GPU; where it merely does not tell they return None.
    """

    def __init__(self, uuid: str, bus_id: str = "", visible: str = "") -> None:
        self._nvml = _library()
        self._silent = {
            self._nvml.NVML_ERROR_NOT_SUPPORTED,
            self._nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
            self._nvml.NVML_ERROR_NO_PERMISSION,
            self._nvml.NVML_ERROR_INVALID_ARGUMENT,
            self._nvml.NVML_ERROR_NOT_FOUND,
            self._nvml.NVML_ERROR_NO_DATA,
            # What sandboxes such as gVisor do not pass on to the driver.
            self._nvml.NVML_ERROR_OPERATING_SYSTEM,
            self._nvml.NVML_ERROR_UNKNOWN,
        }
        self._handle = self._found(names(uuid, bus_id, visible))
        # What concerns the card, not a part of its memory, is known of the whole GPU only.
        whole = self._ask("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self._handle)
        self._card = self._handle if whole is None else whole
        self._links: int | None = None

    def _found(self, candidates: tuple[str, ...]) -> Any:
        problem = "its UUID is not known"
        for name in candidates:
            by_uuid = name.startswith(("MIG-", "GPU-"))
            find = "nvmlDeviceGetHandleByUUID" if by_uuid else "nvmlDeviceGetHandleByPciBusId"
            try:
                return getattr(self._nvml, find)(name)
            except self._nvml.NVMLError as error:
                problem = str(error)
        raise DriverError(
            f"the driver knows no {candidates[-1] if candidates else 'GPU'} ({problem})"
        )

    def memory(self) -> tuple[int, int] | None:
        """Bytes in use, by whomever, and in all."""
        # The first version counts what the driver keeps for itself as used; old ones have no other.
        version = getattr(self._nvml, "nvmlMemory_v2", None)
        more = () if version is None else (version,)
        told = self._ask("nvmlDeviceGetMemoryInfo", self._handle, *more)
        return None if told is None else (told.used, told.total)

    def utilisation(self) -> int | None:
        """Percent of the time in which it computed; unknown of a part of a GPU."""
        told = self._ask("nvmlDeviceGetUtilizationRates", self._handle)
        return None if told is None else told.gpu

    def temperature(self) -> int | None:
        """Degrees Celsius."""
        sensor = self._nvml.NVML_TEMPERATURE_GPU
        told = self._ask("nvmlDeviceGetTemperatureV", self._card, sensor)
        # Drivers of CUDA 12 have the old function only, those after CUDA 13 the new one.
        return self._ask("nvmlDeviceGetTemperature", self._card, sensor) if told is None else told

    def link(self) -> str:
        """How it is connected: by how many NVLinks, else by which PCI Express."""
        if self._links is None:
            self._links = self._active_links()
        if self._links:
            return f"NVLink ×{self._links}"
        # It is slower while the GPU has nothing to do.
        generation = self._ask("nvmlDeviceGetCurrPcieLinkGeneration", self._card)
        width = self._ask("nvmlDeviceGetCurrPcieLinkWidth", self._card)
        return f"PCIe {generation} ×{width}" if generation and width else ""

    def _active_links(self) -> int:
        links = 0
        for number in range(LINKS):
            active = self._ask("nvmlDeviceGetNvLinkState", self._card, number)
            if active is None:  # it has no more of them
                break
            links += active
        return links

    def slowed(self) -> str:
        """Why its clocks are low: ``heat``, ``power`` (the supply's, not its own limit), or not."""
        reasons = self._ask("nvmlDeviceGetCurrentClocksEventReasons", self._card)
        if reasons is None:  # what it was called before CUDA 12.2
            reasons = self._ask("nvmlDeviceGetCurrentClocksThrottleReasons", self._card) or 0
        if reasons & _HOT:
            return "heat"
        return "power" if reasons & _BRAKED else ""

    def tenants(self) -> tuple[Tenant, ...]:
        """The processes that compute on it."""
        told = self._ask("nvmlDeviceGetComputeRunningProcesses", self._handle) or ()
        return tuple(Tenant(process.pid, process.usedGpuMemory) for process in told)

    def _ask(self, name: str, *arguments: Any) -> Any:
        call: Callable[..., Any] | None = getattr(self._nvml, name, None)
        if call is None:  # of a later nvidia-ml-py
            return None
        try:
            return call(*arguments)
        except self._nvml.NVMLError as error:
            if error.value in self._silent:
                return None
            raise DriverError(str(error)) from error


def names(uuid: str, bus_id: str, visible: str) -> tuple[str, ...]:
    """What the driver may call a device, the most special first.

    Examples
    --------
    >>> names("0" * 32, "", "0,1")
    ('MIG-00000000-0000-0000-0000-000000000000', 'GPU-00000000-0000-0000-0000-000000000000')
    >>> names("", "0000:07:00.0", "")
    ('0000:07:00.0',)
    """
    name = "-".join((uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]))
    known = (f"MIG-{name}", f"GPU-{name}") if uuid else ()
    # CUDA shows a process one part of a GPU only, the first that is named.
    first = visible.partition(",")[0].strip()
    named = (first,) if first.startswith("MIG-") else ()
    return (*named, *known, *((bus_id,) if bus_id else ()))


def gpu_of(uuid: str, bus_id: str = "") -> Gpu:
    """The GPU that CUDA calls so, as this process sees it; raises as :class:`Gpu`."""
    return Gpu(uuid, bus_id, os.environ.get("CUDA_VISIBLE_DEVICES", ""))


def _library() -> ModuleType:
    """nvidia-ml-py, once it has found the driver."""
    found = _loaded()
    if isinstance(found, str):
        raise DriverError(found)
    return found


@functools.cache
def _loaded() -> ModuleType | str:
    """nvidia-ml-py, or why there is none, which is found out once: it is asked for every second."""
    try:
        import pynvml
    except ImportError:
        return "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return str(error)
    return pynvml
