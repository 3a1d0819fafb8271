import copy
import pickle

import chainer
import numpy as np
import pytest
from chainer import functions as F
from chainer import links as L
from chainer.link_hooks import TimerHook

from nbmn import functions, links
from nbmn.functions.graph import once


def test_pseudo_connect_passes_on_and_reaches_what_was_before():
    order = []
    first = Noted(order, "first").apply((chainer.Variable(np.ones(3, np.float32)),))[0]
    x = chainer.Variable(np.arange(2, dtype=np.float32))
    a, b = functions.pseudo_connect(first, x, np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(a.array, [0, 1])
    assert b.shape == (2, 2)
    (a,) = Noted(order, "last").apply((a,))
    F.sum(a * a).backward()  # without b
    assert order == ["last", "first"]
    np.testing.assert_array_equal(x.grad, [0, 2])


def test_pseudo_connect_to_nothing():
    x = chainer.Variable(np.ones(2, np.float32))
    assert functions.pseudo_connect(None, x) == (x,)


class Noted(chainer.FunctionNode):
    def __init__(self, order, name):
        super().__init__()
        self.order, self.name = order, name

    def forward(self, inputs):
        return inputs

    def backward(self, indexes, grads):
        self.order.append(self.name)
        return grads


def test_gradients_that_cannot_be_differentiated_say_so():
    (g,) = once("send to rank 1", (np.ones(2, np.float32),))
    with pytest.raises(RuntimeError, match="send to rank 1"):
        F.sum(g * g).backward()


class Comm:
    """What links need of a communicator before they are called."""

    name = "flat"
    rank = 0
    size = 2

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        raise TypeError("belongs to its process")


class Net(chainer.Chain):
    def __init__(self):
        super().__init__()
        with self.init_scope():
            self.conv = L.Convolution2D(3, 4, 3)
            self.bn = L.BatchNormalization(4, decay=0.5, eps=1e-3)
            self.again = self.bn
            self.inner = chainer.Sequential(
                L.BatchNormalization(4, use_gamma=False), F.relu, L.Linear(4, 2)
            )
            self.parts = chainer.ChainList(L.BatchNormalization(axis=(0, 1)))
            self.plain = L.LayerNormalization(4)
        self.in_order = [self.conv, self.bn, F.relu]  # where Chainer does not look


def test_create_mnbn_model_replaces_and_keeps_everything_else():
    net, comm = Net(), Comm()
    net.bn.avg_mean[...] = 7
    net.bn.gamma.array[...] = 3
    net.bn.gamma.update_rule = chainer.optimizers.SGD(0.25).create_update_rule()
    net.bn.add_hook(TimerHook())
    net.add_persistent("step", 5)
    made = links.create_mnbn_model(net, comm)
    kinds = {path: type(link).__name__ for path, link in made.namedlinks()}
    assert {path for path, kind in kinds.items() if kind.startswith("MultiNode")} == {
        "/bn",
        "/again",
        "/inner/0",
        "/parts/0",
    }
    assert made.again is made.bn
    assert made.in_order == [made.conv, made.bn, F.relu]
    assert made.inner[0] is next(made.inner.children())
    assert made.bn.comm is comm
    assert (made.bn.decay, made.bn.eps, made.bn.name) == (0.5, 1e-3, net.bn.name)
    assert made.bn.gamma.update_rule.hyperparam.lr == 0.25
    assert list(made.bn.local_link_hooks) == ["TimerHook"]
    assert made.step == 5
    assert made.inner[0].gamma is None
    assert made.parts[0].axis == (0, 1)
    assert made.inner[1] is F.relu
    # Nothing is shared with the model it was made from.
    np.testing.assert_array_equal(made.bn.avg_mean, np.full(4, 7))
    made.bn.avg_mean[...] = 0
    made.bn.gamma.array[...] = 0
    assert type(net.bn) is L.BatchNormalization
    assert net.bn.avg_mean[0] == 7
    assert net.bn.gamma.array[0] == 3
    names = [sorted(name for name, _ in model.namedparams()) for model in (net, made)]
    assert names[0] == names[1]


def test_create_mnbn_model_of_a_single_link():
    made = links.create_mnbn_model(L.BatchNormalization(3), Comm())
    assert type(made) is links.MultiNodeBatchNormalization
    assert type(links.create_mnbn_model(L.Linear(2, 3), Comm())) is L.Linear
    # The same once more, and what computes something else, stay.
    assert type(links.create_mnbn_model(made, Comm())) is links.MultiNodeBatchNormalization
    with pytest.warns(UserWarning, match="BatchRenormalization"):
        left = links.create_mnbn_model(L.BatchRenormalization(3), Comm())
    assert type(left) is L.BatchRenormalization


def test_links_are_copied_with_their_communicator_and_pickled_without():
    comm = Comm()
    link = links.MultiNodeBatchNormalization(3, comm)
    link.gamma.array[...] = 2
    chain = links.MultiNodeChainList(comm)
    chain.add_link(link)
    rnn = links.create_multi_node_n_step_rnn(L.NStepGRU(1, 2, 2, 0.0), comm)
    for made in (copy.copy(link), copy.deepcopy(link), link.copy("init")):
        assert made.comm is comm
    assert copy.deepcopy(chain)[0].comm is copy.deepcopy(rnn).communicator is comm
    again = pickle.loads(pickle.dumps(link))
    np.testing.assert_array_equal(again.gamma.array, [2, 2, 2])
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with chainer.using_config("train", False):
        np.testing.assert_array_equal(again(x).array, link(x).array)
    with pytest.raises(RuntimeError, match="give the link one"):
        again(x)
    again.comm = comm
    assert again.comm is comm
    for other in (chain, rnn):
        pickle.loads(pickle.dumps(other))


def test_snapshots_fit_chainers_own_batch_normalization():
    own, link = L.BatchNormalization(3), links.MultiNodeBatchNormalization(3, Comm())
    own.avg_mean[...], own.gamma.array[...], own.N = 5, 4, 9
    target = {}
    chainer.serializers.DictionarySerializer(target).save(own)
    chainer.serializers.NpzDeserializer(target).load(link)
    assert (link.avg_mean[0], link.gamma.array[0], link.N) == (5, 4, 9)


def test_arguments_that_cannot_be():
    comm = Comm()
    with pytest.raises(ValueError, match="'auto', 'mpi' or 'nccl'"):
        links.MultiNodeBatchNormalization(3, comm, communication_backend="gloo")
    with pytest.raises(ValueError, match="pure_nccl"):
        links.create_mnbn_model(L.Linear(2), comm, communication_backend="nccl")
    with pytest.raises(ValueError, match="not Linear"):
        links.create_multi_node_n_step_rnn(L.Linear(2), comm)
    chain = links.MultiNodeChainList(comm)
    chain.add_link(L.Linear(2), rank_in=np.int64(1), rank_out=None)
    for wrong in ({"rank_in": 2}, {"rank_out": []}, {"rank_out": [0, -1]}):
        with pytest.raises(ValueError, match="not among the 2 ranks"):
            chain.add_link(L.Linear(2), **{"rank_out": 0, **wrong})
    with pytest.raises(TypeError, match="must be a rank"):
        chain.add_link(L.Linear(2), rank_in="first", rank_out=1)
    with pytest.raises(ValueError, match="one output"):
        chain.add_link(L.Linear(2))
    assert len(chain) == 1


def test_parts_of_one_rank_must_fit_together():
    chain = links.MultiNodeChainList(Comm())
    chain.add_link(L.Linear(2, 2), rank_out=0)
    with pytest.raises(ValueError, match="no later one"):
        chain(np.ones((1, 2), np.float32))
    chain = links.MultiNodeChainList(Comm())
    chain.add_link(L.Linear(2, 2), rank_in=0)
    with pytest.raises(ValueError, match="no earlier one"):
        chain(np.ones((1, 2), np.float32))
