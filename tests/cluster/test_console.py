"""``jupyter console``: a terminal that updates no displays, and where input is typed in place."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest.importorskip("jupyter_console", reason="jupyter console is not installed")

from terminal_console import CTRL_C, Console


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    terminal = Console(tmp_path_factory.mktemp("console"))
    assert terminal.run("%load_ext nbmn") == ""
    started = terminal.run("%mn_start 2")
    assert started.startswith("starting 2 ranks …\n2 ranks ready in ")
    assert started.count("ranks ready") == 1
    yield terminal
    stopped = terminal.run("%mn_stop")
    screen = terminal.screen
    terminal.close()
    assert stopped == "ranks stopped"
    for rubbish in ("\x1b", "<div", "<pre", "Board(", "Widget(", "display_id", "object at 0x"):
        assert rubbish not in screen


def test_what_ranks_say_is_there_once_and_as_it_is_at_the_end(ranks: Console) -> None:
    assert ranks.run("%mn comm.rank") == "rank 0:\n0\nrank 1:\n1"
    counting = "%%mn\nimport time\nfor i in range(4): print(i); time.sleep(0.3)"
    assert ranks.run(counting) == "ranks 0, 1:\n0\n1\n2\n3"


def test_a_board_is_a_line(ranks: Console) -> None:
    shown = ranks.run("%%mn\nfor i in range(20):\n    nbmn.report(loss=0.25)")
    assert shown.startswith("training: done, iteration 20")
    assert "loss 0.2500" in shown
    assert len(shown.splitlines()) == 1


def test_post_mortem(ranks: Console) -> None:
    failed = ranks.run(
        "%%mn\ndef share(total):\n    return total / (1 - comm.rank)\nkept = 10 + comm.rank\n"
        "share(kept)"
    )
    assert "rank 1 raised ZeroDivisionError at cell [" in failed
    assert "rank 0:\n10.0" in failed
    ranks.start("%mn_debug 1")
    ranks.answer("p total", "11\nipdb> $")
    ranks.answer("up", r"----> 5 share\(kept\)\n\s*ipdb> $")
    ranks.answer("interact", r"interactive; exit\(\) leads back to the debugger\n>>> $")
    ranks.type("kept * 2\r")
    ranks.wait(r">>> kept \* 2\n22\n>>> $")
    ranks.type("exit()\r")
    ranks.answer("complete kep", r"kept\s*\nipdb> $")
    ranks.answer("q", "")
    assert "Error" not in ranks.end().partition("ipdb> q")[2]
    assert ranks.run("%mn kept") == "rank 0:\n10\nrank 1:\n11"


def test_breakpoint(ranks: Console) -> None:
    ranks.start("%%mn --debug 0\nseen = 1\nbreakpoint()\nsummed = comm.allreduce_obj(seen)\nsummed")
    ranks.answer("p seen", "1\nipdb> $")
    ranks.answer("seen = 40", "ipdb> $")
    ranks.answer("c", "")
    assert "ranks 0, 1:\n41" in ranks.end()


def test_ctrl_c_in_a_stuck_collective(ranks: Console) -> None:
    ranks.start("%%mn\nif comm.rank == 0: comm.barrier()\nwhile comm.rank: pass")
    ranks.wait(r"rank 1 runs at cell \[\d+\] line 3; rank 0 waits in barrier #\d+ \(cell")
    ranks.type(CTRL_C)
    ended = ranks.end()
    assert "KeyboardInterrupt: stopped on ranks 0, 1" in ended
    assert "rank 0:\nstopped at cell [" in ended
    assert "rank 1:\nstopped at cell [" in ended
    assert ranks.run("%mn comm.allreduce_obj(1)") == "ranks 0, 1:\n2"


def test_ctrl_c_at_the_prompt(ranks: Console) -> None:
    ranks.start("%%mn --debug 1\nbreakpoint()\ncomm.barrier()")
    ranks.wait(r"ipdb> $")
    ranks.type(CTRL_C)
    assert "KeyboardInterrupt: stopped on ranks 0, 1" in ranks.end()
    assert ranks.run("%mn comm.allreduce_obj(1)") == "ranks 0, 1:\n2"


def test_where(ranks: Console) -> None:
    assert ranks.run("%mn_where") == "ranks 0, 1: idle"
    stuck = "%%mn --bg -o run\nif comm.rank == 0: comm.barrier()\nwhile comm.rank: pass"
    assert ranks.run(stuck) == ""
    where = ranks.run("%mn_where")
    assert "rank 0: in barrier #" in where
    assert "rank 1: in the cell for" in where
    assert "line 3" in where
    assert "interrupted ranks 0, 1" in ranks.run("%mn_interrupt")
    assert ranks.run("%mn comm.allreduce_obj(1)").endswith("ranks 0, 1:\n2")
