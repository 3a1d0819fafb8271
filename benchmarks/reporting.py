"""What ``nbmn.report`` costs: the same training loop with and without it, in one run.

Each rank does steps of a fixed amount of work, about 10 ms, with and without a report
per step; blocks of the two take turns, so that whatever else the machine does hits
both alike. Printed are the median ratios of the two, in wall time and in processor
time of the ranks' process (all threads), and, since these are noisier than what is to be
measured, the processor time that the calls themselves and the other threads take.

    python benchmarks/reporting.py --ranks 8
"""

from __future__ import annotations

import argparse
import statistics

CELL = '''
import time

import numpy as np


def calibrate(target):
    """A count of multiplications that takes about `target` seconds of processor time."""
    a = np.random.RandomState(0).rand(64, 64)
    count = 64
    while True:
        began = time.process_time()
        for _ in range(count):
            a @ a
        spent = time.process_time() - began
        if spent > target:
            return a, max(1, round(count * target / spent))
        count *= 2


def block(steps, report):
    """Processor and wall time, processor time of the other threads and in the calls, in seconds."""
    loss, accuracy, calls = np.float32(1.0), np.float32(0.5), 0.0
    cpu, wall, main = time.process_time(), time.perf_counter(), time.thread_time()
    for step in range(steps):
        for _ in range(count):
            a @ a
        began = time.thread_time()
        if report:
            nbmn.report(loss=loss, accuracy=accuracy, samples=32)
        calls += time.thread_time() - began
    cpu, main = time.process_time() - cpu, time.thread_time() - main
    return cpu, time.perf_counter() - wall, cpu - main, calls


a, count = calibrate(0.01)
block(20, True)
comm.barrier()
rows = []
for _ in range(BLOCKS):
    rows.append((block(STEPS, False), block(STEPS, True)))
rows
'''


class Nowhere:
    """Shows nothing of what the ranks print."""

    def update(self, outputs: object, notice: str = "") -> None: ...
    def finish(self, outputs: object, status: str, *more: object) -> None: ...


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=10, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=50, help="steps of about 10 ms per block")
    args = parser.parse_args()

    from nbmn.cluster import Plan, start

    session = start(Plan(args.ranks, share_gpus=True))
    received = []
    session.listener.subscribe(received.extend)
    code = CELL.replace("BLOCKS", str(args.blocks)).replace("STEPS", str(args.steps))
    try:
        run = session.submit(code, range(args.ranks), "[1]", Nowhere(), keep=True)
        results = run.results()
    finally:
        session.stop()

    pairs = [pair for rows in results.values() for pair in rows]
    step = statistics.median(without[0] for without, _ in pairs) / args.steps
    cpu, wall = (
        statistics.median(reported[i] / without[i] for without, reported in pairs) for i in (0, 1)
    )
    threads, calls = (
        statistics.median(reported[i] - without[i] for without, reported in pairs) / args.steps
        for i in (2, 3)
    )
    print(f"{args.ranks} ranks, {len(pairs)} pairs of blocks of {args.steps} steps")
    print(f"a step without report: {1e3 * step:.2f} ms of processor time")
    print(f"with / without report: {cpu:.4f} processor time, {wall:.4f} wall time (goal 1.01)")
    print(f"a call: {1e6 * calls:.0f} µs; other threads, per step: {1e6 * threads:.0f} µs")
    print(f"together {100 * (calls + threads) / step:.2f} % of a step's processor time (goal 1 %)")
    print(f"records received in the notebook: {len(received)}")


if __name__ == "__main__":
    main()
