"""Start, trouble and death of ranks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from notebook_kernel import Notebook, Ran, all_gone, wait_until


def _pids(notebook: Notebook) -> list[int]:
    notebook.check("import os")
    notebook.check("%%mn -o pids\nimport os\nos.getpid()")
    pids = notebook.value("pids")
    return [pids[rank] for rank in sorted(pids)]


@pytest.mark.short
def test_mpi_leaves_no_names_of_shared_memory_behind(fresh: Notebook) -> None:
    ran = fresh.check("%mn_start 2")
    if "MPICH" not in ran.text:
        pytest.skip("Open MPI shares its memory in other files")
    fresh.check("%%mn -o maps\nopen('/proc/self/maps').read()")
    for maps in fresh.value("maps").values():
        shared = [line for line in maps.splitlines() if "/dev/shm/mpich_shm_" in line]
        assert shared
        assert all(line.endswith("(deleted)") for line in shared)
    fresh.check("%mn comm.allreduce(np.ones(10**6))[0]")


def test_start_introduces_ranks_and_a_second_start_says_so(fresh: Notebook) -> None:
    first = fresh.check("%mn_start 2")
    assert "2 ranks ready" in first.text
    assert "%mn_push" in first.text
    assert "already running" in fresh.check("%mn_start 2").text
    other = fresh.run("%mn_start 3")
    assert not other.ok
    assert "--restart" in other.error
    fresh.check(
        "%%mn\nassert comm.size == 2\nassert {'comm','nbmn','chainer','np','xp'} <= set(globals())"
    )
    before = _pids(fresh)
    fresh.check("%mn_restart")
    after = _pids(fresh)
    assert not set(before) & set(after)
    fresh.check("%%mn -o r\ncomm.rank")
    assert fresh.value("r") == {0: 0, 1: 1}
    processes = fresh.descendants()
    assert len(processes) >= 4
    fresh.check("%mn_stop")
    wait_until(lambda: all_gone(processes), 5, "all processes of the stopped ranks are gone")
    assert "no ranks" in fresh.run("%mn 1").error


def test_ranks_stay_on_the_host_of_the_notebook_within_a_job_of_slurm(fresh: Notebook) -> None:
    """A launcher would start them on the job's hosts, by srun."""
    fresh.check(
        "import os\n"
        "os.environ |= dict(SLURM_JOB_ID='7', SLURM_JOBID='7', SLURM_NNODES='2',\n"
        "    SLURM_NODELIST='n[1-2]', SLURM_JOB_NODELIST='n[1-2]', SLURM_JOB_NUM_NODES='2',\n"
        "    SLURM_TASKS_PER_NODE='1(x2)', SLURM_NTASKS='2')"
    )
    assert "2 ranks ready" in fresh.check("%mn_start 2").text
    fresh.check("%%mn -o jobs\nimport os\nos.environ['SLURM_JOB_ID'], comm.intra_size")
    assert fresh.value("jobs") == dict.fromkeys((0, 1), ("7", 2))


def test_interrupt_while_starting_leaves_no_process(fresh: Notebook) -> None:
    seen: list[psutil.Process] = []

    def engines_are_launched() -> bool:
        seen[:] = fresh.descendants()
        return len(seen) >= 4

    ran = fresh.run("%mn_start 2", interrupt_when=engines_are_launched)
    assert not ran.ok
    assert ran.error == "KeyboardInterrupt: stopped while ranks were starting; none runs"
    wait_until(lambda: all_gone(seen + fresh.descendants()), 5, "the interrupted start is cleared")
    fresh.check("%mn_start 2")
    fresh.check("%mn comm.rank")


def test_missing_mpiexec_is_a_clear_error(fresh: Notebook) -> None:
    fresh.check(
        "import sys, os\nkeep = sys.executable, os.environ['PATH']\n"
        "sys.executable, os.environ['PATH'] = '/nowhere/python', '/nowhere'"
    )
    ran = fresh.run("%mn_start 2")
    assert not ran.ok
    assert "no mpiexec found" in ran.error
    assert "pip install mpich" in ran.error
    fresh.check("sys.executable, os.environ['PATH'] = keep")
    assert fresh.descendants() == []


