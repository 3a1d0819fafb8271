"""Cells that want more memory than there is: which rank, how much, what held it; and then go on."""

from __future__ import annotations

from notebook_kernel import Notebook

_HOLD = """
big = np.zeros(48 << 20, np.uint8)
def load(size):
    batch = np.ones(32 << 20, np.uint8)
    return np.empty(size, np.float64), batch
"""


def test_ranks_tell_what_held_their_memory(two: Notebook) -> None:
    label = two.next_cell()
    two.check(f"%%mn{_HOLD}")
    ran = two.run("%%mn\nload(1 << 55)")
    assert ran.error_name == "RanksFailed"
    lines = ran.error.splitlines()
    assert lines[0].startswith(f"ranks 0, 1 raised MemoryError at {label} line 5: Unable to")
    # The first account is whole, of the others what differs.
    first = next(n for n, line in enumerate(lines) if line.startswith("rank 0, "))
    assert ": 256 PiB asked for, " in lines[first]
    assert " used by this rank" in lines[first]
    assert lines[first + 1].startswith("  in use by: `big` 48.0 MiB (uint8 50331648), ")
    assert "`batch` in load() 32.0 MiB (uint8 33554432)" in lines[first + 1]
    assert "  what helps: no more than " in "\n".join(lines[first + 2 : first + 4])
    assert sum(line.startswith("rank 1, ") for line in lines) == 1
    assert ran.error.count("in use by") == 1
    assert "in load" in ran.error  # the traceback
    # What the call held is let go of, although the error is kept for the debugger.
    two.check(
        "%%mn -o kept\nimport sys\ntrace, names = sys.last_value.__traceback__, []\n"
        "while trace is not None:\n"
        "    names += [dict(trace.tb_frame.f_locals)] * (trace.tb_frame.f_code.co_name == 'load')\n"
        "    trace = trace.tb_next\n"
        "names"
    )
    assert two.value("kept") == {0: [{}], 1: [{}]}
    two.check("%%mn\nassert big.nbytes == 48 << 20\ndel big")


def test_an_account_that_fails_hides_no_error(two: Notebook) -> None:
    two.check("%%mn\nclass Short(MemoryError):\n    @property\n    def shape(self): return 1 / 0")
    ran = two.run("%%mn 1\nraise Short('too little')")
    assert "rank 1 raised Short" in ran.error
    assert "rank 1: what held the memory cannot be told: division by zero" in ran.error
