"""What ipyparallel writes for a cluster: logs, connection files, lists of engines."""

from __future__ import annotations

import contextlib
import glob
from pathlib import Path

FOLDERS = ("log", "security")


def remove_files(profile: str, cluster: str) -> None:
    """Remove the files of a cluster that has ended; each of them has its name.

    Parameters
    ----------
    profile
        The folder of the IPython profile.
    cluster
        ipyparallel's name of the cluster.
    """
    if not cluster:
        return  # all files would have it in theirs
    for folder in FOLDERS:
        for path in Path(profile, folder).glob(f"*{glob.escape(cluster)}*"):
            with contextlib.suppress(OSError):  # it is gone, or has to stay; nobody needs it
                path.unlink()
