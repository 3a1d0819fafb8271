"""Start, stop and cell round trip, against a bare ``ipyparallel.Cluster(engines="mpi")``.

Each repetition is a fresh Python process; the two sides take turns. nbmn's start
ends when a first cell has used Chainer and the communicator on every rank, the
peer's when an empty one has run. Imports in the notebook's process are not counted on
either side.

    python benchmarks/start.py --ranks 2 8 --repeat 5
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROUND_TRIPS = 50
FIRST_CELL = "chainer.Variable(comm.allreduce(np.ones(1)))"
GOALS = {"start": 0.6, "stop": 0.5, "round trip": 1.2}


def measure_nbmn(ranks: int) -> dict[str, float]:
    from nbmn.cluster import Plan, start
    from nbmn.cluster.area import TerminalArea

    def cell(code: str) -> None:
        session.submit(code, range(ranks), "[1]", TerminalArea()).wait()

    began = time.perf_counter()
    session = start(Plan(ranks, share_gpus=True))
    cell(f"{FIRST_CELL};")
    started = time.perf_counter() - began
    trips = _trips(lambda: cell("a = 1"))
    began = time.perf_counter()
    session.stop()
    return {"start": started, "stop": time.perf_counter() - began, "round trip": trips}


def measure_ipyparallel(ranks: int) -> dict[str, float]:
    import ipyparallel

    began = time.perf_counter()
    cluster = ipyparallel.Cluster(n=ranks, engines="mpi", log_level=50)
    cluster.start_cluster_sync()
    client = cluster.connect_client_sync()
    client.wait_for_engines(ranks, interactive=False)
    view = client[:]
    view.execute("a = 1", block=True)
    started = time.perf_counter() - began
    trips = _trips(lambda: view.execute("a = 1", block=True))
    began = time.perf_counter()
    cluster.stop_cluster_sync()
    return {"start": started, "stop": time.perf_counter() - began, "round trip": trips}


def _trips(call) -> float:
    seconds = []
    for _ in range(ROUND_TRIPS):
        began = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


SIDES = {"nbmn": measure_nbmn, "ipyparallel": measure_ipyparallel}


def in_fresh_process(side: str, ranks: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--side", side, "--ranks", str(ranks)]
    # ipyparallel looks for mpiexec in PATH, where it is only in an activated environment.
    here = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    answer = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        text=True,
        timeout=300,
        check=True,
        env={**os.environ, "PATH": here},
    )
    return json.loads(answer.stdout.splitlines()[-1])


def compare(ranks: int, repeat: int) -> None:
    rows: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    for _ in range(repeat):
        for side in SIDES:
            rows[side].append(in_fresh_process(side, ranks))
    print(f"\n{ranks} ranks, median of {repeat} (lowest to highest)")
    print(f"{'':12}{'nbmn':>26}{'ipyparallel':>26}{'ratio':>8}{'goal':>8}")
    for quantity, goal in GOALS.items():
        mine, theirs = ([row[quantity] for row in rows[side]] for side in SIDES)
        ratio = statistics.median(mine) / statistics.median(theirs)
        print(f"{quantity:12}{_spread(mine):>26}{_spread(theirs):>26}{ratio:8.2f}{goal:8.1f}")


def _spread(seconds: list[float]) -> str:
    unit, scale = ("ms", 1e3) if max(seconds) < 0.2 else ("s", 1.0)
    low, middle, high = (
        scale * value for value in (min(seconds), statistics.median(seconds), max(seconds))
    )
    return f"{middle:.2f} {unit} ({low:.2f}–{high:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 8])
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        print(json.dumps(SIDES[args.side](args.ranks[0])))
        return
    for ranks in args.ranks:
        compare(ranks, args.repeat)


if __name__ == "__main__":
    main()
