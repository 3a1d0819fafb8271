"""What a rank has for itself, besides what it has in common with others: random numbers, iterators.

Everything is an array under a name, as in the files that Chainer writes.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from chainer.serializers import npz

RANDOM = "nbmn.random"
"""Name of a text (JSON) with the states of all generators of random numbers."""

EXAMPLES = "nbmn.examples/"
"""What comes before an iterator's name in the name of its number of examples."""

Arrays = dict[str, np.ndarray]


def iterators_of(target: Any) -> Mapping[str, Any]:
    """Return the iterators of a trainer; none of anything else."""
    return getattr(getattr(target, "updater", None), "_iterators", {})


def capture_random(target: Any) -> np.ndarray:
    """Return the states of Python's, NumPy's and CuPy's generators and those of the iterators.

    CuPy's has no state to be read: it is seeded anew, with a number that it draws itself.
    """
    own = {name: _own_generator(iterator) for name, iterator in iterators_of(target).items()}
    state = {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "cupy": _reseed_cupy(),
        "iterators": {name: _state(own) for name, own in own.items() if own is not None},
    }
    return np.asarray(json.dumps(state, default=lambda array: array.tolist()))


def restore_random(target: Any, text: np.ndarray) -> None:
    """Set all generators to the states that :func:`capture_random` returned."""
    state = json.loads(str(text))
    version, words, gauss = state["python"]
    random.setstate((version, tuple(words), gauss))
    np.random.set_state(state["numpy"])
    if state["cupy"] is not None and (cupy := _cupy()) is not None:
        cupy.random.seed(state["cupy"])
    iterators = iterators_of(target)
    for name, saved in state["iterators"].items():
        own = _own_generator(iterators.get(name))
        if own is not None:
            _set_state(own, saved)


def capture_own(target: Any) -> Arrays:
    """Return what of a trainer's state differs from rank to rank, under the trainer's names.

    Empty if the target is no trainer.
    """
    iterators = iterators_of(target)
    if not iterators:
        return {}
    serializer = npz.DictionarySerializer()
    for name, iterator in iterators.items():
        iterator.serialize(serializer["updater"][f"iterator:{name}"])
    examples = {
        f"{EXAMPLES}{name}": np.asarray(_examples(iterator)) for name, iterator in iterators.items()
    }
    return {**serializer.target, **examples, RANDOM: capture_random(target)}


def fit_iterators(arrays: Arrays, fresh: Arrays) -> Arrays:
    """Return arrays of a trainer whose iterators have other numbers of examples now.

    Iterators go on at the same fraction of the epoch, in the order they have now.

    Parameters
    ----------
    arrays
        What another rank saved.
    fresh
        What :func:`capture_own` returns of the present trainer, which has not begun.
    """
    fitted = dict(arrays)
    for key in [key for key in fresh if key.startswith(EXAMPLES) and key in arrays]:
        before, now = int(arrays[key]), int(fresh[key])
        prefix = f"updater/iterator:{key.removeprefix(EXAMPLES)}/"
        position, order = f"{prefix}current_position", f"{prefix}order"
        if before and before != now and position in arrays:
            fitted[position] = np.asarray(int(arrays[position]) * now // before)
            fitted.update({order: fresh[order]} if order in fresh else {})
    return fitted


def _examples(iterator: Any) -> int:
    """Return how many examples an epoch has; 0 if the iterator does not say."""
    # An order sampler may make an epoch longer or shorter than the dataset.
    size = getattr(iterator, "_epoch_size", None)
    return len(getattr(iterator, "dataset", ())) if size is None else size


def _own_generator(iterator: Any) -> Any:
    """Return the generator that an iterator shuffles with, unless it is NumPy's global one."""
    generator = getattr(getattr(iterator, "order_sampler", None), "_random", None)
    shared = np.random.random.__self__
    if generator is shared or not isinstance(
        generator, (np.random.RandomState, np.random.Generator)
    ):
        return None
    return generator


def _state(generator: Any) -> dict[str, Any]:
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    return generator.get_state(legacy=False)


def _set_state(generator: Any, state: dict[str, Any]) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _cupy() -> Any:
    """Return CuPy, if the program has imported it and there is a GPU."""
    cupy = sys.modules.get("cupy")
    return cupy if cupy is not None and cupy.cuda.is_available() else None


def _reseed_cupy() -> int | None:
    cupy = _cupy()
    if cupy is None:
        return None
    seed = int(cupy.random.randint(0, 2**31 - 1))
    cupy.random.seed(seed)
    return seed
