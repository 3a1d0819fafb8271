"""nbmn has every public name of ChainerMN's, and each takes the same calls."""

from __future__ import annotations

import importlib
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from original_surface import parameters, text

HERE = Path(__file__).parent
TABLE = HERE.parents[1] / "docs" / "chainermn.md"

OTHER_DEFAULTS = {
    # The fastest that works here, where ChainerMN's default needs NCCL.
    ("create_communicator", "communicator_name"): "'auto'",
    # None and ANY_TAG mean the same.
    ("comm.recv_obj", "tag"): "None",
}
KEYWORDS = {
    "create_communicator": ("allreduce_grad_dtype", "batched_copy"),
    "extensions.GenericMultiNodeEvaluator": ("progress_hook",),
    "extensions.MultiNodeEarlyStoppingTrigger": ("patients",),
}
"""What ChainerMN takes out of ``**kwargs``."""
COMMUNICATORS = (
    *("naive", "flat", "non_cuda_aware", "pure_nccl", "dummy"),
    *("hierarchical", "two_dimensional", "single_node"),  # of ChainerMN 1.x
)
RETURNED = {
    "comm": ("nbmn.communicators", "Communicator"),
    "checkpointer": ("nbmn.extensions.checkpointer", "MultiNodeCheckpointer"),
    "optimizer": ("nbmn.optimizers", "MultiNodeOptimizer"),
}
"""Classes whose objects are got from functions: only their methods are public."""
NOT_THERE = {"optimizer.is_changed"}
"""Parts of how ChainerMN does it, that no script calls."""


