"""What ``nbmn.report`` costs: the same training loop with and without it, in one run.

Each rank does steps of a fixed amount of work, about 10 ms, with and without a report
per step; blocks of the two take turns, so that whatever else the machine does hits
both alike. What counts is the ratio of medians of block times, and the processor
time of the ranks' process (main thread and reporter thread together).

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
    cpu, wall = time.process_time(), time.perf_counter()
    for step in range(steps):
        for _ in range(count):
            a @ a
        if report:
            nbmn.report(loss=np.float32(1.0), accuracy=np.float32(0.5), samples=32)
    return time.process_time() - cpu, time.perf_counter() - wall


a, count = calibrate(0.01)
block(20, True)
comm.barrier()
rows = []
for _ in range(BLOCKS):
    rows.append((block(STEPS, False), block(STEPS, True)))
began = time.perf_counter()
for _ in range(2000):
    nbmn.report(loss=np.float32(1.0), accuracy=np.float32(0.5), samples=32)
call = (time.perf_counter() - began) / 2000
rows, call
'''


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--blocks", type=int, default=10, help="pairs of blocks")
    parser.add_argument("--steps", type=int, default=50, help="steps of about 10 ms per block")
    args = parser.parse_args()

    from nbmn.cluster import Plan, start
    from nbmn.cluster.area import TerminalArea

    session = start(Plan(args.ranks, share_gpus=True))
    received = []
    session.listener.subscribe(received.extend)
    code = CELL.replace("BLOCKS", str(args.blocks)).replace("STEPS", str(args.steps))
    try:
        run = session.submit(code, range(args.ranks), "[1]", TerminalArea(), keep=True)
        results = run.results()
    finally:
        session.stop()

    pairs = [pair for rows, _ in results.values() for pair in rows]
    calls = [call for _, call in results.values()]
    step_cpu = statistics.median(without[0] for without, _ in pairs) / args.steps
    cpu = statistics.median(reported[0] / without[0] for without, reported in pairs)
    wall = statistics.median(reported[1] / without[1] for without, reported in pairs)
    print(f"{args.ranks} ranks, {len(pairs)} pairs of blocks of {args.steps} steps")
    print(f"a step without report: {1e3 * step_cpu:.2f} ms of processor time")
    print(f"a call of report:      {1e6 * statistics.median(calls):.1f} µs")
    print(f"with / without report: {cpu:.4f} processor time, {wall:.4f} wall time (goal 1.01)")
    print(f"records received in the notebook: {len(received)}")


if __name__ == "__main__":
    main()
