"""Runs checks in processes of their own, each with a deadline, so that none waits for another."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plan import Check, Round

ONE = Path(__file__).with_name("one.py")
SKIPPED = 77
TAIL = 8000
"""Characters of what a failed check printed."""
LEAST = 2.0
"""Seconds with which it is no use to begin."""
_DUMP = 2.0  # seconds before the deadline, at which a check says where it stands
_GRACE = 3.0
_POLL = 0.1
_MARK = "NBMN_GPU_CHECK"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a check."""

    status: str
    """passed, failed or skipped."""
    seconds: float = 0.0
    reason: str = ""
    figures: tuple[dict[str, Any], ...] = ()
    tail: str = ""


@dataclass(slots=True)
class Run:
    """One run of checks.

    Parameters
    ----------
    folder
        For what processes write.
    until
        When all must be over; monotonic seconds.
    """

    folder: Path
    environment: dict[str, str]
    until: float
    workers: int = max(2, (os.cpu_count() or 1) - 2)
    stopped: threading.Event = field(default_factory=threading.Event)

    def rounds(self, rounds: Sequence[Round]) -> Iterator[dict[str, Outcome]]:
        """Run the rounds one after the other; what one leaves of its time the others get."""
        for number, checks in enumerate(rounds):
            left = self.until - time.monotonic()
            share = _weight(checks) / sum(map(_weight, rounds[number:]))
            yield self._together(checks, time.monotonic() + left * share)

    def _together(self, checks: Round, until: float) -> dict[str, Outcome]:
        with ThreadPoolExecutor(self.workers) as pool:
            try:
                found = list(pool.map(lambda check: self.one(check, until), checks))
            except BaseException:
                self.stopped.set()
                raise
        return {check.name: outcome for check, outcome in zip(checks, found, strict=True)}

    def one(self, check: Check, until: float) -> Outcome:
        """Run one check; returns soon after ``until``, whatever it does."""
        begun = time.monotonic()
        if until - begun < LEAST:
            return Outcome("failed", reason="no time was left for it")
        folder = self.folder / check.name
        folder.mkdir()
        mark = f"{os.getpid()}-{time.monotonic_ns()}-{check.name}"
        environment = {**self.environment, **dict(check.environment), _MARK: mark}
        command = _command(check, folder, until - begun - _DUMP, environment)
        output = folder / "output"
        with output.open("w") as file:
            try:
                process = subprocess.Popen(
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return Outcome("failed", reason=str(error))
            try:
                status = self._wait(process, until)
            finally:
                end_all(process, mark)
        seconds = round(time.monotonic() - begun, 2)
        records = _records(folder)
        figures = tuple(record for record in records if "skip" not in record)
        skips = [record["skip"] for record in records if "skip" in record]
        if status == SKIPPED and skips:
            return Outcome("skipped", seconds, skips[0], figures)
        if status == 0:
            return Outcome("passed", seconds, "", figures)
        tail = output.read_text(errors="replace")[-TAIL:]
        reason = _reason(status, tail, seconds, until - begun)
        return Outcome("failed", seconds, reason, figures, tail)

    def _wait(self, process: subprocess.Popen, until: float) -> int | None:
        """Return the exit status, or None at the deadline."""
        while time.monotonic() < until and not self.stopped.is_set():
            try:
                return process.wait(_POLL)
            except subprocess.TimeoutExpired:
                continue
        return None


def _weight(checks: Round) -> float:
    return max(check.weight for check in checks)


def _command(check: Check, folder: Path, seconds: float, environment: dict[str, str]) -> list[str]:
    program = [sys.executable, str(ONE), str(folder), str(seconds), check.module, *check.arguments]
    if not check.ranks:
        return program
    # Beside this interpreter, where the environment names no other.
    paths = f"{environment.get('PATH', '')}{os.pathsep}{Path(sys.executable).parent}"
    launcher = shutil.which("mpiexec", path=paths) or "mpiexec"
    return [launcher, "-n", str(check.ranks), *program]


def end_all(process: subprocess.Popen, mark: str) -> None:
    """End what is left of a check's processes, and leave to themselves those that cannot be ended.

    Launchers give their ranks sessions of their own, so processes are found by their environment.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        until = time.monotonic() + _GRACE
        left = _left(process, mark)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        while left and time.monotonic() < until:
            time.sleep(_POLL)
            left = _left(process, mark)
        if not left:
            break


def _left(process: subprocess.Popen, mark: str) -> set[int]:
    # The first one is known in any case: not every sandbox shows what others were started with.
    return {*marked(mark), *([process.pid] if process.poll() is None else [])}


def marked(mark: str) -> list[int]:
    """The processes that have this word in the environment with which they were started."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # others', and what ends meanwhile
            if mark.encode() in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _records(folder: Path) -> list[dict[str, Any]]:
    """What the ranks reported, the first one's first; a line may have been cut off."""
    records = []
    for path in sorted(folder.glob("*.jsonl")):
        for text in path.read_text(errors="replace").splitlines():
            try:
                records.append(json.loads(text))
            except ValueError:
                records.append({"name": "cut off", "text": text[:200]})
    return records


def _reason(status: int | None, tail: str, seconds: float, limit: float) -> str:
    if status is None:
        return f"not over after {limit:.0f} s"
    if status < 0:
        return f"ended by signal {-status}"
    if seconds > limit - _DUMP and "Timeout (" in tail:  # faulthandler's word
        return f"not over after {seconds:.0f} s; where it stood is told"
    errors = [line for line in tail.splitlines() if ("Error" in line or "Interrupt" in line)]
    return errors[-1].strip()[:300] if errors else f"exit status {status}"
