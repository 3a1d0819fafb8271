"""What is called of Chainer on a device: every function, link, optimizer, hook and distribution.

A call takes a source of arrays `a` and returns variables. ``a.x(2, 3)`` is a variable of floats in
(0, 1) whose gradient is asked for, ``a.f(2, 3)`` such an array, ``a.i(9, 2, 3)`` one of ints below 9.
"""

from __future__ import annotations

import io
import itertools
import tempfile

import chainer
import chainer.distributions as D
import chainer.function_hooks
import chainer.functions as F
import chainer.link_hooks
import chainer.links as L
import numpy as np


def lstm_weights(a, kind, layers, directions):
    """Weights and biases of the n_step_* functions: of 3 inputs and 4 units."""
    gates = {"lstm": 8, "gru": 6, "rnn": 2}[kind]
    ws, bs = [], []
    for layer in range(layers):
        for _ in range(directions):
            width = 3 if layer == 0 else 4 * directions
            ws.append([a.x(4, width if g < gates // 2 else 4) for g in range(gates)])
            bs.append([a.x(4) for _ in range(gates)])
    return ws, bs


def n_step(kind, directions):
    function = getattr(F, "n_step_" + ("bi" if directions == 2 else "") + kind)

    def call(a):
        ws, bs = lstm_weights(a, kind, 2, directions)
        states = [a.x(2 * directions, 2, 4) for _ in range(2 if kind == "lstm" else 1)]
        *last, ys = function(2, 0.5, *states, ws, bs, [a.x(2, 3), a.x(1, 3)])
        return [*last, *ys]

    return call


def unary(name, *shape):
    return lambda a: getattr(F, name)(a.x(*(shape or (2, 3))))


def binary(name):
    return lambda a: getattr(F, name)(a.x(2, 3), a.x(2, 3))


def crf(a):
    return F.crf1d(a.x(3, 3), [a.x(2, 3), a.x(1, 3)], [a.i(3, 2), a.i(3, 1)])


def roi(name, **options):
    def call(a):
        rois = a.array(np.array([[0, 0, 5, 5], [1, 1, 4, 4]], a.dtype))
        return getattr(F, name)(
            a.x(1, 2, 6, 6), rois, a.array(np.zeros(2, np.int32)), 2, 1.0, **options
        )

    return call


def pooling(name, **options):
    dims = int(name[-2]) if name[-2].isdigit() else 2
    return lambda a: getattr(F, name)(a.x(1, 2, *(4,) * dims), 2, **options)


def sparse(a, transposed=False):
    dense = np.array([[[0, 1, 2], [3, 0, 0]]] * 2, a.dtype)
    matrix = chainer.utils.to_coo(a.array(dense), requires_grad=True)
    return F.sparse_matmul(matrix, a.x(2, 3, 2))


def sampler(a):
    y = F.spatial_transformer_sampler(a.x(1, 2, 4, 4), a.x(1, 2, 3, 3))
    return y


def discriminative(a):
    loss = F.discriminative_margin_based_clustering_loss
    return list(loss(a.x(3, 3, 4, 4), a.i(3, 3, 4, 4), 0.5, 1.5, 3))


def negative_sampling(a):
    def sample(shape):
        return a.i(5, *shape)

    return F.negative_sampling(a.x(3, 4), a.i(5, 3), a.x(5, 4), sample, 2)


def upsampling(a):
    y, indexes = F.max_pooling_2d(a.x(1, 2, 4, 4), 2, return_indices=True)
    return F.upsampling_2d(y, indexes, 2, 2, outsize=(4, 4))


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

FUNCTIONS = {
    **{
        name: unary(name)
        for name in (
            "absolute arccos arcsin arctan arctanh argmax argmin ceil cos cosh crelu cumprod cumsum "
            "digamma elu erf erfc erfcinv erfcx erfinv exp expm1 fix flatten flipud fliplr floor "
            "gaussian_of_itself hard_sigmoid identity leaky_relu lgamma log log10 log1p log2 "
            "log_ndtr log_softmax logsumexp max mean min ndtr ndtri normalize prod relu relu6 rsqrt "
            "rrelu selu sigmoid sign sin sinh softmax softplus sqrt square squeeze sum tan tanh "
            "transpose average batch_l2_norm_squared dropout zoneout_of_itself copy_of_itself"
        ).split()
        if not name.endswith("_of_itself")
    },
    **{
        name: binary(name)
        for name in (
            "absolute_error add arctan2 fmod maximum minimum mean_absolute_error gaussian "
            "mean_squared_error squared_difference squared_error gaussian_kl_divergence "
            "cross_covariance bernoulli_nll matmul_transposed zoneout simplified"
        ).split()
        if name not in ("matmul_transposed", "simplified")
    },
    "accuracy": lambda a: F.accuracy(a.f(4, 3), a.i(3, 4)),
    "accuracy ignoring": lambda a: F.accuracy(a.f(4, 3), a.i(3, 4), ignore_label=0),
    "argmax_crf1d": lambda a: F.argmax_crf1d(a.x(3, 3), [a.x(2, 3), a.x(1, 3)])[0],
    "as_strided": lambda a: F.as_strided(a.x(4, 4), (2, 2), (4, 1)),
    "average weighted": lambda a: F.average(a.x(2, 3), axis=1, weights=a.x(3)),
    **{f"average_pooling_{n}d": pooling(f"average_pooling_{n}d") for n in (1, 2, 3)},
    "average_pooling_nd": lambda a: F.average_pooling_nd(a.x(1, 2, 4, 4), 2, pad_value=None, pad=1),
    "batch_det": unary("batch_det", 2, 3, 3),
    "batch_inv": unary("batch_inv", 2, 3, 3),
    "batch_matmul": lambda a: F.batch_matmul(a.x(2, 3, 4), a.x(2, 4, 5)),
    "batch_normalization": lambda a: F.batch_normalization(a.x(4, 3, 2, 2), a.x(3), a.x(3)),
    "batch_renormalization": lambda a: F.batch_renormalization(
        a.x(4, 3), a.x(3), a.x(3), 1.5, 0.5, running_mean=a.f(3), running_var=a.f(3)
    ),
    "bias": lambda a: F.bias(a.x(2, 3), a.x(3)),
    "bilinear": lambda a: F.bilinear(a.x(2, 3), a.x(2, 4), a.x(3, 4, 5), a.x(3, 5), a.x(4, 5), a.x(5)),
    "binary_accuracy": lambda a: F.binary_accuracy(a.f(2, 3), a.i(2, 2, 3)),
    "black_out": lambda a: F.black_out(a.x(3, 4), a.i(5, 3), a.x(5, 4), a.i(5, 3, 2)),
    "broadcast": lambda a: list(F.broadcast(a.x(2, 1), a.x(3))),
    "broadcast_to": lambda a: F.broadcast_to(a.x(2, 1), (2, 3)),
    "cast": lambda a: F.cast(a.x(2, 3), np.float64),
    "cholesky": lambda a: F.cholesky(a.x(3, 3) + 3 * a.array(np.eye(3, dtype=a.dtype))),
    "classification_summary": lambda a: list(F.classification_summary(a.f(4, 3), a.i(3, 4), 3)),
    "clip": lambda a: F.clip(a.x(2, 3), 0.2, 0.8),
    "clipped_relu": lambda a: F.clipped_relu(a.x(2, 3), 0.5),
    "concat": lambda a: F.concat([a.x(2, 3), a.x(2, 1)]),
    "connectionist_temporal_classification": lambda a: F.connectionist_temporal_classification(
        [a.x(2, 4) for _ in range(5)], a.i(3, 2, 2) + 1, 0
    ),
    "contrastive": lambda a: F.contrastive(a.x(3, 4), a.x(3, 4), a.i(2, 3)),
    "convolution_1d": lambda a: F.convolution_1d(a.x(1, 2, 5), a.x(3, 2, 3), a.x(3)),
    "convolution_2d": lambda a: F.convolution_2d(a.x(1, 2, 5, 5), a.x(3, 2, 3, 3), a.x(3), pad=1),
    "convolution_2d grouped": lambda a: F.convolution_2d(
        a.x(1, 4, 5, 5), a.x(4, 2, 3, 3), a.x(4), groups=2, stride=2
    ),
    "convolution_3d": lambda a: F.convolution_3d(a.x(1, 2, 4, 4, 4), a.x(3, 2, 3, 3, 3), a.x(3)),
    "convolution_nd": lambda a: F.convolution_nd(a.x(1, 2, 5, 5), a.x(3, 2, 3, 3), a.x(3), pad=1),
    "copy": lambda a: F.copy(a.x(2, 3), -1),
    "crf1d": crf,
    "deconvolution_1d": lambda a: F.deconvolution_1d(a.x(1, 2, 5), a.x(2, 3, 3), a.x(3)),
    "deconvolution_2d": lambda a: F.deconvolution_2d(a.x(1, 2, 5, 5), a.x(2, 3, 3, 3), a.x(3)),
    "deconvolution_3d": lambda a: F.deconvolution_3d(a.x(1, 2, 3, 3, 3), a.x(2, 3, 3, 3, 3), a.x(3)),
    "deconvolution_nd": lambda a: F.deconvolution_nd(a.x(1, 2, 5, 5), a.x(2, 3, 3, 3), a.x(3)),
    "decorrelated_batch_normalization": lambda a: F.decorrelated_batch_normalization(
        a.x(4, 4), groups=2
    ),
    "decov": lambda a: F.decov(a.x(4, 3)),
    "deformable_convolution_2d_sampler": lambda a: F.deformable_convolution_2d_sampler(
        a.x(1, 2, 4, 4), a.x(1, 18, 2, 2), a.x(3, 2, 3, 3), a.x(3)
    ),
    "depth2space": lambda a: F.depth2space(a.x(1, 8, 2, 2), 2),
    "depthwise_convolution_2d": lambda a: F.depthwise_convolution_2d(
        a.x(1, 2, 5, 5), a.x(2, 2, 3, 3), a.x(4)
    ),
    "det": unary("det", 3, 3),
    "diagonal": unary("diagonal", 3, 3),
    "dilated_convolution_2d": lambda a: F.dilated_convolution_2d(
        a.x(1, 2, 7, 7), a.x(3, 2, 3, 3), a.x(3), dilate=2
    ),
    "discriminative_margin_based_clustering_loss": discriminative,
    "dstack": lambda a: F.dstack([a.x(2, 3), a.x(2, 3)]),
    "einsum": lambda a: F.einsum("ij,jk->ik", a.x(2, 3), a.x(3, 4)),
    "einsum diagonal": lambda a: F.einsum("ii->i", a.x(3, 3)),
    "embed_id": lambda a: F.embed_id(a.i(5, 2, 3), a.x(5, 4), ignore_label=0),
    "embed_id all": lambda a: F.embed_id(a.i(5, 2, 3), a.x(5, 4)),
    "expand_dims": lambda a: F.expand_dims(a.x(2, 3), 0),
    "f1_score": lambda a: list(F.f1_score(a.f(4, 3), a.i(3, 4), 3)),
    "fft": lambda a: list(F.fft((a.x(2, 4), a.x(2, 4)))),
    "fixed_batch_normalization": lambda a: F.fixed_batch_normalization(
        a.x(4, 3), a.x(3), a.x(3), a.x(3), a.x(3)
    ),
    "fixed_batch_renormalization": lambda a: F.fixed_batch_renormalization(
        a.x(4, 3), a.x(3), a.x(3), a.f(3), a.f(3)
    ),
    "fixed_decorrelated_batch_normalization": lambda a: F.fixed_decorrelated_batch_normalization(
        a.x(4, 4), a.f(2, 2), a.f(2, 2, 2), groups=2
    ),
    "flip": lambda a: F.flip(a.x(2, 3), 1),
    "forget": lambda a: F.forget(F.relu, a.x(2, 3)),
    "gaussian_nll": lambda a: F.gaussian_nll(a.x(2, 3), a.x(2, 3), a.x(2, 3)),
    "get_item": lambda a: a.x(3, 4)[1:, 2],
    "get_item by array": lambda a: a.x(3, 4)[a.i(3, 5)],
    "group_normalization": lambda a: F.group_normalization(a.x(2, 4, 3, 3), 2, a.x(4), a.x(4)),
    "gumbel_softmax": unary("gumbel_softmax"),
    "hinge": lambda a: F.hinge(a.x(4, 3), a.i(3, 4)),
    "hinge L2": lambda a: F.hinge(a.x(4, 3), a.i(3, 4), "L2"),
    "hstack": lambda a: F.hstack([a.x(2, 3), a.x(2, 1)]),
    "huber_loss": lambda a: F.huber_loss(a.x(2, 3), a.x(2, 3), 0.5),
    "ifft": lambda a: list(F.ifft((a.x(2, 4), a.x(2, 4)))),
    "im2col": lambda a: F.im2col(a.x(1, 2, 5, 5), 3),
    "inv": unary("inv", 3, 3),
    "layer_normalization": lambda a: F.layer_normalization(a.x(2, 3), a.x(3), a.x(3)),
    "linear": lambda a: F.linear(a.x(2, 3), a.x(4, 3), a.x(4)),
    "linear_interpolate": lambda a: F.linear_interpolate(a.x(2, 3), a.x(2, 3), a.x(2, 3)),
    "local_convolution_2d": lambda a: F.local_convolution_2d(
        a.x(1, 2, 4, 4), a.x(3, 2, 2, 2, 3, 3), a.x(3, 2, 2)
    ),
    "local_response_normalization": unary("local_response_normalization", 1, 6, 2, 2),
    "lstm": lambda a: list(F.lstm(a.x(2, 3), a.x(2, 12))),
    "matmul": lambda a: F.matmul(a.x(2, 3), a.x(3, 4)),
    "matmul batched": lambda a: F.matmul(a.x(5, 2, 3), a.x(5, 4, 3), transb=True),
    **{f"max_pooling_{n}d": pooling(f"max_pooling_{n}d") for n in (1, 2, 3)},
    "max_pooling_nd": lambda a: F.max_pooling_nd(a.x(1, 2, 4, 4), 2, pad=1),
    "max along an axis": lambda a: F.max(a.x(2, 3), axis=1, keepdims=True),
    "maxout": lambda a: F.maxout(a.x(2, 6), 2),
    "mean along axes": lambda a: F.mean(a.x(2, 3, 4), axis=(0, 2)),
    "moveaxis": lambda a: F.moveaxis(a.x(2, 3, 4), 0, 2),
    **{
        f"n_step_{'bi' if d == 2 else ''}{kind}": n_step(kind, d)
        for kind, d in itertools.product(("gru", "lstm", "rnn"), (1, 2))
    },
    "negative_sampling": negative_sampling,
    "pad": lambda a: F.pad(a.x(2, 3), 1, "constant"),
    "pad with a value": lambda a: F.pad(a.x(2, 3), ((1, 0), (0, 2)), "constant", constant_values=2),
    "pad_sequence": lambda a: F.pad_sequence([a.x(2, 3), a.x(4, 3)], padding=1),
    "permutate": lambda a: F.permutate(a.x(3, 2), a.array(np.array([1, 2, 0], "i"))),
    "permutate inversely": lambda a: F.permutate(
        a.x(3, 2), a.array(np.array([1, 2, 0], "i")), inv=True
    ),
    "polygamma": lambda a: F.polygamma(a.i(3, 2, 3) + 1, a.x(2, 3)),
    "precision": lambda a: list(F.precision(a.f(4, 3), a.i(3, 4), 3)),
    "prelu": lambda a: F.prelu(a.x(2, 3), a.x(3)),
    "prod along an axis": lambda a: F.prod(a.x(2, 3), axis=1),
    "r2_score": lambda a: F.r2_score(a.f(4), a.f(4)),
    "recall": lambda a: list(F.recall(a.f(4, 3), a.i(3, 4), 3)),
    "repeat": lambda a: F.repeat(a.x(2, 3), 2, axis=1),
    "reshape": lambda a: F.reshape(a.x(2, 3), (3, 2)),
    "resize_images": lambda a: F.resize_images(a.x(1, 2, 3, 3), (5, 5)),
    "resize_images to the nearest": lambda a: F.resize_images(
        a.x(1, 2, 3, 3), (5, 5), mode="nearest", align_corners=False
    ),
    "roi_average_align_2d": roi("roi_average_align_2d"),
    "roi_average_pooling_2d": roi("roi_average_pooling_2d"),
    "roi_max_align_2d": roi("roi_max_align_2d"),
    "roi_max_pooling_2d": roi("roi_max_pooling_2d"),
    "roi_pooling_2d": lambda a: F.roi_pooling_2d(
        a.x(1, 2, 6, 6), a.array(np.array([[0, 0, 0, 5, 5]], a.dtype)), 2, 2, 1.0
    ),
    "rollaxis": lambda a: F.rollaxis(a.x(2, 3, 4), 2),
    "scale": lambda a: F.scale(a.x(2, 3), a.x(3)),
    "scatter_add": lambda a: F.scatter_add(a.x(3, 4), a.i(3, 2), a.x(2, 4)),
    "select_item": lambda a: F.select_item(a.x(4, 3), a.i(3, 4)),
    "separate": lambda a: list(F.separate(a.x(2, 3))),
    "shift": lambda a: F.shift(a.x(1, 9, 4, 4)),
    "sigmoid_cross_entropy": lambda a: F.sigmoid_cross_entropy(a.x(2, 3), a.i(2, 2, 3)),
    "sigmoid_cross_entropy unreduced": lambda a: F.sigmoid_cross_entropy(
        a.x(2, 3), a.i(2, 2, 3), normalize=False, reduce="no"
    ),
    "simplified_dropconnect": lambda a: F.simplified_dropconnect(a.x(2, 3), a.x(4, 3), a.x(4)),
    "slstm": lambda a: list(F.slstm(a.x(2, 3), a.x(2, 3), a.x(2, 12), a.x(2, 12))),
    "softmax_cross_entropy": lambda a: F.softmax_cross_entropy(a.x(4, 3), a.i(3, 4)),
    "softmax_cross_entropy weighted": lambda a: F.softmax_cross_entropy(
        a.x(4, 3), a.i(3, 4), class_weight=a.f(3), reduce="no"
    ),
    "softmax_cross_entropy twice differentiable": lambda a: F.softmax_cross_entropy(
        a.x(4, 3), a.i(3, 4), enable_double_backprop=True
    ),
    "softmax_cross_entropy of soft targets": lambda a: F.softmax_cross_entropy(
        a.x(4, 3), a.f(4, 3)
    ),
    "space2depth": lambda a: F.space2depth(a.x(1, 2, 4, 4), 2),
    "sparse_matmul": sparse,
    "spatial_pyramid_pooling_2d": lambda a: F.spatial_pyramid_pooling_2d(a.x(1, 2, 4, 4), 2, "max"),
    "spatial_transformer_grid": lambda a: F.spatial_transformer_grid(a.x(1, 2, 3), (3, 3)),
    "spatial_transformer_sampler": sampler,
    "split_axis": lambda a: list(F.split_axis(a.x(2, 4), 2, 1)),
    "stack": lambda a: F.stack([a.x(2, 3), a.x(2, 3)]),
    "sum along an axis": lambda a: F.sum(a.x(2, 3), axis=0),
    "sum_to": lambda a: F.sum_to(a.x(2, 3), (1, 3)),
    "swapaxes": lambda a: F.swapaxes(a.x(2, 3), 0, 1),
    "swish": lambda a: F.swish(a.x(2, 3), a.x(3)),
    "tensordot": lambda a: F.tensordot(a.x(2, 3), a.x(3, 4), 1),
    "tile": lambda a: F.tile(a.x(2, 3), (2, 2)),
    "transpose_sequence": lambda a: list(F.transpose_sequence([a.x(3, 2), a.x(1, 2)])),
    "tree_lstm": lambda a: list(F.tree_lstm(a.x(2, 3), a.x(2, 3), a.x(2, 15))),
    "triplet": lambda a: F.triplet(a.x(2, 3), a.x(2, 3), a.x(2, 3)),
    **{f"unpooling_{n}d": pooling(f"unpooling_{n}d") for n in (1, 2, 3)},
    "unpooling_nd": lambda a: F.unpooling_nd(a.x(1, 2, 3, 3), 2),
    "upsampling_2d": upsampling,
    "vstack": lambda a: F.vstack([a.x(2, 3), a.x(1, 3)]),
    "where": lambda a: F.where(a.i(2, 2, 3).astype(bool), a.x(2, 3), a.x(2, 3)),
    "zeta": lambda a: F.zeta(a.f(2, 3) + 2, a.x(2, 3)),
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
    "quotient": lambda a: a.x(2, 3) / a.x(2, 3),
    "power": lambda a: a.x(2, 3) ** a.x(2, 3),
    "negation": lambda a: -a.x(2, 3),
    "abs": lambda a: abs(a.x(2, 3)),
}


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


LINKS = {
    "BatchNormalization": link(L.BatchNormalization, one(4, 3, 2, 2), 3),
    "BatchRenormalization": link(L.BatchRenormalization, one(4, 3), 3),
    "Bias": link(L.Bias, one(2, 3), 1, (3,)),
    "Bilinear": link(L.Bilinear, lambda l, a: l(a.x(2, 3), a.x(2, 4)), 3, 4, 5),
    "BinaryHierarchicalSoftmax": link(
        L.BinaryHierarchicalSoftmax, lambda l, a: l(a.x(2, 3), a.i(3, 2)), 3, ((0, 1), 2)
    ),
    "BlackOut": link(L.BlackOut, lambda l, a: l(a.x(3, 4), a.i(5, 3)), 4, [3, 2, 1, 2, 3], 2),
    "CRF1d": link(L.CRF1d, lambda l, a: l([a.x(3, 3), a.x(2, 3)], [a.i(3, 3), a.i(3, 2)]), 3),
    "ChildSumTreeLSTM": link(L.ChildSumTreeLSTM, tree, 3, 4),
    "Classifier": link(lambda: L.Classifier(L.Linear(3, 4)), lambda l, a: l(a.x(2, 3), a.i(4, 2))),
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
    "EmbedID": link(L.EmbedID, lambda l, a: l(a.i(5, 2, 3)), 5, 4),
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
        L.NegativeSampling, lambda l, a: l(a.x(3, 4), a.i(5, 3)), 4, [3, 2, 1, 2, 3], 2
    ),
    "PReLU": link(L.PReLU, one(2, 3), (3,)),
    "Parameter": link(L.Parameter, lambda l, a: l(), np.ones((2, 3), np.float32)),
    "Scale": link(L.Scale, one(2, 3), 1, (3,)),
    "SimplifiedDropconnect": link(L.SimplifiedDropconnect, one(2, 3), 3, 4),
    "StatefulGRU": link(L.StatefulGRU, twice(2, 3), 3, 4),
    "StatefulPeepholeLSTM": link(L.StatefulPeepholeLSTM, twice(2, 3), 3, 4),
    "StatefulZoneoutLSTM": link(L.StatefulZoneoutLSTM, twice(2, 3), 3, 4),
    "StatelessGRU": link(L.StatelessGRU, lambda l, a: l(a.x(2, 4), a.x(2, 3)), 3, 4),
    "StatelessLSTM": link(L.StatelessLSTM, lambda l, a: l(a.x(2, 4), a.x(2, 4), a.x(2, 3)), 3, 4),
    "StatelessMGU": link(L.StatelessMGU, lambda l, a: l(a.x(2, 4), a.x(2, 3)), 3, 4),
    "Swish": link(L.Swish, one(2, 3), (3,)),
    "spectral_normalization": link(
        lambda: L.Linear(3, 4).add_hook(chainer.link_hooks.SpectralNormalization()), one(2, 3)
    ),
    "weight_standardization": link(
        lambda: L.Convolution2D(2, 3, 3).add_hook(chainer.link_hooks.WeightStandardization()),
        one(1, 2, 5, 5),
    ),
    "timer": link(lambda: L.Linear(3, 4), lambda l, a: timed(l, a)),
}


def timed(made, a):
    with chainer.link_hooks.TimerHook() as links, chainer.function_hooks.TimerHook() as functions:
        y = made(a.x(2, 3))
    assert links.total_time() >= 0
    assert functions.total_time() >= 0
    return y


def optimized(make, *hooks):
    """Update a link twice; return its parameters and all of their states."""

    def run(a):
        made = a.send(L.Linear(3, 2))
        optimizer = make().setup(made)
        for hook in hooks:
            optimizer.add_hook(hook())
        for _ in range(2):
            optimizer.update(lambda: F.sum(made(a.f(2, 3))))
        states = [p.update_rule.state or {} for p in made.params()]
        return [
            *made.params(),
            *(p.grad for p in made.params()),
            *(value for state in states for _, value in sorted(state.items()) if hasattr(value, "dtype")),
        ]

    return run


def wide(optimizer, name):
    """The optimizer with a numpy.float64 learning rate, as numpy.logspace yields them."""

    def make():
        made = optimizer()
        value = getattr(made, name)
        setattr(made, name, np.float64(value))
        return made

    return make


def mixed():
    made = chainer.optimizers.Adam()
    made.use_fp32_update()
    return made


O = chainer.optimizers
ADAMS = ("Adam", "AdamW", "AMSGrad", "AMSBound", "AdaBound")
RULES = [getattr(O, name) for name in dir(O) if isinstance(getattr(O, name), type)]
HOOKS = chainer.optimizer_hooks
OPTIMIZERS = {
    **{rule.__name__: optimized(rule) for rule in RULES},
    **{
        f"{rule.__name__} of a float64 rate": optimized(
            wide(rule, "alpha" if rule.__name__ in ADAMS else "lr")
        )
        for rule in RULES
        if rule is not O.AdaDelta
    },
    "float32 update": optimized(mixed),
    "GradientClipping": optimized(O.SGD, lambda: HOOKS.GradientClipping(1.0)),
    "GradientHardClipping": optimized(O.SGD, lambda: HOOKS.GradientHardClipping(-1, 1)),
    "GradientLARS": optimized(O.SGD, HOOKS.GradientLARS),
    "GradientNoise": optimized(O.SGD, lambda: HOOKS.GradientNoise(0.3)),
    "Lasso": optimized(O.SGD, lambda: HOOKS.Lasso(0.1)),
    "WeightDecay": optimized(O.SGD, lambda: HOOKS.WeightDecay(0.1)),
    "WeightDecay of a float64 rate": optimized(O.SGD, lambda: HOOKS.WeightDecay(np.float64(0.1))),
}


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
        scale_tril=lambda a: chainer.Variable(a.array(np.tile(np.eye(3, dtype=a.dtype), (2, 1, 1)))),
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


def on_device(call):
    """Do on CuPy what NumPy has no part in."""

    def run(a):
        if a.xp is not np:
            call(a)
        return []

    return run


def profiled(hook):
    def run(a):
        with hook():
            F.sum(F.relu(F.linear(a.x(2, 3), a.x(4, 3)))).backward()

    return on_device(run)


def gathered(a):
    from chainer.training.updaters import multiprocess_parallel_updater as updater

    model = a.send(L.Linear(3, 2))
    model.cleargrads()
    F.sum(model(a.f(2, 3))).backward()
    grads, values = updater.gather_grads(model), updater.gather_params(model)
    updater.scatter_grads(model, grads)
    updater.scatter_params(model, values)


def packed(a):
    from chainermn.communicators import _memory_utility

    for kernel in ("pack", "unpack"):
        getattr(_memory_utility, f"_cupy_batched_{kernel}_params")().compile()


def numerically(a):
    from chainer import gradient_check

    x, gy = a.f(2, 3), a.f(2, 3)
    return list(gradient_check.numerical_grad(lambda: (x * x,), (x,), (gy,)))


def saved(a):
    first, second = a.send(L.BatchNormalization(3)), a.send(L.BatchNormalization(3))
    file = io.BytesIO()
    chainer.serializers.save_npz(file, first)
    file.seek(0)
    chainer.serializers.load_npz(file, second)
    return [*second.params(), second.avg_mean]


def batched(a):
    examples = [(np.arange(n + 1, dtype=a.dtype), np.int32(n)) for n in range(3)]
    return list(chainer.dataset.concat_examples(examples, a.device, padding=(0, None)))


def combined(a):
    model = a.send(L.Linear(3, 2))
    other = model.copy(mode="copy")
    for link in (model, other):
        link.cleargrads()
        F.sum(link(a.f(2, 3))).backward()
    model.addgrads(other)
    model.copyparams(other)
    moved = model.copy().to_device("@numpy").to_device(a.device)
    return [*moved.params(), *(p.grad for p in model.params())]


def trained(a):
    model = a.send(L.Classifier(L.Linear(3, 2)))
    optimizer = chainer.optimizers.MomentumSGD().setup(model)
    examples = [(np.full(3, n, a.dtype), np.int32(n % 2)) for n in range(4)]

    def batches(**options):
        return chainer.iterators.SerialIterator(examples, 2, **options)

    extensions = chainer.training.extensions
    with tempfile.TemporaryDirectory() as folder:
        updater = chainer.training.StandardUpdater(batches(), optimizer, device=a.device)
        trainer = chainer.training.Trainer(updater, (2, "epoch"), out=folder)
        evaluated = batches(repeat=False, shuffle=False)
        trainer.extend(extensions.Evaluator(evaluated, model, device=a.device))
        trainer.extend(extensions.ParameterStatistics(model, {"mean": lambda x: x.mean()}))
        trainer.extend(extensions.snapshot())
        trainer.extend(log := extensions.LogReport())
        trainer.run()
    assert len(log.log) == 2
    return list(model.params())


OTHERS = {
    "CUDAProfileHook": profiled(chainer.function_hooks.CUDAProfileHook),
    "CupyMemoryProfileHook": profiled(chainer.function_hooks.CupyMemoryProfileHook),
    "MultiprocessParallelUpdater": on_device(gathered),
    "chainermn's packing": on_device(packed),
    "concat_examples": batched,
    "copies of links": combined,
    "gradient_check": numerically,
    "print_runtime_info": on_device(lambda a: chainer.print_runtime_info(io.StringIO())),
    "serializers": saved,
    "training": trained,
}

ALL = {
    **FUNCTIONS,
    **{f"L.{name}": call for name, call in LINKS.items()},
    **{f"optimizer {name}": call for name, call in OPTIMIZERS.items()},
    **{f"D.{name}": call for name, call in DISTRIBUTIONS.items()},
    **{f"initializer {name}": call for name, call in INITIALIZERS.items()},
    **OTHERS,
}
