"""What the checks for GPUs do where there is one, and that they run through where there is none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "nccl"))
sys.path.append(str(Path(__file__).parents[1] / "nvml"))
import nccl_session
import nvml_standin
import plan
import runner
from runner import Outcome, Run

HERE = Path(__file__).parent
CHECK = HERE / "check.py"
NO_GPU = 77


def check(*arguments, deadline, env=None):
    return subprocess.run(
        [sys.executable, CHECK, *map(str, arguments)],
        env={**os.environ, **(env or {})},
        capture_output=True,
        text=True,
        timeout=deadline,
        check=False,
    )


@pytest.mark.timeout(600)
def test_on_this_gpu(tmp_path):
    ran = check("--out", tmp_path / "results.json", deadline=520)
    if ran.returncode == NO_GPU:
        pytest.skip(ran.stdout.strip())
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]


def test_a_machine_without_a_gpu_is_no_failure(tmp_path):
    hidden = {"CUDA_VISIBLE_DEVICES": "-1"}
    ran = check("--out", tmp_path / "results.json", deadline=100, env=hidden)
    assert ran.returncode == NO_GPU, ran.stdout + ran.stderr
    assert ran.stdout.startswith("no GPU: ")
    assert not (tmp_path / "results.json").exists()


def test_unknown_names_are_refused():
    ran = check("--only", "packing", "speed", deadline=60)
    assert ran.returncode == 2
    assert "no such check: speed" in ran.stderr


FAKES = {
    "passes": "def run(report, word):\n    report('said', word=word, seconds=1.23456)\n",
    "skips": "from gpu_tools import Skip\ndef run(report):\n    raise Skip('not here')\n",
    "fails": "def run(report):\n    report('one', of=2)\n    assert 1 == 2, 'they differ'\n",
    "dies": "import os\ndef run(report):\n    os.kill(os.getpid(), 11)\n",
    "hangs": """
import os, subprocess, sys, time
def run(report):
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    report("child", pid=child.pid)
    time.sleep(600)
""",
    "deaf": """
import os, signal, time
def run(report):
    report("deaf", pid=os.getpid())
    import faulthandler
    faulthandler.cancel_dump_traceback_later()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
""",
}


@pytest.fixture
def run(tmp_path):
    """What runs fake checks, for so many seconds in all."""
    for name, text in FAKES.items():
        (tmp_path / f"fake_{name}.py").write_text(text)
    paths = [tmp_path, HERE.parents[1], HERE, os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    work = tmp_path / "work"
    work.mkdir()
    return lambda seconds: Run(work, env, time.monotonic() + seconds, workers=8)


def fake(name, *arguments, **options):
    return plan.Check(name, f"fake_{name}", arguments, **options)


def test_what_comes_of_checks(run):
    (found,) = run(60).rounds(
        [(fake("passes", "word"), fake("skips"), fake("fails"), fake("dies"))]
    )
    assert found["passes"].status == "passed"
    assert found["passes"].figures == ({"name": "said", "word": "word", "seconds": 1.235},)
    assert (found["skips"].status, found["skips"].reason) == ("skipped", "not here")
    assert (found["fails"].status, found["fails"].reason) == (
        "failed",
        "AssertionError: they differ",
    )
    assert found["fails"].figures == ({"name": "one", "of": 2},)
    assert "assert 1 == 2" in found["fails"].tail
    assert (found["dies"].status, found["dies"].reason) == ("failed", "ended by signal 11")


def gone(pid):
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True


def test_a_check_that_hangs_takes_nothing_from_the_others(run):
    began = time.monotonic()
    hanging, rest = run(24).rounds([(fake("hangs"), fake("deaf")), (fake("passes", "word"),)])
    # Half of the time, and what it takes to end what does not want to.
    assert time.monotonic() - began < 22
    assert hanging["hangs"].status == hanging["deaf"].status == "failed"
    assert "where it stood is told" in hanging["hangs"].reason
    assert "time.sleep" in hanging["hangs"].tail or "in run" in hanging["hangs"].tail
    assert "not over after" in hanging["deaf"].reason
    assert gone(hanging["hangs"].figures[0]["pid"])
    assert rest["passes"].status == "passed"


def test_a_check_is_ended_where_environments_cannot_be_read(run, monkeypatch):
    monkeypatch.setattr(runner, "marked", lambda mark: [])
    (found,) = run(5).rounds([(fake("deaf"),)])
    assert "not over after" in found["deaf"].reason
    assert gone(found["deaf"].figures[0]["pid"])


@pytest.mark.skipif(nccl_session.mpiexec() is None, reason="no mpiexec installed")
def test_ranks_that_skip_and_ranks_that_hang(run):
    (found,) = run(10).rounds([(fake("hangs", ranks=2), fake("skips", ranks=2))])
    assert (found["skips"].status, found["skips"].reason) == ("skipped", "not here")
    assert found["hangs"].status == "failed"
    assert gone(found["hangs"].figures[0]["pid"])


def test_no_time_is_a_failure(run):
    (found,) = run(0.5).rounds([(fake("passes", "word"),)])
    assert found["passes"] == Outcome("failed", reason="no time was left for it")


def test_every_check_is_in_the_plan():
    planned = {check.module for checks in plan.ROUNDS for check in checks}
    assert planned == {path.stem for path in HERE.glob("check_*.py")}
    assert len(set(plan.names())) == len(plan.names())


LEFT_OUT = ("packing", "staged-4-ranks", *(f"chainer-calls-{n + 2}" for n in range(plan.SHARDS)))
"""What asks CuPy's kernels for numbers throughout, and what is more of the same."""


@pytest.mark.skipif(
    nccl_session.reason_to_skip() is not None
    or nvml_standin.reason_to_skip() is not None
    or nccl_session.missing("nccl_on_cupy", "cupy") is not None,
    reason="needs gcc, g++, mpiexec, CuPy, NVRTC's package, ml_dtypes and nvidia-ml-py",
)
@pytest.mark.timeout(600)
def test_checks_run_through_on_a_standin(tmp_path):
    """With right numbers of what the ranks do; those of CuPy's kernels are not looked at."""
    nccl = nccl_session.environment(cuda=True)
    nvml = nvml_standin.environment(tmp_path / "says")
    nvml_standin.say(
        tmp_path / "says", nvml_standin.gpu(nvml_standin.name(7), links=18, utilisation=3)
    )
    libraries = f"{nvml['LD_LIBRARY_PATH']}:{nccl['LD_LIBRARY_PATH']}"
    env = nccl | nvml | {"LD_LIBRARY_PATH": libraries, "NBMN_GPU_CHECKS_STANDIN": "1"}
    names = [name for name in plan.names() if name not in LEFT_OUT]
    out = tmp_path / "results.json"
    ran = check("--out", out, "--seconds", 500, "--only", *names, deadline=550, env=env)
    assert ran.returncode == 0, ran.stdout[-8000:] + ran.stderr[-2000:]
    told = json.loads(out.read_text())
    assert told["machine"]["gpu"] == "stand-in"
    statuses = {name: found["status"] for name, found in told["checks"].items()}
    assert statuses == dict.fromkeys(names, "passed")
