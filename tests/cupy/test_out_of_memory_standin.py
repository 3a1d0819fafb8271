"""What is told where CuPy's own pool has too little; device and driver are stand-ins."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "nvml"))
import nvml_standin

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("cupy_backends") is None
    or nvml_standin.reason_to_skip() is not None
    or shutil.which("cc") is None,
    reason="needs CuPy, nvidia-ml-py and a compiler of C",
)


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """What `out_of_memory_calls.py` prints."""
    stubs = tmp_path_factory.mktemp("stubs")
    subprocess.run([sys.executable, HERE / "stub_libraries.py", stubs], check=True, timeout=120)
    driver = nvml_standin.environment(stubs / "says")
    ran = subprocess.run(
        [sys.executable, HERE / "out_of_memory_calls.py"],
        env={
            **os.environ,
            **driver,
            "LD_LIBRARY_PATH": f"{stubs}:{driver['LD_LIBRARY_PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ran.stdout.startswith("{"), ran.stdout + ran.stderr
    return json.loads(ran.stdout)


def test_the_account(told):
    _, rank, other = told["pids"]
    pool = told["pool"]
    assert (pool["wanted"], pool["asked"], pool["kind"]) == (True, 1 << 30, "cupy.cuda.memory")
    # The same on all ranks, whatever each had.
    assert pool["message"] == "Out of memory allocating 1,073,741,824 bytes."
    head, own, outside, held, let_go, helps = pool["account"]
    assert head == "rank 1, GPU 0 (stand-in): 1.00 GiB asked for, 64.0 GiB of 80.0 GiB free"
    # 48 MiB of x, twice the model's 8 MiB and 8 KiB, 128 KiB of loss, thrice 8 MiB of h.
    assert own == (
        "  CuPy's pool on this rank has 88.1 MiB (its limit: 128 MiB): 88.1 MiB in arrays, "
        "0 B in 0 free blocks"
    )
    assert outside.startswith("  outside the pool are 15.9 GiB: CUDA's own, and of pid ")
    assert f"pid {rank} (rank 3) 9.00 GiB, pid {other} ({sys.executable}" in outside
    assert held == (
        "  in use by: `x` 48.0 MiB (float32 4×3×1048576), `h` in forward() 24.0 MiB (3 arrays), "
        "gradients of `model` 8.01 MiB (2 arrays), `model` 8.01 MiB (2 arrays), "
        "`loss` 128 KiB (float32 16×2048)"
    )
    assert let_go == "  let go of with the failed call: 24.0 MiB"
    assert helps == (
        "  what helps: lift the limit: cupy.get_default_memory_pool().set_limit(size=0); "
        "rank 3 uses the same GPU: start fewer ranks; `del x` if it is done with; a smaller batch"
    )


def test_the_failed_call_lets_go_of_what_it_held(told):
    assert told["pool"]["released"] == 24 << 20


@pytest.mark.parametrize(
    ("library", "module"),
    [
        ("runtime", "cupy_backends.cuda.api.runtime"),
        ("driver", "cupy_backends.cuda.api.driver"),
        ("cublas", "cupy_backends.cuda.libs.cublas"),
    ],
)
def test_errors_of_cuda_and_its_libraries(told, library, module):
    error = told[library]
    assert (error["wanted"], error["asked"], error["kind"]) == (True, None, module)
    assert error["account"][0] == "rank 1, GPU 0 (stand-in): 64.0 GiB of 80.0 GiB free"
    # What the failed call let go of is in the pool.
    assert error["account"][1].endswith("64.1 MiB in arrays, 24.0 MiB in 3 free blocks")
    assert "free_all_blocks() gives back the free blocks" in error["account"][-1]


def test_cudas_own_pool(told):
    _, own, *_, helps = told["async"]["account"]
    assert own == (
        "  CuPy's pool on this rank has 96.0 MiB: 80.0 MiB in arrays, 16.0 MiB in free blocks"
    )
    assert "limit" not in helps


def test_other_errors_and_pids_that_mean_nothing_here(told):
    assert told["illegal"] is False
    assert told["in a container"]["account"][2].endswith("CUDA's own, and other processes'")