def test_failing_engine_is_reported_with_its_log(fresh: Notebook, tmp_path: Path) -> None:
    # A module of this name comes first on the ranks' path, and breaks what they import.
    (tmp_path / "mpi4py.py").write_text("raise ImportError('libmpi is broken')")
    fresh.check(f"import os; os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    ran = fresh.run("%mn_start 2")
    assert not ran.ok
    assert ran.error_name == "StartError"
    assert "libmpi is broken" in ran.error
    fresh.check("del os.environ['PYTHONPATH']")
    wait_until(lambda: all_gone(fresh.descendants()), 5, "the failed start is cleared")


def test_rank_that_ends_unnoticed_while_it_starts(fresh: Notebook, tmp_path: Path) -> None:
    # As when it is killed while others are in MPI_Init: mpiexec, and they, wait for ever.
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, time\n"
        "if 'nbmn.engine' in sys.orig_argv:\n"
        "    if os.environ.get('PMI_RANK') == '1':\n"
        "        os.kill(os.getppid(), 19)\n"
        "        os._exit(0)\n"
        "    time.sleep(60)\n"
    )
    fresh.check(f"import os; os.environ['PYTHONPATH'] = {str(tmp_path)!r}")
    ran = fresh.run("%mn_start 2", seconds=30)
    assert "a rank ended while it started" in ran.error
    wait_until(lambda: not fresh.descendants(), 10, "no process is left")


def test_failing_controller_is_reported(fresh: Notebook) -> None:
    fresh.check("import os; os.environ['PYTHONHOME'] = '/nowhere'")
    ran = fresh.run("%mn_start 2")
    assert not ran.ok
    assert ran.error_name == "StartError"
    fresh.check("del os.environ['PYTHONHOME']")
    wait_until(lambda: all_gone(fresh.descendants()), 5, "the failed start is cleared")


def test_killed_rank_is_named_and_the_notebook_lives_on(fresh: Notebook) -> None:
    fresh.check("%mn_start 2")
    victim = _pids(fresh)[1]
    reporting = threading.Event()

    def kill() -> None:
        reporting.wait(30)
        os.kill(victim, signal.SIGKILL)

    def see(ran: Ran) -> None:
        if "iteration" in ran.text:
            reporting.set()

    threading.Thread(target=kill, daemon=True).start()
    train = "import time\nwhile True: nbmn.report(loss=1.0); time.sleep(0.01)"
    ran = fresh.run(f"%%mn\n{train}", on_message=see)
    assert not ran.ok
    assert f"rank 1 (pid {victim}) was killed by SIGKILL" in ran.error
    assert "%mn_restart" in ran.error
    board = "".join(data.get("text/html", "") for data in ran.displays.values())
    rows = [" ".join(re.sub("<[^>]+>", " ", row).split()) for row in board.split("<tr>")]
    assert any(row.startswith("● 0 ■ ended: by mpiexec ") for row in rows), rows
    assert any(row.startswith("● 1 ✕ killed: by SIGKILL ") for row in rows), rows
    again = fresh.run("%mn 1")
    assert not again.ok
    assert "rank 1" in again.error
    fresh.check("%mn_restart")
    fresh.check("%mn comm.rank")


@pytest.fixture
def profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where notebooks of this test, and so ipyparallel, keep connection files and logs."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    return tmp_path


