"""What magics say of a line that does not fit, and when they are asked how they are used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from nbmn.magics import register

START = """\
%mn_start [RANKS] [--restart] [--share-gpus] [--threads N] [--timeout SECONDS]

Start MPI ranks; returns when the next cell will work on them.

  RANKS              how many (default one per GPU, or one per core)
  --restart          stop the ranks that run, if any, first
  --share-gpus       allow several ranks on one GPU
  --threads N        threads that BLAS may use on each rank (default 1)
  --timeout SECONDS  give up after so long without progress (default 120)
"""
LINES = (
    *("mn_start", "mn_restart", "mn_stop", "mn_status", "mn_push", "mn_pull", "mn_train"),
    *("mn_trace", "mn_where", "mn_interrupt", "mn_debug", "mn_diff"),
)


@pytest.fixture(scope="module")
def shell() -> Iterator[InteractiveShell]:
    made = InteractiveShell(config=Config(HistoryManager={"enabled": False}))
    register(made)
    yield made
    made.restore_sys_module_state()


def refused(shell: InteractiveShell, name: str, line: str) -> str:
    with pytest.raises(UsageError) as caught:
        shell.run_line_magic(name, line)
    return str(caught.value)


@pytest.mark.parametrize("name", LINES)
def test_help_is_printed_and_no_error(shell, capsys, name):
    """It needs no ranks, and is what a question mark shows."""
    for option in ("--help", "-h"):
        shell.run_line_magic(name, option)
        said = capsys.readouterr().out
        assert said.startswith(f"%{name}")
    assert name == "mn_diff" or said.rstrip() == shell.find_line_magic(name).__doc__.rstrip()


def test_a_comment_is_no_argument(shell):
    shell.run_line_magic("mn_stop", "# the GPUs are free then")
    assert "%mn_push" in refused(shell, "mn_push", "# nothing is named")


def test_all_options_are_told(shell, capsys):
    shell.run_line_magic("mn_start", "--help")
    assert capsys.readouterr().out.rstrip() == START.rstrip()
    shell.run_cell_magic("mn", "--help", "1")
    said = capsys.readouterr().out
    assert said.startswith(
        "%%mn [RANKS …] [-o NAME] [--bg] [--local] [--debug RANK]\n\nRun the cell"
    )
    assert "\n  -o, --output NAME  keep the last" in said


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("two", "RANKS: 'two' is no whole number"),
        ("2.5", "RANKS: '2.5' is no whole number"),
        ("2 3", "unrecognized arguments: 3"),
        ("--threads", "--threads: expected one argument"),
        ("--threads x", "--threads: 'x' is no whole number"),
        ("--timeout soon", "--timeout: 'soon' is no number of seconds"),
        ("--bogus", "unrecognized arguments: --bogus"),
        ("'2", "No closing quotation"),
    ],
)
def test_a_wrong_argument_is_named_with_the_usage(shell, line, said):
    usage = START.partition("\n")[0]
    expected = f"{said}\nusage: {usage}\n%mn_start --help says more"
    assert refused(shell, "mn_start", line) == expected


@pytest.mark.parametrize("name", [name for name in LINES if name != "mn_diff"])
@pytest.mark.parametrize("line", ["1 --bogus", "'"])
def test_no_magic_takes_what_it_does_not_know(shell, name, line):
    assert f"\nusage: %{name}" in refused(shell, name, line)


def test_what_is_missing_is_named(shell):
    assert refused(shell, "mn_pull", "").startswith("the following arguments are required: NAME\n")
    assert refused(shell, "mn_debug", "").startswith("the following arguments are required: RANK\n")
