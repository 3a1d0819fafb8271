"""One rank of a test session: runs the checks of a module, one after the other.

A check that fails on one rank leaves the others waiting: they time out, all ranks renew
their communicators, and the next check runs.
"""

import faulthandler
import importlib
import inspect
import json
import sys
import traceback
from pathlib import Path

from nbmn.communicators import create_communicator, world

TIMEOUT = 15.0


def main(module_name, folder):
    faulthandler.dump_traceback_later(90, exit=False)
    module = importlib.import_module(module_name)
    checks = [
        (name, function)
        for name, function in vars(module).items()
        if name.startswith("check_") and inspect.isfunction(function)
    ]
    comm = create_communicator()
    comm.timeout = TIMEOUT
    with (Path(folder) / f"{comm.rank}.jsonl").open("w") as report:
        for number, (name, function) in enumerate(checks):
            try:
                function(comm)
                result = "ok"
            except Exception as error:  # noqa: BLE001 - reported
                if type(error).__name__ == "Skip":
                    result = f"skipped: {error}"
                else:
                    result = traceback.format_exc()
            report.write(json.dumps([name, result]) + "\n")
            report.flush()
            world().renew(1000 * (number + 1))
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main(*sys.argv[1:])
