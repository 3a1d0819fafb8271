"""Who holds the memory, on NumPy's arrays, and how it is told."""

from __future__ import annotations

import sys
import threading
import types

import chainer
import numpy as np
import pytest

from nbmn.engine.memory_owners import chainer_parts, host_block, variables
from nbmn.engine.out_of_memory import alike, asked, explain, wanted_memory
from nbmn.gpu.memory import BUDGET, Holder, Root, holders
from nbmn.gpu.memory_report import Account, Neighbour, Pool, advice, report, size

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


def held(namespace: dict, budget: int = BUDGET) -> dict[tuple[str, str], int]:
    found = holders(variables(namespace), host_block, chainer_parts, last=("graph",), budget=budget)
    assert [h.nbytes for h in found] == sorted((h.nbytes for h in found), reverse=True)
    assert all(holder.root.value is None for holder in found)
    return {(holder.root.name, holder.part): holder.nbytes for holder in found}


def array(kib: int) -> np.ndarray:
    return np.zeros(kib * KIB, np.uint8)


def test_arrays_count_once_and_as_what_they_lie_in():
    x = array(8)
    assert held({"x": x, "same": x, "view": x[:7].reshape(7, 1)}) == {("x", ""): 8 * KIB}
    # A view keeps all of it.
    assert held({"view": x[:1]}) == {("view", ""): 8 * KIB}
    assert [h.what for h in holders([Root("v", x[:1])], host_block)] == ["by a view: uint8 1"]
    assert held({"x": array(2), "y": array(3)}) == {("y", ""): 3 * KIB, ("x", ""): 2 * KIB}


def test_arrays_are_found_wherever_they_are():
    class Slotted:
        __slots__ = ("a",)

    thing = Slotted()
    thing.a = {"deep": [(array(1),), {"only": array(2)}]}
    plain = types.SimpleNamespace(b=thing)

    default = array(4)

    def closure(unused=default):
        return plain

    generator = (x for x in [array(8)])
    assert held({"f": closure}) == {("f", ""): 7 * KIB}
    assert held({"g": generator}) == {("g", ""): 8 * KIB}
    assert held({"m": [closure].append, "_": array(16)}) == {
        ("m", ""): 7 * KIB,
        ("_", ""): 16 * KIB,
    }


def test_what_leads_to_everything_is_not_looked_into():
    here = types.ModuleType("here")
    here.big = array(1)

    class Kept:
        big = array(1)

    namespace = {
        "here": here,
        "Kept": Kept,
        "function": test_arrays_count_once_and_as_what_they_lie_in,
        "frame": sys._getframe(),
        "thread": threading.current_thread(),
        "numbers": list(range(1000)),
        "get_ipython": [array(1)],
        "itself": None,
    }
    namespace["itself"] = namespace["numbers"]
    assert held(namespace) == {}


def test_the_walk_ends():
    endless = []
    endless.append(endless)
    assert held({"a": endless}) == {}
    many = [[array(1)] for _ in range(100)]
    assert held({"x": array(1), "many": many}) == {("many", ""): 100 * KIB, ("x", ""): KIB}
    # Larger than what is left to look at: not even begun.
    assert held({"x": array(1), "many": many}, budget=50) == {("x", ""): KIB}
    nested = [[many[:40]], many[40:80]]
    assert held({"nested": nested}, budget=60) == {
        ("nested", ""): pytest.approx(30 * KIB, abs=9000)
    }


def test_a_training_run_by_owner():
    model = chainer.links.Linear(256, 128)  # 128 KiB and 512 B of float32
    optimizer = chainer.optimizers.Adam().setup(model)
    x = np.ones((32, 256), np.float32)  # 32 KiB

    def lossfun(x):
        y = model(x)  # 16 KiB
        return chainer.functions.sum(y * y)

    optimizer.update(lossfun, x)
    losses = [lossfun(x) for _ in range(3)]
    parameters = 128 * KIB + 512
    found = held({"losses": losses, "lossfun": lossfun, "optimizer": optimizer, "x": x, "m": model})
    graph = found.pop(("losses", "graph"))
    assert found == {
        ("m", "optimizer state"): 2 * parameters,
        ("m", ""): parameters,
        ("m", "gradients"): parameters,
        ("x", ""): 32 * KIB,
        ("losses", ""): 3 * 4,
    }
    # y of each, at least, and not the model's or x once more.
    assert 3 * 16 * KIB <= graph <= 6 * 16 * KIB


def test_roots_of_functions_have_their_names():
    (first, second) = holders(
        [Root("h", [array(2), array(1)], "forward"), Root("x", array(1))], host_block
    )
    assert (first.root.name, first.root.function, first.nbytes) == ("h", "forward", 3 * KIB)
    assert (first.what, second.what) == ("2 arrays", "uint8 1024")


# Errors.


def outer(wanted: int) -> None:
    kept = np.zeros(32 * MIB, np.uint8)
    inner(wanted, kept[1:])


def inner(wanted: int, part: np.ndarray) -> None:
    np.empty(wanted, np.float64)


