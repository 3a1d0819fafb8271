"""A script that loads with worker processes next to MPI; prints what each rank makes of it."""

import json
import multiprocessing
import sys
from multiprocessing import forkserver

import chainer
import numpy as np

import nbmn


class Squares(chainer.dataset.DatasetMixin):
    def __len__(self):
        return 12

    def get_example(self, i):
        from mpi4py import MPI  # harmless in a worker

        worker = multiprocessing.parent_process() is not None
        return np.full(3, i * i, "f"), i, bool(MPI.Is_initialized()), worker


def main(method):
    comm = nbmn.create_communicator()
    iterator = chainer.iterators.MultiprocessIterator(Squares(), 4, n_processes=1, shared_mem=64)
    if method == "fork":
        try:
            iterator.next()
        except RuntimeError as error:
            refused = "set_start_method" in str(error)
        else:
            refused = False
        print(json.dumps({"refused": comm.allgather_obj(refused)}), flush=True)
        return
    iterator = nbmn.iterators.create_synchronized_iterator(iterator, comm)
    orders = []
    for _ in range(9):  # three epochs
        batch = iterator.next()
        comm.barrier()
        assert all(
            (square == i * i).all() and square.dtype == np.float32 for square, i, *_ in batch
        )
        assert all(worker and not initialized for *_, initialized, worker in batch)
        orders += [i for _, i, *_ in batch]
    everyone = comm.allgather_obj(orders)
    assert all(order == everyone[0] for order in everyone), everyone
    epochs = [orders[begin : begin + 12] for begin in (0, 12, 24)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs), epochs
    assert epochs[0] != epochs[1] != epochs[2]
    iterator.finalize()
    print(json.dumps({"done": comm.rank}), flush=True)


if __name__ == "__main__":
    multiprocessing.set_start_method(sys.argv[1])
    if sys.argv[1] == "forkserver":
        forkserver.ensure_running()  # before MPI
    main(sys.argv[1])
