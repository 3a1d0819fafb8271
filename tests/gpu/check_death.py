"""One of two ranks is killed while the other waits for it in NCCL, which says nothing of it."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import check_nccl_ranks
from gpu_tools import Report, Skip, measured
from gpu_values import model_of

from nbmn.communicators import BrokenCommunicatorError

MOST = 10.0
"""Seconds in which the death of a rank is to be seen."""
ONE = Path(__file__).with_name("one.py")


def run(report: Report, role: str = "") -> None:
    if role:
        die_or_notice(report)
    launcher = shutil.which("mpiexec") or str(Path(sys.executable).with_name("mpiexec"))
    with tempfile.TemporaryDirectory() as folder:
        program = [sys.executable, str(ONE), folder, "60", "check_death", "rank"]
        # Told to let the others live, the launcher sends them a signal that may end them.
        program = ["sh", "-c", f"trap : USR1; {shlex.join(program)}"]
        ran = subprocess.run(
            [launcher, "-disable-auto-cleanup", "-n", "2", *program],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=100,
            check=False,
        )
        told = Path(folder, "0.jsonl").read_text()
    assert told, ran.stdout[-3000:]
    said = json.loads(told)
    if "skip" in said:
        raise Skip(said["skip"])
    report(said.pop("name"), **said)
    assert "rank 1 has ended" in said["error"], said
    measured("seconds until the death of a rank was seen", said["seconds_until_seen"], MOST)


def die_or_notice(report: Report) -> None:
    """Be one of the two."""
    comm = check_nccl_ranks.started()
    if comm.rank == 1:
        # When all have agreed to average.
        carrier = comm._parts.gradients._direct.carrier
        carrier.add = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    model, _ = model_of(comm.rank, comm.size)
    try:
        comm.multi_node_mean_grad(model)
    except BrokenCommunicatorError as error:
        told = str(error)
    else:
        told = "none: the means were had"
    if comm.rank == 0:
        report("death of a rank", seconds_until_seen=time.monotonic() - began, error=told)
    os._exit(0)  # MPI would wait for the other
