"""ipyparallel's controller, ended with the notebook that started it."""

from __future__ import annotations

import os
import time

import psutil

from nbmn.cluster.files import remove_files
from nbmn.parent import VARIABLE, watch_from_environment

GRACE = 1.0
"""Seconds that ranks have to see for themselves that the notebook is gone."""


def end_ranks() -> None:
    """Kill what is left of this notebook's ranks and mpiexec on this host.

    A rank whose native code holds the interpreter, as starting MPI does, cannot end itself.
    """
    time.sleep(GRACE)
    notebook = os.environ[VARIABLE]
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get(VARIABLE) == notebook and "nbmn.engine" in process.cmdline()
            ):  # mpiexec has both too
                process.kill()
        except psutil.Error:
            continue  # it has ended, or is somebody else's


def clear() -> None:
    """End the ranks, and remove what the notebook would have removed."""
    end_ranks()
    remove_files(os.environ["IPP_PROFILE_DIR"], os.environ["IPP_CLUSTER_ID"])


def watch() -> None:
    watch_from_environment(clear)


if __name__ == "__main__":
    watch()
    # The controller forks its heart monitor, and a fork takes no threads along.
    os.register_at_fork(after_in_child=watch)
    from nbmn.cluster.connection_file import Controller

    Controller.launch_instance()