def _left_behind(profile: Path) -> set[str]:
    files = {path.name for path in profile.rglob("*") if path.is_file()}
    return files - {"README", "history.sqlite", "history.sqlite-journal"}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_death_of_the_kernel_reaps_everything(how: signal.Signals, profile: Path) -> None:
    notebook = Notebook()
    try:
        notebook.check("%load_ext nbmn\n%mn_start 2")
        processes = notebook.descendants()
        names = " ".join(" ".join(process.cmdline()) for process in processes)
        assert "nbmn.engine" in names
        assert "nbmn.cluster.controller" in names
        notebook.client.stop_channels()
        os.kill(notebook.pid, how)
        wait_until(lambda: all_gone(processes), 6, "engines, mpiexec and controller are reaped")
        assert not _left_behind(profile)
    finally:
        notebook.manager.shutdown_kernel(now=True)


def test_ranks_that_hold_the_interpreter_are_reaped_too() -> None:
    notebook = Notebook()
    try:
        notebook.check("%load_ext nbmn\n%mn_start 2")
        processes = notebook.descendants()
        notebook.check("%%mn --bg\nimport ctypes\nprint('in')\nctypes.PyDLL(None).sleep(60)")
        wait_until(lambda: "silent for" in notebook.check("%mn_status").text, 15, "both are silent")
        notebook.client.stop_channels()
        os.kill(notebook.pid, signal.SIGKILL)
        wait_until(lambda: all_gone(processes), 10, "engines, mpiexec and controller are reaped")
    finally:
        notebook.manager.shutdown_kernel(now=True)


def test_loading_the_extension_again_keeps_the_ranks(fresh: Notebook) -> None:
    fresh.check("%mn_start 1")
    before = _pids(fresh)
    fresh.check("%load_ext nbmn")
    fresh.check("%reload_ext nbmn")
    assert _pids(fresh) == before
    fresh.check("%unload_ext nbmn\n%load_ext nbmn")
    assert _pids(fresh) == before
    processes = fresh.descendants()
    fresh.check("%%mn --bg -o run\nwhile True: pass")
    fresh.check("%mn_stop")
    assert "the ranks were stopped" in fresh.run("run.wait()").error
    assert all_gone(processes)


def test_a_rank_that_leaves_is_named(fresh: Notebook) -> None:
    fresh.check("%mn_start 2")
    ways = {
        "os._exit(0)": "exited with code 0",
        "os._exit(3)": "exited with code 3",
        "os.kill(os.getpid(), 11)": "was killed by SIGSEGV",
        "__import__('mpi4py.MPI').MPI.Finalize()": "exited with code 1 at cell",
    }
    for code, words in ways.items():
        ran = fresh.run(f"%%mn\nimport os\nif comm.rank == 1: {code}\ncomm.barrier()", seconds=30)
        assert not ran.ok
        assert words in ran.error
        assert "rank 1" in ran.error
        assert "%mn_restart" in ran.error
        fresh.check("%mn_restart")
        fresh.check("%mn comm.barrier()")


def test_a_rank_that_is_told_to_terminate_is_named(fresh: Notebook) -> None:
    fresh.check("%mn_start 2")
    label = fresh.next_cell()
    ran = fresh.run(
        "%%mn\nimport os, signal\nif comm.rank: os.kill(os.getpid(), signal.SIGTERM)\n"
        "comm.barrier()",
        seconds=30,
    )
    at = re.escape(f"{label} line 3")
    assert re.search(rf"rank 1 \(pid \d+\) was killed by SIGTERM at {at}", ran.error)
    assert "%mn_restart" in ran.error
    fresh.check("%mn_restart")
    victim = _pids(fresh)[1]
    os.kill(victim, signal.SIGTERM)
    wait_until(lambda: not fresh.run("%mn 1").ok, 15, "the others do not wait for it")
    assert f"rank 1 (pid {victim}) was killed by SIGTERM, and" in fresh.run("%mn 1").error


def test_ranks_that_have_ended_mpi_say_so(fresh: Notebook) -> None:
    fresh.check("%mn_start 2")
    fresh.check("%%mn\nfrom mpi4py import MPI\nMPI.Finalize()")
    ran = fresh.run("%mn comm.rank", seconds=30)
    assert "a cell has called MPI.Finalize()" in ran.error
    assert "%mn_restart" in ran.error


