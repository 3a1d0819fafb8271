"""Calls of Chainer's distributions and initializers; what they take is told in chainer_calls."""

from __future__ import annotations

import chainer
import chainer.distributions as D
import numpy as np


def distribution(name, values=None, **parameters):
    """Ask a distribution for all it knows."""

    def run(a):
        made = getattr(D, name)(**{key: value(a) for key, value in parameters.items()})
        draws = made.sample(2)
        value = values(a) if values else draws
        known = [draws, made.log_prob(value)]
        for get in ("mean", "variance", "stddev", "entropy", "mode"):
            try:
                known.append(getattr(made, get))
            except NotImplementedError:
                known.append(None)
        for get in ("cdf", "icdf", "survival_function", "perplexity"):
            try:
                asked = getattr(made, get)
                known.append(asked(a.f(*value.shape)) if callable(asked) else asked)
            except NotImplementedError:
                known.append(None)
        return known

    return run


def shaped(*shape):
    return lambda a: a.x(*shape)


ROWS = shaped(2, 3)


def EVEN(a):
    return chainer.Variable(a.array(np.full((2, 4), 0.25, a.dtype)))


def UNIT(a):
    return chainer.Variable(a.array(np.tile(np.eye(3, dtype=a.dtype), (2, 1, 1))))


DISTRIBUTIONS = {
    "Bernoulli": distribution("Bernoulli", p=ROWS, values=lambda a: a.i(2, 2, 3).astype(a.dtype)),
    "Beta": distribution("Beta", a=ROWS, b=ROWS),
    "Categorical": distribution("Categorical", p=EVEN, values=lambda a: a.i(3, 2)),
    "Cauchy": distribution("Cauchy", loc=ROWS, scale=ROWS),
    "Chisquare": distribution("Chisquare", k=ROWS),
    "Dirichlet": distribution("Dirichlet", alpha=ROWS),
    "Exponential": distribution("Exponential", lam=ROWS),
    "Gamma": distribution("Gamma", k=ROWS, theta=ROWS),
    "Geometric": distribution("Geometric", p=ROWS, values=lambda a: a.i(5, 2, 3) + 1),
    "Gumbel": distribution("Gumbel", loc=ROWS, scale=ROWS),
    "Laplace": distribution("Laplace", loc=ROWS, scale=ROWS),
    "LogNormal": distribution("LogNormal", mu=ROWS, sigma=ROWS),
    "MultivariateNormal": distribution(
        "MultivariateNormal",
        loc=ROWS,
        scale_tril=UNIT,
    ),
    "Normal": distribution("Normal", loc=ROWS, scale=ROWS),
    "OneHotCategorical": distribution("OneHotCategorical", p=EVEN),
    "Pareto": distribution("Pareto", scale=ROWS, alpha=ROWS, values=lambda a: a.f(2, 3) + 1),
    "Poisson": distribution("Poisson", lam=ROWS, values=lambda a: a.i(5, 2, 3)),
    "Uniform": distribution("Uniform", low=lambda a: a.x(2, 3) - 1, high=lambda a: a.x(2, 3) + 1),
    **{
        f"divergence of {name}": lambda a, name=name, count=count: chainer.kl_divergence(
            getattr(D, name)(*[a.x(2, 3) for _ in range(count)]),
            getattr(D, name)(*[a.x(2, 3) for _ in range(count)]),
        )
        for name, count in {
            "Bernoulli": 1, "Beta": 2, "Categorical": 1, "Dirichlet": 1, "Exponential": 1,
            "Gamma": 2, "Geometric": 1, "Gumbel": 2, "Laplace": 2, "LogNormal": 2, "Normal": 2,
            "Pareto": 2, "Poisson": 1,
        }.items()
    },
}  # fmt: skip


def initialized(name, *shape):
    return lambda a: chainer.initializers.generate_array(
        getattr(chainer.initializers, name)(), shape, a.xp, a.dtype, a.device
    )


INITIALIZERS = {
    name: initialized(name, *(shape or (4, 4)))
    for name, *shape in (
        ("GlorotNormal",), ("GlorotUniform",), ("HeNormal",), ("HeUniform",), ("Identity",),
        ("LeCunNormal",), ("LeCunUniform",), ("NaN",), ("Normal",), ("One",), ("Orthogonal",),
        ("Uniform",), ("Zero",), ("DownsamplingConvFilter", 2, 2, 4, 4),
        ("UpsamplingDeconvFilter", 2, 2, 4, 4),
    )
}  # fmt: skip
