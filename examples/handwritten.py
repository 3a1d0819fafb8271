"""Handwritten digits for the examples: 1,797 images of 8 by 8 pixels, part of scikit-learn."""

from __future__ import annotations

import numpy as np
from chainer.datasets import TupleDataset


def digits(flat: bool = True) -> tuple[TupleDataset, TupleDataset]:
    """Return 1,500 examples to train with and 297 to test with, the same on every call.

    Images are float32 from 0 to 1, of shape (64,) or (1, 8, 8); labels are int32.
    """
    from sklearn.datasets import load_digits  # takes seconds, which only the rank that reads spends

    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    if not flat:
        images = images.reshape(-1, 1, 8, 8)
    labels = labels.astype(np.int32)
    order = np.random.RandomState(0).permutation(len(labels))
    train, test = order[:1500], order[1500:]
    return TupleDataset(images[train], labels[train]), TupleDataset(images[test], labels[test])
