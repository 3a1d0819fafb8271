"""What ``%mn_diff model`` takes: 25 million float32 parameters, alike and different.

The ranks hash what they have at the same time; arrays that differ go from one rank to the
other. Next to each time stands what hashing alone takes in this process.

    python benchmarks/diff.py --ranks 2
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

MODEL = """
import chainer.links as L
def model_of(seed):
    normal = chainer.initializers.Normal(0.1, rng=np.random.RandomState(seed))
    layers = [L.Linear(500, 500, initialW=normal) for _ in range(100)]
    return chainer.Sequential(*layers)
alike = model_of(0)
one = alike.copy(mode="copy")
if comm.rank: one[50].W.array[3, 4] += 1
different = model_of(comm.rank)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    args = parser.parse_args()

    from nbmn.cluster import Plan, start
    from nbmn.cluster.area import TerminalArea
    from nbmn.cluster.differences import diff, show_comparison
    from nbmn.debug.fingerprint import fingerprint

    array = np.random.RandomState(0).rand(25_000_000).astype(np.float32)
    session = start(Plan(args.ranks, share_gpus=True))
    everyone = range(args.ranks)
    try:
        session.submit(MODEL, everyone, "[1]", TerminalArea()).wait()
        for name in ("alike", "one", "different"):
            took, hashing = [], []
            for _ in range(args.repeat):
                began = time.perf_counter()
                fingerprint(array)
                hashing.append(time.perf_counter() - began)
                began = time.perf_counter()
                bundle = show_comparison(name, diff(session, name, everyone))
                took.append(time.perf_counter() - began)
            print(
                f"{bundle.text.splitlines()[0]}: {statistics.median(took):.2f} s, at most "
                f"{max(took):.2f} s (goal 1 s); hashing alone {statistics.median(hashing):.2f} s"
            )
    finally:
        session.stop()


if __name__ == "__main__":
    main()
