"""UUIDs as the driver gives them, zero bytes among them; the driver is a stand-in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc installed")

DRIVER = """
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *handle, int device) { *handle = 10 * device; return device > 1 ? 101 : 0; }
int cuDeviceGetUuid%s(char *uuid, int handle)
{
    for (int i = 0; i < 16; i++) uuid[i] = handle == 10 ? 16 * i : i < 15 ? 0 : 255;
    return 0;
}
"""
ZEROS = "00" * 15 + "ff"
SIXTEENS = "".join(f"{16 * i:02x}" for i in range(16))


def uuids(folder, source):
    """Return those of three devices, asked in a process of its own."""
    library = folder / "libcuda.so.1"
    if source is None:
        library.touch()  # no library at all
    else:
        command = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
    ran = subprocess.run(
        [sys.executable, "-c", "from nbmn.gpu.driver import uuid; print(*map(uuid, range(3)))"],
        env={**os.environ, "LD_LIBRARY_PATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return ran.stdout.rstrip("\n").split(" ")


def test_zero_bytes_are_part_of_it(tmp_path):
    # The third is not there.
    assert uuids(tmp_path, DRIVER % "_v2") == [ZEROS, SIXTEENS, ""]


@pytest.mark.parametrize("source", [DRIVER % "", None], ids=["old", "none"])
def test_drivers_that_do_not_tell(tmp_path, source):
    assert uuids(tmp_path, source) == ["", "", ""]
