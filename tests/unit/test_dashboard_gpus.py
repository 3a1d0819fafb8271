"""GPUs on the board: what samples become, live and once the run is over."""

from __future__ import annotations

import json
import re

import pytest

from nbmn.dashboard.encoding import encode_state
from nbmn.dashboard.model import RunModel
from nbmn.dashboard.static_view import html, plain
from nbmn.records import GpuSample, RunEnded, RunStarted, Step

GIB = 1 << 30
START = 1_000.0


def model(ranks: int, *samples: GpuSample) -> RunModel:
    board = RunModel(range(ranks), START)
    for rank in range(ranks):
        board.apply(RunStarted(rank, "run", START, "net"), START)
        board.apply(Step(rank, "run", START + 1, 1, {"loss": 1.0}, 4), START + 1)
    for sample in samples:
        board.apply(sample, sample.time)
    return board


def sample(rank: int, seconds: float, gib: float, busy: int | None = None, **more) -> GpuSample:
    used = round(gib * GIB)
    return GpuSample(rank, "run", START + seconds, used, 80 * GIB, busy, **more)


def shown(board: RunModel, seconds: float = 2) -> list[str]:
    return [row["gpu"] for row in json.loads(encode_state(board.snapshot(START + seconds)))["rows"]]


def test_nothing_is_shown_where_no_rank_has_a_gpu():
    snapshot = model(2).snapshot(START + 2)
    state = json.loads(encode_state(snapshot))
    assert (state["gpus"], shown(model(2))) == (False, ["", ""])
    assert "GPU" not in html(snapshot) + plain(snapshot)


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            GpuSample(0, "run", START, int(71.34 * GIB), 80 * GIB, 96, 64, "NVLink ×18"),
            "71.3/80.0 GiB · 96 % · 64 °C · NVLink ×18",
        ),
        (
            GpuSample(0, "run", START, 133 * GIB, int(139.8 * GIB), 0, 0, "PCIe 5 ×16"),
            "133/140 GiB · 0 % · 0 °C · PCIe 5 ×16",
        ),
        # A part of a GPU; one that shares the host's memory.
        (GpuSample(0, "run", START, 2 * GIB, 10 * GIB), "2.0/10.0 GiB · – · –"),
        (GpuSample(0, "run", START, None, None, 7), "– · 7 % · –"),
        (GpuSample(0, "run", START, problem="GPU is lost"), "GPU is lost"),
    ],
)
def test_the_newest_sample_in_words(told, words):
    board = model(2, sample(0, -1, 3, 1), told)
    assert shown(board) == [words, ""]
    page = html(board.snapshot(START + 2))
    assert re.findall(r">([^<>]*)</td></tr>", page)[:2] == [words, "–"]
    # As many cells in every line.
    lines = re.findall(r"<tr>(.*?)</tr>", page)
    assert len({line.count("</td>") + line.count("</th>") for line in lines}) == 1


def test_a_run_that_is_over_tells_of_its_peak_and_mean():
    samples = [
        sample(0, t, gib, busy, link="NVLink ×4")
        for t, gib, busy in ((1, 10, 50), (2, 30, 91), (3, 20, None))
    ]
    board = model(2, *samples, sample(1, 2, 5), GpuSample(0, "run", START + 4, problem="lost"))
    assert shown(board)[0] == "lost"
    board.apply(RunEnded(0, "run", START + 5, "failed", "CUDARuntimeError: lost"), START + 5)
    board.finish("failed", START + 5)
    assert shown(board) == [
        "lost · peak 30.0/80.0 GiB · 70 % on average · NVLink ×4",
        "peak 5.0/80.0 GiB",
    ]


def test_a_gpu_that_slows_down_is_named():
    hot = [sample(rank, 1, 1, temperature=87 + rank, slowed="heat") for rank in (1, 2)]
    board = model(4, *hot, sample(3, 1, 1, slowed="power"), sample(0, 1, 1))
    expected = (
        "ranks 1, 2: the GPU slows down, it is too hot (89 °C); "
        "rank 3: the GPU slows down, its power supply asks for it"
    )
    assert board.snapshot(START + 2).message == expected
    # For a while, for it comes and goes.
    for rank, seconds in ((1, 5), (2, 11.5), (3, 11.5)):
        board.apply(sample(rank, seconds, 1, temperature=80), START + seconds)
    assert board.snapshot(START + 12).message == (
        "rank 1: the GPU slows down, it is too hot (88 °C)"
    )
    board.apply(RunEnded(0, "run", START + 13, "failed", "ValueError: x"), START + 13)
    assert board.snapshot(START + 13).message == "rank 0: ValueError: x"
    calm = model(4, *hot)
    calm.finish("done", START + 3)
    assert calm.snapshot(START + 4).message == ""
