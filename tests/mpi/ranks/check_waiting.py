import time

from rank_tools import need_ranks

SECONDS = 1.5


def check_waiting_ranks_leave_the_cores_to_the_slow_one(comm):
    need_ranks(comm, 2)
    comm.barrier()
    used = 0.0
    if comm.rank == 0:
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            sum(range(1000))
    else:
        begin = time.process_time()
        comm.barrier()
        used = time.process_time() - begin
    if comm.rank == 0:
        comm.barrier()
    # All the others together use a small part of one core.
    assert sum(comm.allgather_obj(used)) < 0.1 * SECONDS


def check_who_waits_sees_at_once_that_it_is_over(comm):
    need_ranks(comm, 2)
    late = []
    for number in range(20):
        comm.barrier()
        arrived = 0.0
        if comm.rank == 0:
            time.sleep(0.005 * (number % 5))
            arrived = time.monotonic()
        comm.barrier()
        late.append(time.monotonic() - comm.bcast_obj(arrived))  # one clock on one host
    # The next multiple of a sixteenth of the wait; half of them, for other work here.
    assert sorted(late)[len(late) // 2] < 0.02
