"""A program: scatters a dataset of more than 2 GiB."""

import numpy as np

import nbmn

ROW = 2**20
ROWS = 2**11 + 7  # of 1 MiB


def main():
    comm = nbmn.create_communicator()
    rows = None
    if comm.rank == 0:
        rows = np.zeros((ROWS, ROW), np.uint8)
        rows[:, 0] = np.arange(ROWS) % 251
        rows[:, -1] = np.arange(ROWS) % 241
    mine = nbmn.scatter_dataset(rows, comm, force_equal_length=False)
    begin, end = nbmn.scatter_index(ROWS, comm, force_equal_length=False)
    assert len(mine) == end - begin
    assert all(mine[i][0] == (begin + i) % 251 for i in range(len(mine)))
    assert all(mine[i][-1] == (begin + i) % 241 for i in range(len(mine)))
    # In one object, which no message of MPI's could hold by its count of bytes.
    got = comm.bcast_obj(rows)
    assert got.shape == (ROWS, ROW)
    assert got[-1, -1] == (ROWS - 1) % 241
    comm.barrier()
    print(f"rank {comm.rank} has its part", flush=True)


if __name__ == "__main__":
    main()