def test_ranks_that_stop_together_exit_as_programs_do(fresh: Notebook, tmp_path: Path) -> None:
    fresh.check("%mn_start 2")
    fresh.check(
        f"%%mn\nimport atexit, multiprocessing, pathlib\n"
        f"atexit.register(pathlib.Path({str(tmp_path)!r}, str(comm.rank)).touch)\n"
        "fork = multiprocessing.get_context('fork')\n"
        "for _ in range(5):\n"
        "    child = fork.Process(target=__import__('time').sleep, args=(60,))\n"
        "    child.start(); child.terminate(); child.join(10)\n    assert child.exitcode == -15"
    )
    fresh.check("%mn comm.barrier()")
    fresh.check("%mn_stop")
    assert {path.name for path in tmp_path.iterdir()} == {"0", "1"}


def test_restart_of_the_kernel_reaps_the_ranks_of_the_old_one(fresh: Notebook) -> None:
    fresh.check("%mn_start 2")
    processes = fresh.descendants()
    fresh.manager.restart_kernel(now=False)
    fresh.client.wait_for_ready(timeout=60)
    wait_until(lambda: all_gone(processes), 6, "the old ranks are gone")
    fresh.check("%load_ext nbmn\n%mn_start 1\n%mn comm.size")


def test_two_notebooks_at_once_and_nothing_left_behind(profile: Path, fresh: Notebook) -> None:
    other = Notebook()
    try:
        other.check("%load_ext nbmn")
        fresh.check("%mn_start 1")
        other.check("%mn_start 1")
        fresh.check("%mn name = 'one'")
        other.check("%mn name = 'two'")
        for notebook, name in ((fresh, "one"), (other, "two")):
            notebook.check("%%mn -o got\nname")
            assert notebook.value("got") == {0: name}
        fresh.check("%mn_stop")
        assert _left_behind(profile)  # the other's
        other.check("%mn assert name == 'two'")
        other.check("%mn_stop")
    finally:
        other.close()
    assert not _left_behind(profile)


def test_ranks_have_one_blas_thread_unless_told_otherwise(fresh: Notebook) -> None:
    fresh.check("%mn_start 1")
    show = (
        "%%mn -o got\nimport os\nos.environ['OMP_NUM_THREADS'], os.environ['OPENBLAS_NUM_THREADS']"
    )
    fresh.check(show)
    assert fresh.value("got") == {0: ("1", "1")}
    fresh.check("%mn_start 1 --restart --threads 2")
    fresh.check(show)
    assert fresh.value("got") == {0: ("2", "2")}


def test_a_blocking_call_that_holds_the_interpreter(fresh: Notebook) -> None:
    """Neither heartbeats nor commands get through, and still the rank is not dead."""
    fresh.check("%mn_start 2")
    fresh.check("%%mn 1 --bg -o run\nimport ctypes\nctypes.PyDLL(None).sleep(20)\n'alive'")
    wait_until(
        lambda: "silent for" in fresh.check("%mn_status").text, 10, "the status calls it silent"
    )
    assert fresh.value("run.results()") == {1: "alive"}
    fresh.check("%mn comm.barrier()")


def test_in_a_terminal(tmp_path: Path) -> None:
    script = tmp_path / "session.ipy"
    script.write_text(
        "%load_ext nbmn\n%mn_start 2\n"
        "%mn print('rank', comm.rank)\n"
        "%mn [nbmn.report(loss=1 / (i + 1), total=3) for i in range(3)][0]\n"
    )
    ran = subprocess.run(
        [sys.executable, "-m", "IPython", "--colors=NoColor", str(script)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
    )
    assert ran.returncode == 0, ran.stderr
    assert "2 ranks ready" in ran.stdout
    assert "rank 0:\nrank 0\nrank 1:\nrank 1\n" in ran.stdout
    assert "iteration 3 of 3" in ran.stdout
    assert "Traceback" not in ran.stderr
