"""ipyparallel's launcher of mpiexec, whose log has whatever ranks wrote below Python."""

from __future__ import annotations

import os

from ipyparallel.cluster.launcher import MPIEngineSetLauncher

LAST = 1_000_000
"""Bytes of the log that are read: what tells of an end comes last."""


class RanksLauncher(MPIEngineSetLauncher):
    """Reads the end of a log that need be no text: programs that a rank calls write any bytes."""

    def get_output(self, remove: bool = False) -> str:
        if self._output is None:
            self._output = end_of(self.output_file)
        return super().get_output(remove)


def end_of(path: str) -> str:
    """The last :data:`LAST` bytes of a file as text; empty where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - LAST))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
