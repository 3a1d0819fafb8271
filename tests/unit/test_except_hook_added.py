"""When the hook is added, and when it does nothing."""

import subprocess
import sys
import types

import pytest

from nbmn import global_except_hook


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(sys, "excepthook", lambda *exception: calls.append(exception))
    monkeypatch.setattr(global_except_hook, "_abort", lambda: calls.append("abort"))
    monkeypatch.setattr(global_except_hook, "_in_ipython", lambda: False)
    calls = []
    return calls


def test_traceback_first_then_abort(quiet):
    global_except_hook.add_hook()
    error = ValueError("x")
    sys.excepthook(ValueError, error, None)
    assert quiet == [(ValueError, error, None), "abort"]


def test_abort_even_if_the_hook_before_fails(quiet, monkeypatch):
    def fails(*exception):
        raise RuntimeError("no screen")

    monkeypatch.setattr(sys, "excepthook", fails)
    global_except_hook.add_hook()
    with pytest.raises(RuntimeError, match="no screen"):
        sys.excepthook(ValueError, ValueError("x"), None)
    assert quiet == ["abort"]


def test_abort_whatever_stands_for_a_stream(monkeypatch):
    class Tee:
        def write(self, text):
            pass

    aborted = []
    world = types.SimpleNamespace(Get_rank=lambda: 0, Get_size=lambda: 2, Abort=aborted.append)
    mpi = types.SimpleNamespace(Is_finalized=lambda: False, COMM_WORLD=world)
    monkeypatch.undo()
    monkeypatch.setattr("nbmn.communicators.runtime.mpi", lambda: mpi)
    monkeypatch.setattr(sys, "stderr", Tee())
    with pytest.raises(AttributeError):
        global_except_hook._abort()
    assert aborted == [1]


def test_twice_is_once(quiet):
    global_except_hook.add_hook()
    once = sys.excepthook
    with pytest.warns(UserWarning, match="added already"):
        global_except_hook.add_hook()
    assert sys.excepthook is once


@pytest.mark.parametrize("name", global_except_hook.VARIABLES)
@pytest.mark.parametrize("value", ["1", "0", ""])
def test_variables(quiet, monkeypatch, name, value):
    before = sys.excepthook
    monkeypatch.setenv(name, value)
    global_except_hook._add_hook_if_enabled()
    global_except_hook._add_hook_if_enabled()  # without a warning
    assert (sys.excepthook is not before) == bool(value)


def test_never_in_ipython(quiet, monkeypatch):
    before = sys.excepthook
    monkeypatch.undo()
    monkeypatch.setattr(sys, "excepthook", before)
    monkeypatch.setattr(global_except_hook, "_abort", lambda: quiet.append("abort"))
    monkeypatch.setitem(sys.modules, "IPython", types.SimpleNamespace(get_ipython=object))
    with pytest.warns(UserWarning, match="IPython"):
        global_except_hook.add_hook()
    monkeypatch.setenv(global_except_hook.VARIABLES[0], "1")
    global_except_hook._add_hook_if_enabled()
    assert sys.excepthook is before


def test_does_nothing_once_ipython_runs(quiet, monkeypatch):
    global_except_hook.add_hook()
    monkeypatch.setattr(global_except_hook, "_in_ipython", lambda: True)
    sys.excepthook(ValueError, ValueError("x"), None)
    assert "abort" not in quiet


def test_in_a_real_shell():
    """A failing cell leaves the process alive, though the environment asks for aborts."""
    script = """
import os
os.environ["CHAINERMN_FORCE_ABORT_ON_EXCEPTION"] = "1"
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
from nbmn import global_except_hook
global_except_hook._add_hook_if_enabled()
shell.run_cell("1/0")
import sys
assert "mpi4py.MPI" not in sys.modules and "chainer" not in sys.modules
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "ZeroDivisionError" in done.stdout
    assert done.stdout.endswith("alive\n")