def caught(call, *arguments) -> BaseException:
    with pytest.raises(BaseException) as info:  # noqa: PT011 - any
        call(*arguments)
    return info.value


def test_which_errors_want_memory():
    error = caught(outer, 1 << 55)
    assert wanted_memory(error)
    assert asked(error) == 8 << 55
    assert wanted_memory(MemoryError())
    assert asked(MemoryError()) is None
    for other in (ValueError("out of memory"), RuntimeError("cudaErrorMemoryAllocation")):
        assert not wanted_memory(other)
    wrapped = ValueError("the batch could not be made")
    wrapped.__cause__ = error
    assert wanted_memory(wrapped)
    assert asked(wrapped) == 8 << 55
    circle = ValueError()
    circle.__cause__ = ValueError()
    circle.__cause__.__cause__ = circle
    assert not wanted_memory(circle)
    assert alike("x (allocated so far: 3 bytes, limit set to: 4 bytes).") == "x."


def test_a_host_without_memory_and_what_is_let_go_of():
    error = caught(outer, 1 << 55)
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    assert "kept" in frames[-2].f_locals
    x = array(64 * KIB)
    head, held_by, *_, helps = explain(error, {"x": x}, 3).split("\n")
    assert head.startswith("rank 3, ")
    assert ": 256 PiB asked for, " in head
    assert held_by.strip().startswith("in use by: `x` 64.0 MiB (uint8 67108864), ")
    # Named by the innermost function that has it.
    assert "`part` in inner() 32.0 MiB (uint8 33554431)" in held_by
    assert "no more than " in helps
    assert list(frames[-2].f_locals) == list(frames[-1].f_locals) == []
    assert x.nbytes == 64 * MIB


# Words.


def gpu(asked: int = 4 * GIB, limit: int = 0, used: int = 60, held: int = 70, **more) -> Account:
    pool = Pool(used * GIB, held * GIB, 3, limit)
    return Account("H100", GIB, 80 * GIB, used * GIB, pool=pool, asked=asked, **more)


def test_what_helps():
    assert advice(gpu(asked=81 * GIB)) == [
        "no more than 80.0 GiB are there: smaller arrays, or a smaller batch"
    ]
    assert advice(gpu()) == [
        "cupy.get_default_memory_pool().free_all_blocks() gives back the free blocks",
        "a smaller batch",
    ]
    near = (Neighbour(5, None, "rank 0", True), Neighbour(6, 9 * GIB, "python a.py"))
    few = (*near, Neighbour(7, 1 * GIB), Neighbour(8, None))
    assert advice(gpu(held=61, neighbours=few)) == [
        "rank 0 uses the same GPU: start fewer ranks",
        "end pid 6 if it is yours",
        "a smaller batch",
    ]
    assert advice(gpu(asked=GIB // 2, limit=60 * GIB, held=60))[0].startswith("lift the limit")
    assert advice(gpu(asked=2 * GIB, limit=60 * GIB, held=60)) == ["a smaller batch"]


def test_what_is_large_and_may_go_is_named():
    found = [
        Holder(Root("losses", None), "graph", 30 * GIB, "9 arrays"),
        Holder(Root("model", None, needed=True), "graph", 20 * GIB, "7 arrays"),
        Holder(Root("x", None), "", 10 * GIB, "float32 4"),
        Holder(Root("h", None, "forward"), "", 10 * GIB, "2 arrays"),
        Holder(Root("y", None), "", 1 * GIB, "float32 1"),
    ]
    account = gpu(holders=tuple(found), used=72, held=72)
    assert advice(account) == [
        "`losses` keeps its graph: `del losses`, or keep `losses.array` only",
        "`del x` if it is done with",
        "a smaller batch",
    ]
    assert report(account).split("\n")[3] == (
        "  in use by: graph of `losses` 30.0 GiB (9 arrays), graph of `model` 20.0 GiB (7 arrays), "
        "`x` 10.0 GiB (float32 4), `h` in forward() 10.0 GiB (2 arrays), `y` 1.00 GiB (float32 1), "
        "what no variable leads to 1.00 GiB"
    )


def test_small_holders_are_summed_up():
    names = [Root(f"x{n}", array(n + 1)) for n in range(12)]
    found = holders([*names, Root("tiny", np.zeros(1, np.uint8))], host_block)
    text = report(Account("host", 0, MIB, 78 * KIB, found, asked=KIB))
    assert "`x11` 12.0 KiB (uint8 12288)" in text
    assert "`x4` 5.00 KiB (uint8 5120), 5 others 10.0 KiB" in text
    assert "tiny" not in text


@pytest.mark.parametrize(
    ("nbytes", "words"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1047552, "1023 KiB"),
        (1048064, "1.00 MiB"),
        (98 * MIB + 300 * KIB, "98.3 MiB"),
        (139 * GIB, "139 GiB"),
        (8 << 55, "256 PiB"),
    ],
)
def test_sizes(nbytes, words):
    assert size(nbytes) == words
