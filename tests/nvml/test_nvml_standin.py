"""What the driver tells of a GPU: nvidia-ml-py itself, on a stand-in for the driver's library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_standin import GIB, GPU_IS_LOST, environment, gpu, name, reason_to_skip, say, uuid

from nbmn.engine.nvml import names

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))

_ASK = """
import dataclasses, json, os, sys
from nbmn.engine.gpu_watch import sample
from nbmn.engine.nvml import DriverError, gpu_of
for line in sys.stdin:
    uuid, bus_id, os.environ["CUDA_VISIBLE_DEVICES"] = json.loads(line)
    try:
        gpu = gpu_of(uuid, bus_id)
        told = dataclasses.asdict(sample(gpu, 3, "run"))
        told["tenants"] = [dataclasses.astuple(tenant) for tenant in gpu.tenants()]
    except DriverError as error:
        told = {"error": str(error)}
    print(json.dumps(told), flush=True)
"""


class Asker:
    """A process on the stand-in, which tells what nbmn is told of a device."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self._says = folder / "says"
        self._says.touch()
        self.process = subprocess.Popen(
            [sys.executable, "-c", _ASK],
            env={**os.environ, **environment(self._says), **variables},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, *lines: str, visible: str = "", uuid: str = uuid(7), bus_id: str = ""
    ) -> dict:
        say(self._says, *lines)
        self.process.stdin.write(json.dumps([uuid, bus_id, visible]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asker]:
    asker = Asker(tmp_path_factory.mktemp("nvml"))
    yield asker
    asker.process.communicate(timeout=30)


def test_everything_is_told_of_the_device_with_that_uuid(ask):
    other = gpu(name(8), total=1, used=1, utilisation=1, temperature=1, pcie_width=1)
    mine = gpu(
        name(7),
        links=18,
        total=80 * GIB,
        used=71 * GIB,
        utilisation=96,
        temperature=64,
        reasons=0x4,  # held back by its own limit of power: as it should be
        process_0_pid=11,
        process_0_used=70 * GIB,
        process_1_pid=12,
    )
    # The number by which CUDA knows it says nothing to the driver.
    told = ask(other, mine, visible="1")
    assert told.pop("time") > 0
    assert told == {
        "rank": 3,
        "run": "run",
        "used": 71 * GIB,
        "total": 80 * GIB,
        "utilisation": 96,
        "temperature": 64,
        "link": "NVLink ×18",
        "slowed": "",
        "problem": "",
        "tenants": [[11, 70 * GIB], [12, None]],
    }


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, (None, None, None, None, "")),
        ({"utilisation": 5, "total": 9, "used": 2}, (2, 9, 5, None, "")),
        ({"temperature_v": 71, "temperature_": 13}, (None, None, None, 71, "")),
        ({"pcie_generation": 5, "pcie_width": 16}, (None, None, None, None, "PCIe 5 ×16")),
        ({"utilisation": 5, "utilisation_": 4}, (None, None, None, None, "")),  # no permission
        # Sandboxes that pass on some calls only.
        ({"used": 2, "total": 9, "temperature_v_": 999, "link_0_": 17}, (2, 9, None, None, "")),
    ],
)
def test_what_the_driver_does_not_tell_is_left_open(ask, told, expected):
    got = ask(gpu(name(7), **told))
    keys = ("used", "total", "utilisation", "temperature", "link")
    assert tuple(got[key] for key in keys) == expected
    assert got["tenants"] == []


def test_links_that_are_down_do_not_count(ask):
    told = ask(gpu(name(7), link_0=1, link_1=0, link_2=1, pcie_width=16))
    assert told["link"] == "NVLink ×2"


@pytest.mark.parametrize(
    ("reasons", "slowed"), [(0x20, "heat"), (0x40 | 0x8, "heat"), (0x80, "power"), (0x9, "")]
)
def test_why_it_is_slow(ask, reasons, slowed):
    assert ask(gpu(name(7), reasons=reasons))["slowed"] == slowed


def test_a_part_of_a_gpu(ask):
    whole = gpu("GPU-whole", total=80, used=70, temperature=55, pcie_generation=4, pcie_width=8)
    part = gpu(name(7, "MIG"), total=20, used=3, temperature=1)
    named = gpu("MIG-named", total=10, used=2)
    told = ask(whole, part, gpu(name(7), total=80, used=70))
    assert (told["used"], told["total"], told["utilisation"]) == (3, 20, None)
    assert (told["temperature"], told["link"]) == (55, "PCIe 4 ×8")
    # CUDA may give the UUID of the whole GPU.
    told = ask(whole, named, gpu(name(7), total=80), visible="MIG-named")
    assert (told["used"], told["total"]) == (2, 10)


def test_a_gpu_that_is_known_by_its_place(ask):
    at = gpu("0000:07:00.0", total=80, used=70)
    told = ask(gpu("0000:08:00.0", total=1), at, uuid="", bus_id="0000:07:00.0")
    assert (told["used"], told["total"]) == (70, 80)
    assert ask(at, uuid="") == {"error": "the driver knows no GPU (its UUID is not known)"}
    # A part of it is known by its UUID.
    told = ask(at, gpu(name(7, "MIG"), total=20, used=3), bus_id="0000:07:00.0")
    assert (told["used"], told["total"]) == (3, 20)


def test_a_gpu_that_is_lost_or_unknown(ask):
    lost = gpu(name(7), total=80, used=70, all_=GPU_IS_LOST)
    assert ask(lost) == {"error": f"the driver knows no {name(7)} (GPU is lost)"}
    lost = gpu(name(7), total=80, used_=GPU_IS_LOST)
    assert ask(lost) == {"error": "GPU is lost"}
    assert ask() == {"error": f"the driver knows no {name(7)} (Not Found)"}


@pytest.mark.parametrize("library", [True, False])
def test_without_a_driver(tmp_path, library):
    (tmp_path / "libnvidia-ml.so.1").touch()  # no library at all
    ask = Asker(tmp_path, **({} if library else {"LD_LIBRARY_PATH": str(tmp_path)}))
    error = "Driver Not Loaded" if library else "NVML Shared Library Not Found"
    assert ask("driver init 0\ndriver init! 9\n") == {"error": error}
    ask.process.communicate(timeout=30)


def test_names():
    plain = (name(7, "MIG"), name(7, "GPU"))
    assert names(uuid(7), "", "") == names(uuid(7), "", "0,1") == plain
    assert names(uuid(7), "", "GPU-1") == plain
    assert names(uuid(7), "0000:07:00.0", "MIG-a,MIG-b") == ("MIG-a", *plain, "0000:07:00.0")
