"""Models in parts on several ranks, against the same in one process."""

import copy

import chainer
import numpy as np
from chainer import functions as F
from chainer import links as L
from rank_tools import need_ranks

from nbmn import functions, links

# ---- parts of a model on several ranks


def linear(n_in, n_out, seed):
    rng = np.random.RandomState(seed)
    return L.Linear(n_in, n_out, initialW=chainer.initializers.LeCunNormal(rng=rng))


class Tanh(chainer.Chain):
    def __init__(self, n_in, n_out, seed):
        super().__init__(l=linear(n_in, n_out, seed))

    def forward(self, *xs):
        return F.tanh(self.l(F.concat(xs)))


class Both(Tanh):
    """Gives a tuple."""

    def forward(self, x):
        return super().forward(x), x * 2


class Joins(Tanh):
    """Takes a tuple, and one more."""

    def forward(self, pair, other):
        return super().forward(*pair, other)


class Embeds(chainer.Chain):
    """The gradient of its input is none."""

    def __init__(self, n_in, n_out):
        super().__init__(
            e=L.EmbedID(n_in, n_out, initialW=np.arange(n_in * n_out).reshape(n_in, n_out) / 10)
        )

    def forward(self, x):
        return self.e(x)


def trained(model, x, forward=None):
    """Train some steps; return the losses, where there is an output."""
    optimizer = chainer.optimizers.MomentumSGD(0.1).setup(model)
    losses = []
    for step in range(3):
        y = (forward or model)(*x(step))
        model.cleargrads()
        if y.size:
            y = F.mean(y * y)
            losses.append(float(y.array))
        y.backward()
        optimizer.update()
    return losses


def agree_with_one_process(comm, parts, single, x, outputs_at):
    """Compare: ``parts[rank]`` are links made alike on all ranks, with their ends."""
    model = links.MultiNodeChainList(comm)
    for link, rank_in, rank_out in parts.get(comm.rank, []):
        model.add_link(copy.deepcopy(link), rank_in, rank_out)
    whole = chainer.ChainList(*[link for some in parts.values() for link, *_ in some])
    right = trained(whole, x, single)
    if comm.rank in parts:
        losses = trained(model, x)
        if comm.rank == outputs_at:
            np.testing.assert_allclose(losses, right, rtol=1e-5)
        for part, (link, *_) in zip(model, parts[comm.rank], strict=True):
            for (name, p), (_, q) in zip(
                sorted(part.namedparams()), sorted(link.namedparams()), strict=True
            ):
                np.testing.assert_allclose(p.array, q.array, atol=1e-5, err_msg=name)


def floats(step):
    return (np.random.default_rng(step).standard_normal((6, 4)).astype("f"),)


def check_a_chain_of_ranks(comm):
    need_ranks(comm, 2)
    a, b = Tanh(4, 5, 0), Tanh(5, 2, 1)
    parts = {0: [(a, None, 1)], 1: [(b, 0, None)]}
    agree_with_one_process(comm, parts, lambda x: b(a(x)), floats, 1)


def check_there_and_back(comm):
    need_ranks(comm, 2)
    a, b, c = Tanh(4, 5, 0), Tanh(5, 3, 1), Tanh(3, 2, 2)
    parts = {0: [(a, None, 1), (c, 1, None)], 1: [(b, 0, 0)]}
    agree_with_one_process(comm, parts, lambda x: c(b(a(x))), floats, 0)


def check_many_crossings(comm):
    need_ranks(comm, 2)
    a, b, c, d, e = (Tanh(4, 4, n) for n in range(5))
    parts = {0: [(a, None, 1), (c, 1, 1), (e, 1, None)], 1: [(b, 0, 0), (d, 0, 0)]}
    agree_with_one_process(comm, parts, lambda x: e(d(c(b(a(x))))), floats, 0)


def check_branches(comm):
    """One rank gives to two others, which give to a third part."""
    need_ranks(comm, 3)
    a, b, c, d = Tanh(4, 4, 0), Tanh(4, 3, 1), Tanh(4, 2, 2), Tanh(5, 2, 3)
    parts = {0: [(a, None, [1, 2]), (d, [1, 2], None)], 1: [(b, 0, 0)], 2: [(c, 0, 0)]}

    def single(x):
        h = a(x)
        return d(b(h), c(h))

    agree_with_one_process(comm, parts, single, floats, 0)


def check_a_rank_gives_to_itself(comm):
    need_ranks(comm, 2)
    a, b, c = Tanh(4, 4, 0), Tanh(4, 3, 1), Tanh(7, 2, 2)
    parts = {0: [(a, None, [0, 1]), (c, [0, 1], None)], 1: [(b, 0, 0)]}

    def single(x):
        h = a(x)
        return c(h, b(h))

    agree_with_one_process(comm, parts, single, floats, 0)
    a, b = Tanh(4, 4, 0), Tanh(4, 3, 1)
    agree_with_one_process(comm, {0: [(a, None, 0), (b, 0, None)]}, lambda x: b(a(x)), floats, 0)


