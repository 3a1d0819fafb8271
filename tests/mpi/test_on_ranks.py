"""Every check of ``ranks/``, on 1, 2 and 3 ranks."""

import mpi_session
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")


def _cases():
    for module, check in mpi_session.checks():
        for ranks in (1, 2, 3):
            short = ranks == 2 and module in ("check_gradients", "check_optimizer")
            yield pytest.param(module, check, ranks, marks=[pytest.mark.short] if short else [])


@pytest.mark.parametrize(("module", "check", "ranks"), list(_cases()))
def test_on_ranks(module, check, ranks):
    mpi_session.verify(module, check, ranks)
