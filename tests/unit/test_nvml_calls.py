"""What is asked of nvidia-ml-py, of whichever version, and how often."""

from __future__ import annotations

import sys
from collections import Counter
from types import SimpleNamespace

import pytest

from nbmn.engine import nvml
from nbmn.engine.gpu_watch import sample
from nbmn.engine.nvml import DriverError, Gpu

CODES = (
    *("NOT_SUPPORTED", "FUNCTION_NOT_FOUND", "NO_PERMISSION"),
    *("INVALID_ARGUMENT", "NOT_FOUND", "NO_DATA", "OPERATING_SYSTEM", "UNKNOWN"),
)


class Silence(Exception):
    value = "NOT_SUPPORTED"


class Library(SimpleNamespace):
    """nvidia-ml-py of some version: it has the functions that are given, and counts calls."""

    NVMLError = Silence
    NVML_TEMPERATURE_GPU = 0

    def __init__(self, functions, **more):
        self.calls = Counter()
        functions = {"nvmlDeviceGetHandleByUUID": str, **functions}
        super().__init__(**{f"NVML_ERROR_{code}": code for code in CODES}, **more)
        for name, function in functions.items():
            setattr(self, name, self.counted(name, function))

    def counted(self, name, function):
        def call(*arguments):
            self.calls[name] += 1
            return function(*arguments)

        return call


@pytest.fixture
def gpu_by(monkeypatch):
    """Return what makes a GPU of which a library tells."""

    def make(library):
        monkeypatch.setattr(nvml, "_library", lambda: library)
        return Gpu("0" * 32)

    return make


OLD = {
    "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=3, total=8),
    "nvmlDeviceGetTemperature": lambda handle, sensor: 44,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x40,
}


def test_old_libraries_tell_what_they_can(gpu_by):
    told = sample(gpu_by(Library(OLD)), 1, "run")
    assert (told.used, told.total, told.temperature, told.slowed) == (3, 8, 44, "heat")
    assert (told.utilisation, told.link) == (None, "")


def test_libraries_that_have_nothing(gpu_by):
    gpu = gpu_by(Library({}))
    told = sample(gpu, 1, "run")
    assert (told.used, told.total, told.temperature, told.slowed) == (None, None, None, "")
    assert gpu.tenants() == ()


def test_new_libraries_are_asked_for_the_new_version(gpu_by):
    def memory(handle, version):
        assert version == 2
        return SimpleNamespace(used=3, total=8)

    assert gpu_by(Library({"nvmlDeviceGetMemoryInfo": memory}, nvmlMemory_v2=2)).memory() == (3, 8)


@pytest.mark.parametrize(("there", "told"), [(18, "NVLink ×18"), (0, "PCIe 5 ×16")])
def test_links_are_counted_once(gpu_by, there, told):
    def state(handle, number):
        if number >= there:
            raise Silence
        return 1

    library = Library(
        {
            "nvmlDeviceGetNvLinkState": state,
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda handle: 5,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda handle: 16,
        }
    )
    gpu = gpu_by(library)
    assert [gpu.link() for _ in range(3)] == [told] * 3
    assert library.calls["nvmlDeviceGetNvLinkState"] == there + 1


def test_a_missing_library_is_looked_for_once(monkeypatch):
    looks = []

    class Finder:
        def find_spec(self, name, path=None, target=None):
            if name == "pynvml":
                looks.append(name)
                raise ImportError(name)

    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    nvml._loaded.cache_clear()
    try:
        for _ in range(3):
            with pytest.raises(DriverError, match="not installed"):
                Gpu("0" * 32)
    finally:
        nvml._loaded.cache_clear()
    assert len(looks) == 1
