"""GPUs of real ranks on their board, by nvidia-ml-py itself and a stand-in for the driver."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from notebook_kernel import Notebook, Ran

sys.path.append(str(Path(__file__).parents[1] / "nvml"))
from nvml_standin import GIB, GPU_IS_LOST, environment, gpu, name, reason_to_skip, say

pytestmark = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))

_TRAIN = """
import pathlib, time
wanted = pathlib.Path({wanted!r})
step = 0
while not wanted.exists():
    step += 1
    nbmn.report(loss=1 / step, samples=1)
    time.sleep(0.02)
"""
_WATCH = """
from nbmn.engine.gpu_watch import watch_gpu
from nbmn.engine.reporter import reporter
if comm.rank < 2:
    watch_gpu(reporter(), f"{7 + comm.rank:032x}")
"""


def device(number: int, used: int, **more: int) -> str:
    return gpu(name(number), links=4, used=used * GIB, total=80 * GIB, temperature=64, **more)


def test_what_the_driver_says_is_on_the_board(fresh: Notebook, tmp_path: Path) -> None:
    says, wanted = tmp_path / "says", tmp_path / "enough"
    say(says, device(7, 71, utilisation=96), device(8, 5, utilisation=0))
    fresh.check(f"import os; os.environ.update({environment(says)!r})")
    fresh.check("%mn_start 3")
    # No CuPy here, so no rank was given a GPU: nothing of NVIDIA's is loaded.
    loaded = "%%mn -o got\nimport sys, threading\n"
    loaded += "'pynvml' in sys.modules or 'nbmn-gpu' in [t.name for t in threading.enumerate()]"
    fresh.check(loaded)
    assert fresh.value("got") == {0: False, 1: False, 2: False}
    fresh.check(f"%%mn\n{_WATCH}")

    first = ("71.0/80.0 GiB · 96 % · 64 °C · NVLink ×4", "5.0/80.0 GiB · 0 % · 64 °C · NVLink ×4")
    then = ("20.0/80.0 GiB · 10 %", "GPU is lost")
    awaited = [first, then]

    def look(ran: Ran) -> None:
        page = "".join(data.get("text/html", "") for data in ran.displays.values())
        if awaited and all(words in page for words in awaited[0]):
            awaited.pop(0)
            say(says, device(7, 20, utilisation=10), device(8, 0, used_=GPU_IS_LOST))
        if not awaited:
            wanted.touch()

    ran = fresh.run(f"%%mn\n{_TRAIN.format(wanted=str(wanted))}", on_message=look)
    assert ran.ok, ran.error
    page = "".join(data.get("text/html", "") for data in ran.displays.values())
    assert "peak 71.0/80.0 GiB · " in page
    assert "GPU is lost · peak 5.0/80.0 GiB · 0 % on average · NVLink ×4" in page
    # The rank without a GPU has a place for one only.
    assert page.count("GiB") == 2
