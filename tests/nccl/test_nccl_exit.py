"""Processes that have used NCCL end, and NCCL is let go of by those only who say so."""

import sys

import nccl_session
import pytest

pytestmark = pytest.mark.skipif(
    nccl_session.reason_to_skip() is not None or "cupy" not in nccl_session.drivers(),
    reason="needs gcc and CuPy",
)


def leave(way, report, *options):
    script = nccl_session.RANKS / "leave.py"
    command = [nccl_session.mpiexec(), *options, "-n", "2", sys.executable, script, way]
    env = {**nccl_session.environment(), "NBMN_NCCL_STANDIN_REPORT": str(report)}
    return nccl_session.run([str(part) for part in command], env, deadline=60.0)


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
    assert "rank 0: rank 1 has ended" in output, output
