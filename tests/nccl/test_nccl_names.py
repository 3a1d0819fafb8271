"""What ChainerMN names of CuPy's NCCL is there, where NCCL is."""

import subprocess
import sys

import nccl_session
import pytest

pytestmark = pytest.mark.skipif(
    nccl_session.reason_to_skip() is not None or "cupy" not in nccl_session.drivers(),
    reason="needs gcc and CuPy",
)


def test_names():
    text = (
        "import warnings; warnings.simplefilter('error')\n"
        "import nbmn.nccl as n\n"
        "from cupy.cuda import nccl\n"
        "assert n._NAMES and all(getattr(n, x) is getattr(nccl, x) for x in n._NAMES)\n"
        "assert n.get_version() == 22707 and len(n.get_unique_id()) == 128\n"
    )
    subprocess.run(
        [sys.executable, "-c", text], check=True, timeout=60, env=nccl_session.environment()
    )
