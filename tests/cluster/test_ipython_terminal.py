"""IPython in a terminal, without a kernel: a line tells of a training while it goes on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("pexpect", reason="pexpect is not installed")

from terminal_console import CTRL_C, Console

TRAIN = """%%mn{}
import os, time
for i in range({}):
    nbmn.report(loss=0.25, total=50); time.sleep(0.1)
    if i == 20:
        while not os.path.exists({!r}): time.sleep(0.01)
print("trained")"""


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    terminal = Console(tmp_path_factory.mktemp("ipython"), "IPython")
    terminal.run("%load_ext nbmn")
    assert "2 ranks ready in " in terminal.run("%mn_start 2")
    yield terminal
    stopped = terminal.run("%mn_stop")
    terminal.close()
    assert stopped == "ranks stopped"


def test_a_line_while_ranks_train(ranks: Console, tmp_path: Path) -> None:
    go = tmp_path / "go"
    ranks.start(TRAIN.format("", 50, str(go)))
    for iteration in (10, 21):  # it is written over
        ranks.wait(rf"(?m)^training: running, iteration (?:{iteration}|\d\d) of 50, .*loss 0.2500")
    assert ranks.screen.count("training: running") == 1
    go.touch()
    below = ranks.end()
    assert re.match(r"training: done, iteration 50 of 50, ", below)
    assert below.endswith("ranks 0, 1:\ntrained")
    assert "running" not in below


def test_ctrl_c_leaves_no_line(ranks: Console, tmp_path: Path) -> None:
    ranks.start(TRAIN.format("", 50, str(tmp_path / "never")))
    ranks.wait("training: running, iteration 21 of 50")
    ranks.type(CTRL_C)
    below = ranks.end()
    assert "KeyboardInterrupt: stopped on ranks 0, 1" in below
    assert "running" not in below


def test_none_where_the_person_types(ranks: Console, tmp_path: Path) -> None:
    go = tmp_path / "go"
    assert ranks.run(TRAIN.format(" --bg -o run", 25, str(go))) == ""
    assert ranks.run("import time; time.sleep(3); print(run.done())") == "False"
    go.touch()
    assert "running" not in ranks.run("run.wait()")
