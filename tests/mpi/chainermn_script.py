"""A training script as users of ChainerMN have them: it has never heard of nbmn."""

import argparse

import chainer
import chainer.functions as F
import chainer.links as L
import chainermn
import chainermn.functions as mnF
import numpy as np
from chainer import training
from chainer.training import extensions
from chainermn.links import MultiNodeBatchNormalization


class Net(chainer.Chain):
    def __init__(self, comm):
        super(Net, self).__init__()  # noqa: UP008 - as it was written then
        with self.init_scope():
            self.l1 = L.Linear(None, 16)
            self.bn = MultiNodeBatchNormalization(16, comm)
            self.l2 = L.Linear(None, 2)

    def __call__(self, x):
        return self.l2(F.relu(self.bn(self.l1(x))))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--communicator", default="naive")
    parser.add_argument("--epoch", "-e", type=int, default=5)
    parser.add_argument("--out", "-o", default="result")
    parser.add_argument("--fail-on", type=int)
    args = parser.parse_args()

    chainermn.global_except_hook.add_hook()
    comm = chainermn.create_communicator(args.communicator)
    assert isinstance(comm, chainermn.CommunicatorBase)

    if comm.rank == 0:
        rng = np.random.RandomState(0)
        x = rng.uniform(-1, 1, (400, 2)).astype(np.float32)
        train = chainer.datasets.TupleDataset(x, (x[:, 0] > x[:, 1]).astype(np.int32))
        train, test = chainer.datasets.split_dataset(train, 300)
    else:
        train, test = None, None
    train = chainermn.scatter_dataset(train, comm, shuffle=True, seed=1)
    test = chainermn.scatter_dataset(test, comm)
    train_iter = chainer.iterators.SerialIterator(train, 10)
    test_iter = chainer.iterators.SerialIterator(test, 10, repeat=False, shuffle=False)

    model = L.Classifier(Net(comm))
    optimizer = chainermn.create_multi_node_optimizer(chainer.optimizers.Adam(0.01), comm)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(1e-4))

    updater = training.StandardUpdater(train_iter, optimizer)
    trainer = training.Trainer(updater, (args.epoch, "epoch"), out=args.out)
    evaluator = extensions.Evaluator(test_iter, model)
    trainer.extend(chainermn.create_multi_node_evaluator(evaluator, comm))
    trainer.extend(chainermn.extensions.ObservationAggregator(comm, "main/accuracy"))
    if comm.rank == 0:
        trainer.extend(extensions.LogReport())

    @training.make_extension(trigger=(1, "epoch"))
    def fail(trainer):
        if comm.rank == args.fail_on:
            raise RuntimeError("this rank fails")

    trainer.extend(fail)
    trainer.run()

    total = mnF.allgather(comm, chainer.Variable(np.full(1, comm.rank, np.float32)))
    print(f"rank {comm.rank} of {comm.size}: {sum(float(t.array[0]) for t in total):g}")


if __name__ == "__main__":
    main()
