"""%mn_restart --replay: new ranks come to where the old ones were."""

from __future__ import annotations

from pathlib import Path

from notebook_kernel import Notebook


def test_replay_brings_new_ranks_to_where_the_old_ones_were(fresh: Notebook) -> None:
    fresh.check("%mn_start 2\nbase = 10")
    fresh.check("%mn_push base")
    fresh.check("%%mn\nsteps = [base + comm.rank]")
    fresh.check("%%mn 1\nsteps.append('on one')")
    assert not fresh.run("%%mn\nsteps.append('failed')\n1 / 0").ok
    fresh.check("%%mn --bg -o later\nsteps.append('in the background')")
    fresh.check("later.wait()")
    killed = fresh.run(
        "%%mn\nimport os\nif comm.rank == 0: os.kill(os.getpid(), 9)\ncomm.barrier()"
    )
    assert "--replay" in killed.error
    assert "replayed 3 cells and 1 push" in fresh.check("%mn_restart --replay").text
    fresh.check("%%mn -o got\nsteps")
    once = {0: [10, "in the background"], 1: [11, "on one", "in the background"]}
    assert fresh.value("got") == once
    assert "replayed 4 cells and 1 push" in fresh.check("%mn_restart --replay").text
    fresh.check("%%mn -o got\nsteps")
    assert fresh.value("got") == once
    fresh.check("%mn_restart")
    assert "replayed 0 cells" in fresh.check("%mn_restart --replay").text


def test_what_was_not_replayed_is_replayed_the_next_time(fresh: Notebook, tmp_path: Path) -> None:
    fresh.check("%mn_start 2\nbase = 10")
    fresh.check("%mn_push base")
    fresh.check("%%mn\nsteps = [base + comm.rank]")
    fails, sleeps = tmp_path / "fails", tmp_path / "sleeps"
    label = fresh.next_cell()
    fresh.check(
        f"%%mn\nimport os, time\nassert not os.path.exists({str(fails)!r})\nsteps.append(2)"
    )
    fresh.check(
        f"%%mn\nif os.path.exists({str(sleeps)!r}):\n"
        f"    open(os.path.join({str(tmp_path)!r}, f'begun{{comm.rank}}'), 'w').close()\n"
        "    time.sleep(60)\nsteps.append(3)"
    )
    fresh.check("%%mn --bg -o endless\nwhile True: time.sleep(0.01)")
    fails.touch()
    ran = fresh.run("%mn_restart --replay")
    assert "still ran and is not replayed" in ran.text
    assert "raised AssertionError" in ran.error
    assert f"replayed 2 of 4, and {label} did not succeed" in ran.text
    fails.unlink()
    sleeps.touch()
    ran = fresh.run(
        "%mn_restart --replay", interrupt_when=lambda: len(list(tmp_path.glob("begun*"))) == 2
    )
    assert ran.error_name == "RanksInterrupted"
    assert "replayed 3 of 4" in ran.text
    sleeps.unlink()
    begun: list[bool] = []
    ran = fresh.run(
        "%mn_restart --replay",
        interrupt_when=lambda: bool(begun),
        on_message=lambda ran: begun.append(True) if "starting" in ran.text else None,
    )
    assert ran.error == "KeyboardInterrupt: stopped while ranks were starting; none runs"
    assert "replayed 3 cells and 1 push" in fresh.check("%mn_restart --replay").text
    fresh.check("%%mn -o got\nsteps")
    assert fresh.value("got") == {0: [10, 2, 3], 1: [11, 2, 3]}
