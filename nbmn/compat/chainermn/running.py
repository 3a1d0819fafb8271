"""Runs a script as Python does, with ``chainermn`` meaning nbmn."""

from __future__ import annotations

import os
import runpy
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType, TracebackType

from nbmn import global_except_hook

CHILDREN = "NBMN_AS_CHAINERMN"
"""Set for processes that the script starts, which import it too (see ``compat/startup.py``)."""

USAGE = """\
usage: python -m nbmn.compat.chainermn SCRIPT [ARGUMENT ...]
       python -m nbmn.compat.chainermn -m MODULE [ARGUMENT ...]

Run a ChainerMN script unchanged: its `import chainermn` means nbmn. Under mpiexec,
an error on one rank ends the job."""


def main(arguments: Sequence[str]) -> int:
    """Run what the command line says; return the exit status.

    Raises
    ------
    SystemExit
        The script's own.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE, file=sys.stdout if arguments else sys.stderr)
        return 0 if arguments else 2
    if arguments[0] == "-m" and len(arguments) == 1:
        print(f"argument expected for -m\n{USAGE}", file=sys.stderr)
        return 2
    os.environ[CHILDREN] = "1"
    try:
        if arguments[0] == "-m":
            sys.argv = list(arguments[1:])
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            run_script(arguments[0], arguments[1:])
    except SystemExit as ending:
        _end_other_ranks(ending)
        raise
    except BaseException as error:  # noqa: BLE001 - shown as Python shows it
        error.__traceback__ = of_script(error.__traceback__)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the script may have added it
            global_except_hook.add_hook()
        sys.excepthook(type(error), error, error.__traceback__)
        _end_other_ranks(error)
        return 1
    return 0


def run_script(path: str, arguments: Sequence[str]) -> None:
    """Execute a file as ``__main__``, with the ``sys.argv`` and ``sys.path`` it would have.

    Raises
    ------
    SystemExit
        The file cannot be read, or the script's own.
    """
    try:
        with open(path, "rb") as file:
            source = file.read()
    except OSError as error:
        print(f"{sys.executable}: can't open file {path!r}: {error}", file=sys.stderr)
        raise SystemExit(2) from None
    sys.argv = [path, *arguments]
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    script = ModuleType("__main__")
    script.__file__ = os.path.abspath(path)
    # It stays there: worker processes and pickles ask for the script after it has ended.
    sys.modules["__main__"] = script
    exec(compile(source, script.__file__, "exec", dont_inherit=True), vars(script))


def of_script(traceback: TracebackType | None) -> TracebackType | None:
    """Leave out the frames that led to the script."""
    ours = (os.path.dirname(__file__), runpy.__file__, "<frozen runpy>")
    while traceback and traceback.tb_frame.f_code.co_filename.startswith(ours):
        traceback = traceback.tb_next
    return traceback


def _end_other_ranks(error: BaseException) -> None:
    """Abort MPI at exit, if the script used it and did not end well."""
    from mpi4py.run import set_abort_status

    set_abort_status(error)
