"""Changes one array within a value, which stays as it is; the changed value is a new one."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

Change = Callable[[Any], Any]
"""Takes an array, returns another, or None where it is not one to change."""


def alter(value: Any, change: Change) -> Any:
    """Return ``value`` with the first array that ``change`` takes changed; local.

    Arrays are looked for in tuples, lists and dicts; of a Chainer link the first parameter and
    its gradient are changed. Where nothing is to be changed, ``value`` itself is returned.
    """
    changed = _altered(value, change)
    return value if changed is None else changed


def _altered(value: Any, change: Change) -> Any:
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return change(value)
    if isinstance(value, (tuple, list)):
        for i, item in enumerate(value):
            changed = _altered(item, change)
            if changed is not None:
                return type(value)([*value[:i], changed, *value[i + 1 :]])
        return None
    if isinstance(value, dict):
        for key, item in value.items():
            changed = _altered(item, change)
            if changed is not None:
                return {**value, key: changed}
        return None
    chainer = sys.modules.get("chainer")
    if chainer is not None and isinstance(value, chainer.Link):
        return _altered_link(value, change)
    return None


def _altered_link(link: Any, change: Change) -> Any:
    copy = link.copy(mode="copy")
    for name, param in sorted(copy.namedparams()):
        array = None if param.array is None else change(param.array)
        if array is None:
            continue
        grad = None if param.grad is None else change(param.grad)
        original = dict(link.namedparams())[name]
        if array.shape == original.shape and array.dtype == original.dtype:
            # In the link itself, where what comes of it has to arrive: a mean, for one.
            if grad is not None:
                original.grad = grad
            else:
                original.array[...] = array
            return link
        param.cleargrad()
        param.array = array
        if grad is not None:
            param.grad = grad
        return copy
    return None
