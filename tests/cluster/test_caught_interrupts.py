"""Ranks that were freed or stopped, and whose code makes nothing of the interrupt."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from notebook_kernel import Notebook, Ran, works
from zoo import SOON

CAUGHT = {
    "a checkpoint is saved": (
        "try:\n    for i in range(5 - comm.rank): comm.allreduce(np.ones(3))\n"
        "except KeyboardInterrupt: print('saved')"
    ),
    "tries again": (
        "for i in range(3 - 3 * comm.rank):\n    try: comm.barrier()\n"
        "    except BaseException as error: print(type(error).__name__)"
    ),
    "a finalizer": (
        "class Last:\n    def __del__(self): comm.rank or comm.barrier()\nlast = Last()\ndel last"
    ),
    "a weak reference's callback": (
        "import weakref\nclass Freed: pass\nfreed = Freed()\n"
        "end = weakref.finalize(freed, lambda: comm.rank or comm.barrier())\ndel freed"
    ),
}


@pytest.mark.parametrize("body", CAUGHT.values(), ids=CAUGHT.keys())
def test_a_cell_in_which_ranks_were_freed_has_failed(two: Notebook, body: str) -> None:
    ran = two.run(f"%%mn\n{body}", seconds=20)
    assert ran.error_name == "RanksStuck"
    assert "rank 1 has finished the cell; rank 0 waited in " in ran.error
    works(two)


SIGNALS = {
    "ignores it": "signal.signal(signal.SIGINT, signal.SIG_IGN)",
    "notes it": "signal.signal(signal.SIGINT, lambda *_: None)",
    "raises": "signal.signal(signal.SIGINT, lambda *_: 1 / 0)",
    "blocks it": "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])",
    "runs in asyncio": "await asyncio.sleep(0)",
}


@pytest.mark.parametrize("body", SIGNALS.values(), ids=SIGNALS.keys())
def test_ranks_are_freed_whatever_their_code_makes_of_the_signal(two: Notebook, body: str) -> None:
    began = time.monotonic()
    ran = two.run(f"%%mn\nimport asyncio, signal\n{body}\nif comm.rank: 1 / 0\ncomm.barrier()")
    took = time.monotonic() - began
    assert "rank 1 raised ZeroDivisionError at " in ran.error
    assert "rank 0 waited in barrier #" in ran.error
    assert "rank 0 raised" not in ran.error
    assert took < SOON
    works(two)
    # The next cell can be interrupted as ever.
    ran = two.run("%%mn\nif comm.rank: 1 / 0\ncomm.barrier()", seconds=20)
    assert "rank 0 waited in barrier #" in ran.error
    works(two)


def test_an_interrupt_that_becomes_another_error_is_none_of_the_cell_s(two: Notebook) -> None:
    label = two.next_cell()
    ran = two.run(
        "%%mn\ntry:\n    if comm.rank == 0: comm.barrier()\nexcept KeyboardInterrupt:\n"
        "    raise RuntimeError('training stopped')",
        seconds=20,
    )
    assert ran.error_name == "RanksStuck"
    assert "rank 1 has finished the cell; rank 0 waited in barrier" in ran.error
    assert f"rank 0 then raised RuntimeError at {label} line 5: training stopped" in ran.error
    works(two)


def test_a_collective_at_the_debugger_s_prompt(two: Notebook) -> None:
    assert not two.run("%%mn 1\n1 / 0").ok
    lines = iter(["p comm.allreduce(np.ones(1))", "q"])
    ran = two.run("%mn_debug 1", typed=lambda prompt, ran: next(lines, "q"), seconds=20)
    assert ran.error_name == "RanksStuck"
    assert "rank 0 does not run this cell; rank 1 waited in allreduce" in ran.error
    works(two)


def test_an_error_that_a_magic_within_keeps_for_itself(two: Notebook) -> None:
    ran = two.run("%%mn\n%%capture out\n1 / 0 if comm.rank else comm.barrier()", seconds=20)
    assert "rank 1 raised ZeroDivisionError" in ran.error
    assert "rank 0 waited in barrier" in ran.error
    two.check("%%mn\n%%capture out\nprint(3)")
    two.check("%mn assert out.stdout == '3\\n'")
    works(two)


def test_communicators_that_the_user_s_code_found_broken_are_renewed(two: Notebook) -> None:
    two.check(
        "%%mn\ntry: comm.barrier() if comm.rank else comm.allreduce(np.ones(2))\n"
        "except nbmn.communicators.errors.MismatchError: pass"
    )
    works(two)


def _press(two: Notebook, body: str, tmp_path: Path) -> Ran:
    return two.run(
        f"%%mn\nimport pathlib, time\nhere = pathlib.Path({str(tmp_path)!r})\n{body}",
        interrupt_when=lambda: len(list(tmp_path.iterdir())) == 2,
        seconds=20,
    )


@pytest.mark.parametrize("rest", ["", "\n    time.sleep(0.001)"])
def test_one_press_ends_a_loop_that_spends_its_time_in_finalizers(
    two: Notebook, tmp_path: Path, rest: str
) -> None:
    pressed = two.check("import time\npressed = time.monotonic()")
    assert pressed.ok
    ran = _press(
        two,
        "class Slow:\n    def __del__(self):\n        (here / str(comm.rank)).touch()\n"
        f"        time.sleep(2)\nwhile True:\n    slow = Slow(); del slow{rest}",
        tmp_path,
    )
    assert ran.error_name == "RanksInterrupted"
    assert two.value("time.monotonic() - pressed < 6")
    works(two)


@pytest.mark.parametrize("method", ["__str__", "__repr__"])
def test_the_stop_button_ends_a_message_that_never_comes(
    two: Notebook, tmp_path: Path, method: str
) -> None:
    ran = _press(
        two,
        f"class Endless(Exception):\n    def {method}(self):\n"
        "        (here / str(comm.rank)).touch()\n        while True: pass\n"
        "    __str__ = __repr__ if '__repr__' in vars() else __str__\nraise Endless",
        tmp_path,
    )
    assert ran.error_name == "RanksInterrupted"
    works(two)


@pytest.mark.parametrize("error", ["SystemExit(3)", "KeyboardInterrupt", "GeneratorExit"])
def test_a_message_that_ends_in_what_is_no_exception(two: Notebook, error: str) -> None:
    label = two.next_cell()
    ran = two.run(
        f"%%mn\nclass Odd(Exception):\n    def __str__(self): raise {error}\n"
        "if comm.rank: raise Odd\ncomm.barrier()",
        seconds=20,
    )
    name = error.partition("(")[0]
    words = f"rank 1 raised Odd at {label} line 4: <its message cannot be shown: {name}>"
    assert words in ran.error
    assert "line 4, in <module>" in ran.error
    works(two)
