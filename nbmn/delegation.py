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
        # One's own is not there yet while this is copied or unpickled; special methods are looked
        # up then, and the wrapped object's would make it a copy of that.
        if name in self._OWN or name.startswith("__"):
            raise AttributeError(name)
        return getattr(getattr(self, self._ACTUAL), name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self._OWN:
            object.__setattr__(self, name, value)
        else:
            setattr(getattr(self, self._ACTUAL), name, value)
