"""An iterator in whose batches a fault strikes; apart, since it is one of Chainer's."""

from __future__ import annotations

from typing import Any

import chainer

from nbmn.debug.injection import Wrapper


class FaultyIterator(Wrapper, chainer.dataset.Iterator):
    """Takes batches from the wrapped iterator."""

    def __next__(self) -> Any:
        return self._fault.meet(next(self._actual))

    next = __next__

    def finalize(self) -> None:
        """End the wrapped iterator; local."""
        self._actual.finalize()

    def serialize(self, serializer: chainer.AbstractSerializer) -> None:
        """Save or load the wrapped iterator; local."""
        self._actual.serialize(serializer)

    def __del__(self) -> None:
        """Leave the wrapped iterator alone: the user may hold it."""
