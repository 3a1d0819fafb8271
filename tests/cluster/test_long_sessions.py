"""A notebook that stays open for days: what it does over and over leaves nothing behind."""

from __future__ import annotations

from notebook_kernel import Notebook

THREADS = "len(__import__('threading').enumerate())"


def test_starts_leave_no_thread_and_a_rank_may_write_any_bytes(fresh: Notebook) -> None:
    fresh.check("%mn_start 1")
    fresh.check("%mn_stop")
    before = fresh.value(THREADS)
    fresh.check("%mn_start 1")
    # As a program that the rank calls would: these go into mpiexec's log too.
    fresh.check("%%mn\nimport os\nos.write(1, b'\\xff\\xfe\\n')")
    ran = fresh.run("%mn os.kill(os.getpid(), 9)")
    assert "rank 0" in ran.error
    assert "was killed by SIGKILL" in ran.error
    ran = fresh.check("%mn_restart")
    assert not ran.streams["stderr"]
    fresh.check("%%mn\nimport os\nos.write(2, b'\\xff')")
    ran = fresh.check("%mn_stop")
    assert not ran.streams["stderr"]
    assert fresh.value(THREADS) <= before


def test_progress_bars_of_ranks_are_text(two: Notebook) -> None:
    two.check(
        "%%mn\nimport sys\nsys.modules.pop('tqdm.autonotebook', None)\n"
        "import tqdm.autonotebook, tqdm.std\nassert tqdm.autonotebook.tqdm is tqdm.std.tqdm"
    )
