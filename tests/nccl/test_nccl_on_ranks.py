"""The NCCL backend through the drivers of NCCL that are here, on a stand-in for libnccl."""

import nccl_session
import pytest

reason = nccl_session.reason_to_skip()
pytestmark = pytest.mark.skipif(reason is not None, reason=str(reason))

MODULES = {
    "nccl_means": (1, 2, 4),
    "nccl_values": (1, 3),
    "nccl_faults": (2, 3),
    "nccl_interrupts": (2, 3),
    "nccl_standings": (2, 3),
    "nccl_on_cupy": (1, 2),
}


def _cases():
    for module, sizes in MODULES.items():
        drivers = nccl_session.drivers() or ["cupy"]
        for check in nccl_session.checks(module):
            for ranks in sizes:
                for driver in drivers[:1] if module == "nccl_on_cupy" else drivers:
                    yield module, check, ranks, driver


@pytest.mark.parametrize(("module", "check", "ranks", "driver"), list(_cases()))
def test_on_ranks(module, check, ranks, driver):
    missing = nccl_session.missing(module, driver)
    if missing:
        pytest.skip(f"needs {missing}")
    nccl_session.verify(module, check, ranks, driver)