def check_tuples(comm):
    need_ranks(comm, 2)
    a, b, c = Both(4, 3, 0), Tanh(4, 2, 1), Joins(9, 2, 2)
    parts = {0: [(a, None, 1), (b, None, 1)], 1: [(c, [0, 0], None)]}
    agree_with_one_process(comm, parts, lambda x: c(a(x), b(x)), floats, 1)


def check_an_output_in_between(comm):
    """What comes after the output is sent to another rank, whose loss is not this one's."""
    need_ranks(comm, 2)
    a, b, c = Tanh(4, 4, 0), Tanh(4, 3, 1), Tanh(3, 2, 2)
    model = links.MultiNodeChainList(comm)
    x = floats(0)[0]
    for link in (a, b, c):
        link.cleargrads()
    ones, twos = copy.deepcopy([a, b, c]), [a, b, c]
    if comm.rank == 0:
        model.add_link(a, None, None)
        model.add_link(b, None, 1)
    elif comm.rank == 1:
        model.add_link(c, 0, None)
    if comm.rank < 2:
        y = model(x)
        F.sum(y).backward()
    F.sum(ones[0](x)).backward()
    F.sum(ones[2](ones[1](x))).backward()
    for rank, numbers in ((0, (0, 1)), (1, (2,))):
        for n in numbers if comm.rank == rank else ():
            np.testing.assert_allclose(twos[n].l.W.grad, ones[n].l.W.grad, atol=1e-5)


def check_inputs_without_gradients(comm):
    """A part that reads indices, between two that exchange messages."""
    need_ranks(comm, 2)
    a, b, c = Embeds(5, 3), Embeds(5, 2), Tanh(5, 2, 4)
    parts = {0: [(a, None, 1), (b, None, 1)], 1: [(c, [0, 0], None)]}

    def ids(step):
        return (np.random.default_rng(step).integers(0, 5, 6).astype("i"),)

    agree_with_one_process(comm, parts, lambda x: c(a(x), b(x)), ids, 1)


class Stops(Tanh):
    """No gradient passes it."""

    def forward(self, *xs):
        return super().forward(*[x.array for x in xs])


def check_parts_without_gradients(comm):
    """The ranks before them wait for gradients all the same."""
    need_ranks(comm, 2)
    a, b, c = Tanh(4, 4, 0), Stops(4, 3, 1), Stops(3, 2, 2)
    parts = {0: [(a, None, 1), (c, 1, None)], 1: [(b, 0, 0)]}
    agree_with_one_process(comm, parts, lambda x: c(b(a(x))), floats, 0)


# ---- recurrent networks


RNNS = ("NStepLSTM", "NStepBiLSTM", "NStepGRU", "NStepBiGRU", "NStepRNNTanh", "NStepBiRNNReLU")


def check_rnn_over_two_ranks(comm):
    """The second continues where the first ends, as one RNN of both sequences would."""
    need_ranks(comm, 2)
    for kind in RNNS:
        first, second = (getattr(L, kind)(2, 3, 4, 0.0) for _ in range(2))
        for n, link in enumerate((first, second)):
            for name, p in sorted(link.namedparams()):
                seed = [n, sum(map(ord, name))]
                p.array[...] = np.random.default_rng(seed).uniform(-0.5, 0.5, p.shape)
        rng = np.random.default_rng(9)
        xs, zs = (
            [rng.standard_normal((n, 3)).astype("f") for n in lengths]
            for lengths in ((4, 2, 3), (1, 3, 2))
        )
        ones = copy.deepcopy([first, second])
        optimizer = [chainer.optimizers.SGD(0.1).setup(link) for link in (*ones, first, second)]
        for step in range(2):
            for link in (*ones, first, second):
                link.cleargrads()
            *cells, ys = ones[0](*[None] * first.n_cells, xs)
            *_, ws = ones[1](*cells, zs)
            right = sum(F.sum(w * w) for w in ws) + sum(F.sum(y) for y in ys)
            right.backward()
            if comm.rank == 0:
                rnn = links.create_multi_node_n_step_rnn(first, comm, rank_out=1)
                *_, ys, delegate = rnn(xs)
                (loss,) = functions.pseudo_connect(delegate, sum(F.sum(y) for y in ys))
                loss.backward()
            elif comm.rank == 1:
                rnn = links.create_multi_node_n_step_rnn(second, comm, rank_in=0)
                *_, ws, delegate = rnn(zs)
                assert delegate is None
                sum(F.sum(w * w) for w in ws).backward()
            for one in optimizer[:2]:
                one.update()
            if comm.rank < 2:
                optimizer[2 + comm.rank].update()
                mine = (first, second)[comm.rank]
                for (name, p), (_, q) in zip(
                    sorted(mine.namedparams()), sorted(ones[comm.rank].namedparams()), strict=True
                ):
                    np.testing.assert_allclose(
                        p.array, q.array, atol=1e-5, err_msg=f"{kind}{name} step {step}"
                    )
