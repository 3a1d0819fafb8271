"""Faults put into cells: what the notebook says is the user's line, and the ranks live on."""

from __future__ import annotations

from notebook_kernel import Notebook


def test_a_fault_in_a_cell(two: Notebook) -> None:
    ran = two.run(
        """%%mn
from nbmn.debug import faults
fault = faults.raising(rank=1, at_step=3)
kept = comm.rank
for step in range(5):
    fault()
    comm.allreduce(np.ones(2))
"""
    )
    assert not ran.ok
    assert "rank 1 raised RuntimeError at cell" in ran.error
    assert "line 6: injected on rank 1 at step 3" in ran.error
    two.check("%%mn -o kept\nkept, fault.step")
    assert two.value("kept") == {0: (0, 3), 1: (1, 3)}


def test_a_fault_in_a_communicator(two: Notebook) -> None:
    two.check("%%mn\nfrom nbmn.debug import faults\nmine = comm.rank")
    ran = two.run(
        """%%mn
skips = faults.inject(comm, faults.skipping(rank=0), operation="allreduce")
total = skips.allreduce(np.ones(2))
"""
    )
    assert not ran.ok
    assert "line 3" in ran.error
    two.check("%mn comm.barrier()")
    two.check("%%mn -o values\nmine")
    assert two.value("values") == {0: 0, 1: 1}
