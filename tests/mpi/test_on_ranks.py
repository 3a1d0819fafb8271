"""Every check of ``ranks/``, on 1, 2 and 3 ranks."""

import mpi_session
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize(("module", "check"), mpi_session.checks())
def test_on_ranks(module, check, ranks):
    session = mpi_session.session(module, ranks)
    results = [report.get(check, "not reached") for report in session.reports]
    if all(result.startswith("skipped") for result in results):
        pytest.skip(results[0])
    failures = [f"rank {r}: {result}" for r, result in enumerate(results) if result != "ok"]
    if any("not reached" in failure for failure in failures):
        failures.append(session.output[-4000:])
    assert not failures, "\n".join(failures)
