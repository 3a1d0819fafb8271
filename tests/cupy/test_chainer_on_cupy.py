"""Chainer on the installed CuPy, without a device: names, kernels, types and shapes."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import kernels_declared
import pytest

HERE = Path(__file__).parent


def nvrtc() -> list[Path]:
    """Return NVRTC's libraries among the installed packages."""
    found = importlib.util.find_spec("nvidia")
    places = found.submodule_search_locations if found else ()
    return [library for place in places for library in Path(place).rglob("libnvrtc.so.*")]


pytestmark = [
    pytest.mark.skipif(
        importlib.util.find_spec("cupy_backends") is None
        or importlib.util.find_spec("chainer") is None
        or not all(map(shutil.which, ("cc", "nm")))
        or not nvrtc(),
        reason="needs CuPy, Chainer, NVRTC's package and a C compiler",
    ),
    pytest.mark.timeout(900),
]

DRAWN = "cupy.random draws float32 and float64 only, as when Chainer was written"
DRAWN_WIDE = (
    *("Cauchy", "Exponential", "Gumbel", "LogNormal"),
    *("MultivariateNormal", "Pareto", "Uniform"),
)
LINALG = "linear algebra knows no float16, on NumPy or on both"
ZEROS = "draws after a look at the probabilities, which are zeros without a device"
DIFFERENT = {
    "float32": {"D.Categorical": ZEROS, "D.OneHotCategorical": ZEROS},
    "float16": {
        "D.Categorical": ZEROS,
        "D.OneHotCategorical": ZEROS,
        **{f"D.{name}": DRAWN for name in DRAWN_WIDE},
        "L.DecorrelatedBatchNormalization": LINALG,
        "cholesky": LINALG,
        "decorrelated_batch_normalization": LINALG,
        "decorrelated_batch_normalization of a numpy.float64": LINALG,
        "sparse_matmul": "scipy.sparse knows no float16",
    },
}
FAILING = {
    "L.weight_standardization": "group normalization has no second derivative without gamma's",
}
NOT_MADE = {
    "groupnorm_y": "in the path of cuDNN only",
    "lars": "asked for when an array module is chainer.backends.cuda, which none is",
    "div_by_size": "in ChainerMN's pure_nccl, which needs a second rank",
}
ASKED_FIRST = {"cupy.testing.random", "cupy.util", "cupy.util.PerformanceWarning"}
"""Names that Chainer uses where CuPy has them, and something else where not."""


@pytest.fixture(scope="session")
def run(tmp_path_factory):
    """Return what runs a script of this folder on a CuPy without a device."""
    folder = tmp_path_factory.mktemp("cupy")
    stubs = folder / "stubs"
    stubs.mkdir()
    subprocess.run([sys.executable, HERE / "stub_libraries.py", stubs], check=True, timeout=120)
    environment = {
        **os.environ,
        "CUPY_ACCELERATORS": "",  # they bring kernels of their own, compiled beforehand
        "CUPY_CACHE_DIR": os.environ.get("CUPY_CACHE_DIR", str(folder / "kernels")),
        "LD_LIBRARY_PATH": os.pathsep.join(map(str, (stubs, *(p.parent for p in nvrtc())))),
        "MPI4PY_RC_INITIALIZE": "0",
    }

    def run(*command: str) -> str:
        ran = subprocess.run(
            [sys.executable, *command],
            cwd=HERE,
            env=environment,
            capture_output=True,
            text=True,
            timeout=800,
            check=False,
        )
        assert ran.returncode == 0, ran.stdout[-2000:] + ran.stderr[-4000:]
        return ran.stdout

    return run


@pytest.fixture(scope="session")
def calls(run):
    """Return what has all calls made with one dtype, once."""
    made = {}

    def calls(dtype):
        if dtype not in made:
            made[dtype] = [json.loads(line) for line in run("run_calls.py", dtype).splitlines()]
        return made[dtype]

    return calls


def same(line: dict, dtype: str) -> bool:
    """Whether NumPy and CuPy did the same, which with float16 may be to refuse it alike."""
    failed = "error" in line["numpy"] or "error" in line["cupy"]
    return line["numpy"] == line["cupy"] and (dtype == "float16" or not failed)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_types_and_shapes_are_those_on_numpy(calls, dtype):
    *lines, _ = calls(dtype)
    known = DIFFERENT[dtype] | ({} if dtype == "float16" else FAILING)
    different = {line["name"]: line for line in lines if not same(line, dtype)}
    new = [different[name] for name in different if name not in known]
    assert not new, json.dumps(new, indent=1)[:8000]
    assert sorted(different) == sorted(known), "what is the same now leaves the table"
    assert len(lines) > 430


def test_every_kernel_of_chainer_is_compiled(calls):
    made = {place for dtype in ("float32", "float16") for place in calls(dtype)[-1]["kernels"]}
    site = Path(importlib.util.find_spec("chainer").origin).parents[1]
    declared = {}
    for package in ("chainer", "chainermn"):
        declared |= kernels_declared.declared(site / package)
    left = {name: place for place, name in declared.items() if place not in made}
    assert len(declared) > 140
    # One kernel of pooling is made from parts, in the path of cuDNN only.
    assert set(left) - set(NOT_MADE) == {"name"}, left
    assert set(NOT_MADE) <= set(left)


def test_every_name_of_cupy_that_chainer_uses_exists(run):
    found = json.loads(run("missing_names.py"))
    missing = {
        name: places
        for name, places in found["missing"].items()
        # Only with cuDNN, which test_types_and_shapes shows to be never asked for.
        if not name.startswith(("cupy.cudnn", "cupy.cuda.cudnn")) and name not in ASKED_FIRST
    }
    assert found["used"] > 200
    assert not missing, json.dumps(missing, indent=1)


def test_cupy_is_left_as_it_was(run):
    run(
        "-c",
        """
import device_standin, os
import nbmn, cupy, cupyx
before = [dict(vars(module)) for module in (cupy, cupy.cuda, cupyx)]
import chainer
for module, names in zip((cupy, cupy.cuda, cupyx), before):
    lost = {name for name in names if vars(module).get(name) is not names[name]}
    assert not lost, lost
    # A module that is imported becomes a name of its parent.
    added = {name for name in vars(module) if name not in names}
    assert all(type(vars(module)[name]).__name__ == "module" for name in added), added
os._exit(0)
""",
    )


def test_no_cudnn_is_no_reason_to_warn(run):
    run(
        "-c",
        """
import device_standin, os, warnings
import nbmn, numpy
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    from chainer.backends import cuda
    cuda.to_gpu(numpy.ones(3, "f"))
assert cuda.available and not cuda.cudnn_enabled
warned = any("cuDNN" in str(warning.message) for warning in caught)
assert warned == (int(cuda.cupy.__version__.split(".")[0]) < 14)
os._exit(0)
""",
    )


def test_nothing_imports_cupy_before_chainer_does(run):
    run(
        "-c",
        """
import sys, nbmn, nbmn.compat
nbmn.compat.repairs()
assert "cupy" not in sys.modules
""",
    )
