"""Calls of all of Chainer's functions; what they take is told in chainer_calls."""

from __future__ import annotations

import itertools

import chainer
import chainer.functions as F
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
    return F.spatial_transformer_sampler(a.x(1, 2, 4, 4), a.x(1, 2, 3, 3))


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


OF_ONE = (
    "absolute", "arccos", "arcsin", "arctan", "arctanh", "argmax", "argmin", "average",
    "batch_l2_norm_squared", "ceil", "cos", "cosh", "crelu", "cumprod", "cumsum", "digamma",
    "dropout", "elu", "erf", "erfc", "erfcinv", "erfcx", "erfinv", "exp", "expm1", "fix",
    "flatten", "fliplr", "flipud", "floor", "hard_sigmoid", "identity", "leaky_relu", "lgamma",
    "log", "log10", "log1p", "log2", "log_ndtr", "log_softmax", "logsumexp", "max", "mean",
    "min", "ndtr", "ndtri", "normalize", "prod", "relu", "relu6", "rrelu", "rsqrt", "selu",
    "sigmoid", "sign", "sin", "sinh", "softmax", "softplus", "sqrt", "square", "squeeze", "sum",
    "tan", "tanh", "transpose",
)  # fmt: skip
OF_TWO = (
    "absolute_error", "add", "arctan2", "bernoulli_nll", "cross_covariance", "fmod", "gaussian",
    "gaussian_kl_divergence", "maximum", "mean_absolute_error", "mean_squared_error", "minimum",
    "squared_difference", "squared_error", "zoneout",
)  # fmt: skip

FUNCTIONS = {
    **{name: unary(name) for name in OF_ONE},
    **{name: binary(name) for name in OF_TWO},
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
    "bilinear": lambda a: F.bilinear(
        a.x(2, 3), a.x(2, 4), a.x(3, 4, 5), a.x(3, 5), a.x(4, 5), a.x(5)
    ),
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
    "deconvolution_3d": lambda a: F.deconvolution_3d(
        a.x(1, 2, 3, 3, 3), a.x(2, 3, 3, 3, 3), a.x(3)
    ),
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
    "quotient": lambda a: a.x(2, 3) / a.x(2, 3),
    "power": lambda a: a.x(2, 3) ** a.x(2, 3),
    "negation": lambda a: -a.x(2, 3),
    "abs": lambda a: abs(a.x(2, 3)),
}