@pytest.fixture(scope="module")
def original():
    """ChainerMN's own surface, read in another process."""
    done = subprocess.run(
        [sys.executable, HERE / "original_surface.py"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def ours(dotted):
    """Look up what a dotted name of ChainerMN's is in nbmn."""
    head, *rest = dotted.removeprefix("chainermn.").split(".")
    if head in RETURNED:
        module, name = RETURNED[head]
        value = getattr(importlib.import_module(module), name)
    else:
        value = getattr(importlib.import_module("nbmn"), head)
    for name in rest:
        # Chainer's links are called through `forward`, which has the arguments.
        forward = name == "__call__" and hasattr(value, "forward")
        value = value.forward if forward else getattr(value, name)
    return value


def short(dotted):
    """Write a name as the table does."""
    return dotted.removeprefix("chainermn.")


def public(original):
    """Dotted names of everything a script may name."""
    return [
        f"{module}.{name}"
        for module, names in original["modules"].items()
        if module.count(".") < 2
        for name in names
    ]


def test_every_name_is_there(original):
    names = public(original)
    assert len(names) > 50
    missing = []
    for dotted in names:
        if dotted.startswith("chainermn.nccl."):
            assert dotted.rpartition(".")[2] in dir(ours("nccl"))  # whether CuPy is here or not
            continue
        try:
            ours(dotted)
        except (AttributeError, ImportError) as error:
            missing.append(f"{dotted}: {error}")
    assert not missing
    for dotted, shorter in original["same"].items():
        assert ours(dotted) is ours(shorter), dotted


def test_every_call_is_accepted(original):
    assert len(original["calls"]) > 80
    refused = []
    for dotted, theirs in original["calls"].items():
        if dotted in RETURNED or dotted in NOT_THERE or "CommunicatorBase" in dotted:
            continue  # the objects at hand are of a class of their own: see "comm"
        try:
            function = ours(dotted)
        except (AttributeError, ImportError) as error:
            refused.append(f"{dotted}: {error}")
            continue
        if theirs is None:
            if not isinstance(function, property):
                refused.append(f"{dotted}: not a property")
        else:
            refused += [f"{dotted}: {why}" for why in differences(dotted, function, theirs)]
    assert not refused, "\n".join(refused)


def differences(dotted, function, theirs):
    """Say why calls that ChainerMN's parameters take would not be taken, or be another call."""
    mine = list(inspect.signature(function).parameters.values())
    by_name = {p.name: p for p in mine}
    kinds = {p.kind for p in mine}
    for position, (name, kind, default) in enumerate(theirs):
        if kind.startswith("VAR_"):
            keywords = KEYWORDS.get(short(dotted), ())
            if getattr(inspect.Parameter, kind) not in kinds and not (
                keywords and set(keywords) <= set(by_name)
            ):
                yield f"takes no {'*' if kind == 'VAR_POSITIONAL' else '**'}{name}"
            continue
        if name not in by_name:
            yield f"takes no {name!r}"
            continue
        parameter = by_name[name]
        if kind == "POSITIONAL_OR_KEYWORD" and (
            parameter.kind is not parameter.POSITIONAL_OR_KEYWORD
            or mine.index(parameter) != position
        ):
            yield f"{name!r} is not its argument {position}"
        has = None if parameter.default is parameter.empty else text(parameter.default)
        wanted = OTHER_DEFAULTS.get((short(dotted), name), default)
        if default is not None and has != wanted:
            yield f"{name!r} is {has} by default, not {wanted}"
    more = set(by_name) - {name for name, *_ in theirs}
    for parameter in (by_name[name] for name in sorted(more)):
        if parameter.default is parameter.empty and not parameter.kind.name.startswith("VAR_"):
            yield f"requires {parameter.name!r}"


def test_a_function_of_other_arguments_is_told():
    def theirs(a, b=1, *, c=2, **kwargs): ...

    def fine(a, b=1, *, c=2, d=3, **kwargs): ...

    def swapped(b=1, a=None, *, c=2, **kwargs): ...

    def other(a, b=2, *, e, **kwargs): ...

    described = json.loads(json.dumps(parameters(theirs)))
    assert not list(differences("f", fine, described))
    assert list(differences("f", swapped, described)) == [
        "'a' is not its argument 0",
        "'b' is not its argument 1",
    ]
    assert list(differences("f", other, described)) == [
        "'b' is 2 by default, not 1",
        "takes no 'c'",
        "requires 'e'",
    ]


def rows():
    """The table's rows: name, the arguments it names, what it says."""
    for line in TABLE.read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == 3 and cells[0].startswith("`"):
            for name in re.findall(r"`([^`]+)`", cells[0]):
                yield name, re.findall(r"`\*{0,2}(\w+)`", cells[1]), cells[2]


def test_the_table_names_everything(original):
    told: dict[str, set[str]] = {}
    for name, arguments, verdict in rows():
        assert verdict.startswith(("works", "differs")), (name, verdict)
        told.setdefault(name, set()).update(arguments)
    names = [dotted for dotted in public(original) if dotted not in original["same"]]
    missing = [name for name in map(short, names) if name not in told]
    for dotted, theirs in original["calls"].items():
        name = short(dotted)
        if "CommunicatorBase" in name or name in RETURNED:
            continue
        if name not in told:
            missing.append(name)
            continue
        wanted = {p for p, *_ in theirs or []} - {"self", "kwargs"} | set(KEYWORDS.get(name, ()))
        missing += [f"{name}({argument})" for argument in sorted(wanted - told[name])]
    missing += [name for name in COMMUNICATORS if f"'{name}'" not in told]
    for module, names in original["modules"].items():
        if module.count(".") == 2:
            package = short(module.rpartition(".")[0])
            missing += [
                f"{package}…{name}" for name in names if not {name, f"{package}.{name}"} & set(told)
            ]
    assert not missing, "\n".join(missing)


def test_the_table_names_nothing_that_is_not_there(original):
    known = {*map(short, public(original)), *map(short, original["calls"]), "__version__"}
    known |= {name for names in original["modules"].values() for name in names}
    known |= {f"'{name}'" for name in COMMUNICATORS}
    assert {name for name, *_ in rows()} <= known
