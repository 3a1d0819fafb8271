"""Interrupts ranks at random moments: no hang, no wrong sum, nothing grows.

A short form; the long one is ``NBMN_INTERRUPTS=5000 pytest tests/mpi/test_interrupts.py``.
"""

import json
import os
import sys

import mpi_session
import pytest

ROUNDS = int(os.environ.get("NBMN_INTERRUPTS", "120"))
RANKS = [2, 3]

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")


@pytest.mark.parametrize("ranks", RANKS)
def test_interrupts_at_random_moments(ranks):
    stress = str(mpi_session.RANKS / "stress.py")
    launch = [str(mpi_session.mpiexec()), *mpi_session.launch_options(), "-n", str(ranks)]
    output = mpi_session.run([*launch, sys.executable, stress, str(ROUNDS)], 60 + ROUNDS * 0.3)
    outcomes = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert len(outcomes) == ranks, output[-4000:]
    assert sum(outcome["interrupted"] for outcome in outcomes) > ROUNDS / 2
    assert sum(outcome["in_renewal"] for outcome in outcomes) > 0
    for outcome in outcomes:
        assert outcome["abandoned"] == 0
        # Some may be held by what was dropped last, and is freed at the next creation.
        assert outcome["contexts"] <= 4
        # Far less than one small buffer, context or message per interrupt.
        assert outcome["grown"] < 8e6 + 200 * ROUNDS
