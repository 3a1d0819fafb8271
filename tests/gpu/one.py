"""Runs one check in this process: ``one.py FOLDER SECONDS MODULE [ARGUMENT ...]``.

What the check reports is written to FOLDER/RANK.jsonl at once. Exit status: 0, 77 if it does not
apply here, 1 if it failed.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

import gpu_tools

import nbmn  # noqa: F401 - repairs Chainer, whoever imports it first

SKIPPED = 77


def main(folder: str, seconds: str, module: str, *arguments: str) -> int:
    faulthandler.enable()
    faulthandler.dump_traceback_later(max(1.0, float(seconds)), exit=True)
    # Whoever started the run in the background may have had it ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rank = os.environ.get("PMI_RANK", "0")
    with Path(folder, f"{rank}.jsonl").open("w") as file:

        def write(record: dict) -> None:
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            file.flush()

        def report(name: str, /, **figures: object) -> None:
            if rank == "0":
                write({"name": name, **gpu_tools.rounded(figures)})

        try:
            importlib.import_module(module).run(report, *arguments)
        except gpu_tools.Skip as skip:
            write({"skip": str(skip)})
            return SKIPPED
    return 0


def end(status: int) -> None:
    """End this process; naturally if all is well, which is part of what is shown."""
    sys.stdout.flush()
    sys.stderr.flush()
    faulthandler.cancel_dump_traceback_later()
    if gpu_tools.STANDIN:
        gpu_tools.leave_mpi()
        os._exit(status)  # memory is given back after Python has ended, when nothing can answer
    if status == 1:
        os._exit(status)  # MPI would wait for the other ranks
    sys.exit(status)


if __name__ == "__main__":
    try:
        outcome = main(*sys.argv[1:])
    except BaseException:  # noqa: BLE001 - told, and the process ends
        traceback.print_exc()
        outcome = 1
    end(outcome)
