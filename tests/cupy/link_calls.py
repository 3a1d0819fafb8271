"""Calls of all of Chainer's links; what they take is told in chainer_calls."""

from __future__ import annotations

import chainer
import chainer.function_hooks
import chainer.link_hooks
import chainer.links as L
import numpy as np


def link(make, call, *options):
    """Make a link, have it initialised on the device, and call it."""

    def run(a):
        made = a.send(make(*options))
        outputs = call(made, a)
        a.asked.extend(p for p in made.params() if p.array is not None)
        return list(outputs) if isinstance(outputs, (tuple, list)) else outputs

    return run


def one(*shape):
    return lambda made, a: made(a.x(*shape))


def step_states(count):
    def call(made, a):
        *states, ys = made(*[None] * count, [a.x(3, 3), a.x(2, 3)])
        return [*states, *ys]

    return call


def twice(*shape):
    def call(made, a):
        made(a.x(*shape))
        return made(a.x(*shape))

    return call


def tree(made, a):
    return made(a.x(2, 4), a.x(2, 4), a.x(2, 4), a.x(2, 4), a.x(2, 3))


def timed(made, a):
    with chainer.link_hooks.TimerHook() as links, chainer.function_hooks.TimerHook() as functions:
        y = made(a.x(2, 3))
    assert links.total_time() >= 0
    assert functions.total_time() >= 0
    return y


LINKS = {
    "BatchNormalization": link(L.BatchNormalization, one(4, 3, 2, 2), 3),
    "BatchRenormalization": link(L.BatchRenormalization, one(4, 3), 3),
    "Bias": link(L.Bias, one(2, 3), 1, (3,)),
    "Bilinear": link(L.Bilinear, lambda made, a: made(a.x(2, 3), a.x(2, 4)), 3, 4, 5),
    "BinaryHierarchicalSoftmax": link(
        L.BinaryHierarchicalSoftmax, lambda made, a: made(a.x(2, 3), a.i(3, 2)), 3, ((0, 1), 2)
    ),
    "BlackOut": link(L.BlackOut, lambda made, a: made(a.x(3, 4), a.i(5, 3)), 4, [3, 2, 1, 2, 3], 2),
    "CRF1d": link(L.CRF1d, lambda made, a: made([a.x(3, 3), a.x(2, 3)], [a.i(3, 3), a.i(3, 2)]), 3),
    "ChildSumTreeLSTM": link(L.ChildSumTreeLSTM, tree, 3, 4),
    "Classifier": link(
        lambda: L.Classifier(L.Linear(3, 4)), lambda made, a: made(a.x(2, 3), a.i(4, 2))
    ),
    "Convolution1D": link(L.Convolution1D, one(1, 2, 5), 2, 3, 3),
    "Convolution2D": link(L.Convolution2D, one(1, 2, 5, 5), None, 3, 3),
    "Convolution3D": link(L.Convolution3D, one(1, 2, 4, 4, 4), 2, 3, 3),
    "Deconvolution1D": link(L.Deconvolution1D, one(1, 2, 5), 2, 3, 3),
    "Deconvolution2D": link(L.Deconvolution2D, one(1, 2, 5, 5), 2, 3, 3),
    "Deconvolution3D": link(L.Deconvolution3D, one(1, 2, 3, 3, 3), 2, 3, 3),
    "DecorrelatedBatchNormalization": link(L.DecorrelatedBatchNormalization, one(4, 4), 4, 2),
    "DeformableConvolution2D": link(L.DeformableConvolution2D, one(1, 2, 5, 5), 2, 3, 3),
    "DepthwiseConvolution2D": link(L.DepthwiseConvolution2D, one(1, 2, 5, 5), 2, 2, 3),
    "DilatedConvolution2D": link(L.DilatedConvolution2D, one(1, 2, 7, 7), 2, 3, 3),
    "EmbedID": link(L.EmbedID, lambda made, a: made(a.i(5, 2, 3)), 5, 4),
    "GroupNormalization": link(L.GroupNormalization, one(2, 4, 3, 3), 2),
    "Highway": link(L.Highway, one(2, 3), 3),
    "Inception": link(L.Inception, one(1, 2, 5, 5), 2, 1, 1, 2, 1, 2, 1),
    "InceptionBN": link(L.InceptionBN, one(1, 2, 5, 5), 2, 1, 1, 2, 1, 2, "max", 2),
    "LSTM": link(L.LSTM, twice(2, 3), 3, 4),
    "LayerNormalization": link(L.LayerNormalization, one(2, 3), 3),
    "Linear": link(L.Linear, one(2, 3), None, 4),
    "LocalConvolution2D": link(L.LocalConvolution2D, one(1, 2, 4, 4), 2, 3, 4, 3),
    "MLPConvolution2D": link(L.MLPConvolution2D, one(1, 2, 4, 4), 2, (3, 4), 3),
    "Maxout": link(L.Maxout, one(2, 3), 3, 4, 2),
    **{
        name: link(getattr(L, name), step_states(2 if "LSTM" in name else 1), 2, 3, 4, 0.5)
        for name in dir(L)
        if name.startswith("NStep")
    },
    "NaryTreeLSTM": link(L.NaryTreeLSTM, tree, 3, 4, 2),
    "NegativeSampling": link(
        L.NegativeSampling, lambda made, a: made(a.x(3, 4), a.i(5, 3)), 4, [3, 2, 1, 2, 3], 2
    ),
    "PReLU": link(L.PReLU, one(2, 3), (3,)),
    "Parameter": link(L.Parameter, lambda made, a: made(), np.ones((2, 3), np.float32)),
    "Scale": link(L.Scale, one(2, 3), 1, (3,)),
    "SimplifiedDropconnect": link(L.SimplifiedDropconnect, one(2, 3), 3, 4),
    "StatefulGRU": link(L.StatefulGRU, twice(2, 3), 3, 4),
    "StatefulPeepholeLSTM": link(L.StatefulPeepholeLSTM, twice(2, 3), 3, 4),
    "StatefulZoneoutLSTM": link(L.StatefulZoneoutLSTM, twice(2, 3), 3, 4),
    "StatelessGRU": link(L.StatelessGRU, lambda made, a: made(a.x(2, 4), a.x(2, 3)), 3, 4),
    "StatelessLSTM": link(
        L.StatelessLSTM, lambda made, a: made(a.x(2, 4), a.x(2, 4), a.x(2, 3)), 3, 4
    ),
    "StatelessMGU": link(L.StatelessMGU, lambda made, a: made(a.x(2, 4), a.x(2, 3)), 3, 4),
    "Swish": link(L.Swish, one(2, 3), (3,)),
    "spectral_normalization": link(
        lambda: L.Linear(3, 4).add_hook(chainer.link_hooks.SpectralNormalization()), one(2, 3)
    ),
    "weight_standardization": link(
        lambda: L.Convolution2D(2, 3, 3).add_hook(chainer.link_hooks.WeightStandardization()),
        one(1, 2, 5, 5),
    ),
    "timer": link(lambda: L.Linear(3, 4), timed),
}
