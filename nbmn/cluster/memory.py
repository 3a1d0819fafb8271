"""Whether the kernel has ended processes here for want of memory (Linux)."""

from __future__ import annotations

from pathlib import Path

_VMSTAT = Path("/proc/vmstat")


class Memory:
    """Counts the kernel's out-of-memory kills on this host from now on.

    Parameters
    ----------
    source
        Where the kernel counts them; those of control groups are among them.
    """

    def __init__(self, source: Path = _VMSTAT) -> None:
        self._source = source
        self._before = self._count()

    def ran_out(self) -> bool | None:
        """Whether there was such a kill; None where the kernel does not tell."""
        now = self._count()
        if now is None or self._before is None:
            return None
        return now > self._before

    def _count(self) -> int | None:
        try:
            lines = self._source.read_text().splitlines()
        except OSError:
            return None
        counts = [line.split()[1] for line in lines if line.startswith("oom_kill ")]
        return int(counts[0]) if counts else None
