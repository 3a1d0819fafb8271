"""Properties of the collectives, on 1 to 4 ranks: all of them in one session per number."""

import re

import mpi_session
import pytest

pytestmark = pytest.mark.skipif(mpi_session.mpiexec() is None, reason="no mpiexec installed")
MODULES = sorted(path.stem for path in mpi_session.RANKS.glob("property_*.py"))
CHECKS = [
    (module, name)
    for module in MODULES
    for name in re.findall(
        r"^def (check_\w+)\(", (mpi_session.RANKS / f"{module}.py").read_text(), re.MULTILINE
    )
]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize(("module", "check"), CHECKS)
def test_properties(module, check, ranks):
    mpi_session.verify(module, check, ranks, 280.0)
