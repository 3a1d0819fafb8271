"""Shows on a machine with a GPU what cannot be shown without one; takes less than 8 minutes.

python tests/gpu/check.py --collect FOLDER     where there is a network: gathers what to carry
python tests/gpu/check.py --wheels FOLDER      where there is a GPU

Needs on the latter CuPy, with NCCL and NVRTC, and pip; no network. Exit status: 0 if all passed, 1
if something failed or was not reached, 77 if there is no GPU to use, 2 for wrong usage.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import plan
import wheels
from runner import Outcome, Run

ROOT = Path(__file__).parents[2]
NO_GPU = 77
FACTS = plan.Check("facts", "facts", weight=60)
"""Said first: what machine this is."""


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    if options.collect:
        print(wheels.collect(options.collect))
        return 0
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="nbmn-gpu-") as folder:
        work = Path(folder)
        environment = {**os.environ, **settings(work)}
        run = Run(work, environment, begun + options.seconds)
        facts = run.one(FACTS, run.until)
        if facts.status == "skipped":
            print(f"no GPU: {facts.reason}")
            return NO_GPU
        if not options.wheels and importlib.util.find_spec("chainer") is None:
            print("Chainer is not installed here: name the folder with its wheel by --wheels")
            return 2
        if facts.status == "passed" and options.wheels:
            print(wheels.install(options.wheels, work / "site"), flush=True)
            run.environment.update(wheels.using(work / "site", run.environment))
        results = Results(facts, options.out, begun)
        if facts.status == "passed":
            for round_results in run.rounds(plan.chosen(options.only)):
                results.add(round_results)
        return results.conclude()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--collect", type=Path, metavar="FOLDER", help="gather wheels; needs no GPU"
    )
    parser.add_argument("--wheels", type=Path, metavar="FOLDER", help="where they are now")
    parser.add_argument("--out", type=Path, help="also write the results there, as JSON")
    parser.add_argument("--seconds", type=float, default=480, help="for all together")
    parser.add_argument("--only", nargs="+", metavar="NAME", help=", ".join(plan.names()))
    options = parser.parse_args(arguments)
    unknown = set(options.only or ()) - set(plan.names())
    if unknown:
        parser.error(f"no such check: {', '.join(sorted(unknown))}")
    if options.wheels and not list(options.wheels.glob("*.whl")):
        parser.error(f"there are no wheels in {options.wheels}")
    return options


def settings(work: Path) -> dict[str, str]:
    """What all checks run with."""
    tests = ROOT / "tests"
    paths = [ROOT, tests / "gpu", tests / "cupy", ROOT / "examples", os.environ.get("PYTHONPATH")]
    return {
        "PYTHONPATH": os.pathsep.join(str(path) for path in paths if path),
        "PYTHONUNBUFFERED": "1",
        "XDG_CACHE_HOME": str(work / "cache"),  # nothing known from an earlier run
        "OMP_NUM_THREADS": "2",
    }


class Results:
    """Prints what comes of the checks, and keeps the file up to date, whatever ends the run."""

    def __init__(self, facts: Outcome, out: Path | None, begun: float) -> None:
        self._facts = facts
        self._out = out
        self._begun = begun
        self._outcomes: dict[str, Outcome] = {}
        print(json.dumps(self._machine()), flush=True)
        self._write()

    def add(self, outcomes: Mapping[str, Outcome]) -> None:
        self._outcomes |= outcomes
        for name, outcome in outcomes.items():
            for figures in outcome.figures:
                print(f"  {name}: {json.dumps(figures, ensure_ascii=False)}")
            if outcome.status == "failed":
                print(outcome.tail)
            print(line(name, outcome), flush=True)
        self._write()

    def conclude(self) -> int:
        """Print a table, last, and return the exit status."""
        if self._facts.status != "passed":
            print(f"the GPU does not answer: {self._facts.reason}\n{self._facts.tail}")
        print("\n".join(["", *(line(*item) for item in self._outcomes.items())]))
        statuses = [self._facts.status, *(o.status for o in self._outcomes.values())]
        return 1 if "failed" in statuses else 0

    def _machine(self) -> dict:
        return dict(pair for figures in self._facts.figures for pair in figures.items())

    def _write(self) -> None:
        if self._out is None:
            return
        told = {
            "machine": self._machine(),
            "seconds": round(time.monotonic() - self._begun, 1),
            "checks": {name: asdict(outcome) for name, outcome in self._outcomes.items()},
        }
        self._out.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")


def line(name: str, outcome: Outcome) -> str:
    why = f": {outcome.reason}" if outcome.reason else ""
    return f"{outcome.status:8}{outcome.seconds:6.1f} s  {name}{why}"


if __name__ == "__main__":
    sys.exit(main())
