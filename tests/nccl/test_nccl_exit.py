"""Processes that have used NCCL end, and NCCL is let go of by those only who say so."""

import shlex
import sys

import nccl_session
import pytest

pytestmark = pytest.mark.skipif(
    nccl_session.reason_to_skip() is not None or "cupy" not in nccl_session.drivers(),
    reason="needs gcc and CuPy",
)


def leave(way, report, *options):
    script = nccl_session.RANKS / "leave.py"
    rank = [str(part) for part in (sys.executable, script, way, f"{report}.said")]
    if options:
        # The launcher tells of a lost rank by a signal that may end the others.
        rank = ["sh", "-c", f"trap : USR1; {shlex.join(rank)}"]
    command = [str(nccl_session.mpiexec()), *options, "-n", "2", *rank]
    env = {**nccl_session.environment(), "NBMN_NCCL_STANDIN_REPORT": str(report)}
    return nccl_session.run(command, env, deadline=60.0)


@pytest.mark.parametrize(
    ("way", "inits_aborts_destroys"),
    [("left", "1 0 0"), ("finalized", "1 0 1"), ("interrupted", "1 1 0")],
)
def test_exit(way, inits_aborts_destroys, tmp_path):
    report = tmp_path / "report"
    output = leave(way, report)
    assert "exit status 0" in output, output
    assert report.read_text().splitlines() == [inits_aborts_destroys] * 2


def test_death_of_a_rank_is_noticed_by_the_others(tmp_path):
    """NCCL says nothing of it, and this launcher is told to let the others live."""
    output = leave("killed", tmp_path / "report", "-disable-auto-cleanup")
    said = tmp_path / "report.said"
    assert said.exists(), output
    assert said.read_text().startswith("rank 0: rank 1 has ended")
