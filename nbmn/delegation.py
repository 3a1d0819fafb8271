"""Objects that stand for one of Chainer's and leave to it what they do not do themselves."""

from __future__ import annotations

from typing import Any, ClassVar


class Delegate:
    """Reads and writes what is not its own in the object that it wraps."""

    _OWN: ClassVar[frozenset[str]]
    """Attributes of the wrapper itself."""
    _ACTUAL: ClassVar[str]
    """Which of them is the wrapped object."""

    def __getattr__(self, name: str) -> Any:
        if name in self._OWN:  # not there yet: while being copied or unpickled
            raise AttributeError(name)
        return getattr(getattr(self, self._ACTUAL), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(getattr(self, self._ACTUAL), name, value)
