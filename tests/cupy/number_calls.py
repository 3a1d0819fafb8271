"""Calls with numbers beside arrays: since NEP 50 their kind matters. What calls take is told in
chainer_calls.
"""

from __future__ import annotations

import chainer.functions as F
import numpy as np

HALF = np.float64(0.5)
WIDE = {
    "batch_normalization": lambda a: F.batch_normalization(
        a.x(4, 3), a.x(3), a.x(3), eps=HALF, decay=HALF, running_mean=a.f(3), running_var=a.f(3)
    ),
    "batch_renormalization": lambda a: F.batch_renormalization(
        a.x(4, 3), a.x(3), a.x(3), HALF + 1, HALF, HALF, running_mean=a.f(3), running_var=a.f(3)
    ),
    "clip": lambda a: F.clip(a.x(2, 3), HALF, HALF + 1),
    "clipped_relu": lambda a: F.clipped_relu(a.x(2, 3), HALF),
    "contrastive": lambda a: F.contrastive(a.x(3, 4), a.x(3, 4), a.i(2, 3), HALF),
    "decorrelated_batch_normalization": lambda a: F.decorrelated_batch_normalization(
        a.x(4, 4), groups=2, eps=HALF, decay=HALF
    ),
    "discriminative_margin_based_clustering_loss": lambda a: list(
        F.discriminative_margin_based_clustering_loss(
            a.x(3, 3, 4, 4), a.i(3, 3, 4, 4), HALF, HALF, 3, 1, HALF, HALF, HALF
        )
    ),
    "dropout": lambda a: F.dropout(a.x(2, 3), HALF),
    "elu": lambda a: F.elu(a.x(2, 3), HALF),
    "group_normalization": lambda a: F.group_normalization(
        a.x(2, 4, 3, 3), 2, a.x(4), a.x(4), HALF
    ),
    "fixed_batch_normalization": lambda a: F.fixed_batch_normalization(
        a.x(4, 3), a.x(3), a.x(3), a.x(3), a.x(3), HALF
    ),
    "gumbel_softmax": lambda a: F.gumbel_softmax(a.x(2, 3), HALF),
    "huber_loss": lambda a: F.huber_loss(a.x(2, 3), a.x(2, 3), HALF),
    "layer_normalization": lambda a: F.layer_normalization(a.x(2, 3), a.x(3), a.x(3), HALF),
    "leaky_relu": lambda a: F.leaky_relu(a.x(2, 3), HALF),
    "local_response_normalization": lambda a: F.local_response_normalization(
        a.x(1, 6, 2, 2), k=HALF, alpha=HALF, beta=HALF
    ),
    "normalize": lambda a: F.normalize(a.x(2, 3), HALF),
    "rrelu": lambda a: F.rrelu(a.x(2, 3), HALF / 2, HALF),
    "selu": lambda a: F.selu(a.x(2, 3), HALF, HALF),
    "simplified_dropconnect": lambda a: F.simplified_dropconnect(
        a.x(2, 3), a.x(4, 3), a.x(4), HALF
    ),
    "softplus": lambda a: F.softplus(a.x(2, 3), HALF),
    "triplet": lambda a: F.triplet(a.x(2, 3), a.x(2, 3), a.x(2, 3), HALF),
    "zoneout": lambda a: F.zoneout(a.x(2, 3), a.x(2, 3), HALF),
}


NUMBERS = {
    # Arithmetic with what is no array: since NEP 50 the kind of number matters.
    **{
        f"{symbol} of {kind}": lambda a, operate=operate, number=number: operate(a.x(2, 3), number)
        for kind, number in {
            "int": 2,
            "float": 2.5,
            "float32": np.float32(2.5),
            "float64": np.float64(2.5),
        }.items()
        for symbol, operate in {
            "sum": lambda x, n: n + x,
            "difference": lambda x, n: n - x,
            "product": lambda x, n: n * x,
            "quotient": lambda x, n: n / x,
            "quotient by": lambda x, n: x / n,
            "power": lambda x, n: x**n,
            "power to": lambda x, n: n**x,
            "floor": lambda x, n: x // n,
        }.items()
    },
    **{f"{name} of a numpy.float64": call for name, call in WIDE.items()},
}
