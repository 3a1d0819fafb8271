"""What the board makes of records: progress, rates, lamps, charts."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from nbmn.dashboard import text
from nbmn.dashboard.encoding import MAX_CHARTS, decode_frame, encode_frame, encode_state, headline
from nbmn.dashboard.model import RunModel
from nbmn.records import Heartbeat, RunEnded, RunStarted, Step

START = 1_000.0


def model(ranks, **options):
    return RunModel(range(ranks), START, **options)


def step(board, rank, iteration, seconds, values=None, samples=None, epoch=None):
    time = START + seconds
    values = {"loss": 1.0 / iteration} if values is None else values
    board.apply(Step(rank, "run", time, iteration, values, samples, epoch), time)


def begin(board, iterations=None, epochs=None):
    for rank in board.ranks:
        board.apply(RunStarted(rank, "run", START, "mlp", iterations, epochs), START)


def states(board, seconds):
    return [board.lamp(rank, START + seconds).state for rank in board.ranks]


@pytest.mark.parametrize("ranks", [1, 2, 8, 64])
def test_a_run_of_any_size(ranks):
    board = model(ranks)
    begin(board, iterations=200, epochs=2)
    for i in range(1, 101):
        for rank in range(ranks):
            step(board, rank, i, 0.1 * i, {"loss": 1 / i + rank}, samples=32, epoch=i / 100)
    shown = board.snapshot(START + 10)
    assert shown.title == "mlp"
    assert shown.progress.iteration == 100
    assert shown.progress.fraction == 0.5
    assert shown.progress.epoch == 1.0
    assert shown.progress.eta == pytest.approx(10, rel=0.05)
    assert shown.progress.elapsed == 10
    assert shown.rate == pytest.approx(320 * ranks, rel=0.02)
    assert shown.average == pytest.approx(320 * ranks)
    assert shown.samples == 3200 * ranks
    assert shown.means == (pytest.approx(0.01 + (ranks - 1) / 2),)
    loss, throughput = shown.charts
    assert (loss.key, throughput.key) == ("loss", "samples/s")
    for rank in range(ranks):
        np.testing.assert_allclose(loss.ranks[rank], 1 / np.arange(1, 101) + rank)
        np.testing.assert_allclose(throughput.ranks[rank], 320)
    np.testing.assert_allclose(loss.mean, loss.ranks.mean(axis=0))


def test_eta_follows_a_change_of_pace():
    board = model(1)
    begin(board, iterations=1000)
    seconds = 0.0
    for i in range(1, 501):
        seconds += 0.1 if i <= 300 else 0.5
        step(board, 0, i, seconds)
        board.progress(START + seconds)
    assert board.progress(START + seconds).eta == pytest.approx(500 * 0.5, rel=0.05)
    # Between two steps it goes down, as far as a step takes.
    assert board.progress(START + seconds + 0.4).eta == pytest.approx(249.6, rel=0.001)
    assert board.progress(START + seconds + 1.4).eta == pytest.approx(249.5, rel=0.001)


@pytest.mark.parametrize("ahead", [False, True])
def test_no_time_to_go_while_nothing_moves(ahead):
    board = model(2)
    begin(board, iterations=30)
    for i in range(1, 11):
        for rank in (0, 1):
            step(board, rank, i, 1 + 0.3 * i)
        board.progress(START + 1 + 0.3 * i)
    assert board.progress(START + 4.5).eta == pytest.approx(20 * 0.4 - 0.3, rel=0.01)
    for seconds in range(6, 40):
        now = START + seconds
        if ahead:
            step(board, 0, 10 + seconds, seconds)  # the run is as far as its slowest rank
        board.apply(Heartbeat(1, "run", now, "running"), now)
        assert board.progress(now + 0.5).eta is None
    assert not any("to go" in part for part in headline(board.snapshot(now + 0.5)))
    step(board, 1, 11, 40)
    assert board.progress(START + 40).eta > 20 * 0.4
    assert board.progress(START + 60).eta > 20 * 0.4  # now a step is known to take so long


def test_progress_by_epochs_alone_and_without_any_total():
    board = model(1)
    begin(board, epochs=4)
    step(board, 0, 10, 5, epoch=1.0)
    assert board.progress(START + 5).fraction == 0.25
    assert board.progress(START + 5).eta == pytest.approx(15)
    endless = model(1)
    step(endless, 0, 10, 5)
    assert endless.progress(START + 5).fraction is None
    assert endless.progress(START + 5).eta is None


def test_no_records_and_no_steps():
    board = model(2)
    shown = board.snapshot(START + 1)
    assert shown.charts == ()
    assert shown.progress.iteration == 0
    assert states(board, 1) == ["starting", "starting"]
    begin(board, iterations=0)
    for rank in (0, 1):
        board.apply(RunEnded(rank, "run", START + 1, "done"), START + 1)
    board.finish("done", START + 2)
    assert states(board, 100) == ["done", "done"]
    json.loads(encode_state(board.snapshot(START + 2)))
    assert encode_frame(board.snapshot(START + 2)) == b""


def test_progress_is_that_of_the_slowest_rank_present():
    board = model(3)
    begin(board, iterations=100)
    step(board, 0, 20, 1)
    step(board, 1, 10, 1)
    assert board.progress(START + 1).iteration == 10
    board.apply(RunEnded(1, "run", START + 1, "failed", "boom"), START + 1)
    assert board.progress(START + 1).iteration == 20


def test_lamps():
    board = model(6)
    now = START + 1
    for rank, state in enumerate(["idle", "running", "waiting"]):
        board.apply(Heartbeat(rank, "run", now, state, "allreduce", "cell [3] line 2", 4.0), now)
    board.apply(RunEnded(3, "run", now, "failed", "ValueError: no"), now)
    board.apply(RunEnded(4, "run", now, "done"), now)
    board.apply(RunEnded(4, "run", now, "interrupted"), now)
    assert states(board, 1) == ["idle", "running", "waiting", "failed", "interrupted", "starting"]
    assert board.lamp(2, now).detail == "in allreduce at cell [3] line 2 for 4 s"
    assert board.snapshot(now).message == "rank 3: ValueError: no"
    board.apply(Heartbeat(5, "run", now, "debugging", "", "cell [3] line 4", 9.0), now)
    debugged = board.lamp(5, now)
    assert (debugged.state, debugged.detail) == (
        "waiting",
        "for a debugger's commands at cell [3] line 4",
    )
    assert states(board, 7) == ["silent", "silent", "silent", "failed", "interrupted", "silent"]
    step(board, 0, 1, 7)
    assert board.lamp(0, START + 8).state == "running"


def test_a_silent_rank_stays_silent_when_the_run_fails():
    board = model(2)
    begin(board)
    step(board, 0, 1, 9)
    board.finish("failed", START + 10)
    assert states(board, 99) == ["interrupted", "silent"]


def test_failed_rank_counts_no_longer_in_rate_and_means():
    board = model(2)
    begin(board)
    for i in range(1, 41):
        for rank in (0, 1):
            if rank == 0 or i <= 20:
                step(board, rank, i, 0.1 * i, {"loss": 5.0 * rank + 1}, samples=10)
    board.apply(RunEnded(1, "run", START + 2, "failed", "boom"), START + 2)
    shown = board.snapshot(START + 4)
    assert shown.rate == pytest.approx(100)
    assert math.isnan(shown.rows[1].rate)
    assert shown.means == (1.0,)


def test_rate_of_a_stalled_rank_falls():
    board = model(1)
    begin(board)
    for i in range(1, 51):
        step(board, 0, i, 0.1 * i, samples=10)
    assert board.snapshot(START + 5.1).rate == pytest.approx(100)
    assert board.snapshot(START + 30).rate < 25


def test_hosts_with_other_clocks():
    board = model(2)
    for i in range(51):
        for rank, skew in ((0, 0.0), (1, -3600.0)):
            arrived = START + 0.1 * i
            record = (
                Step(rank, "run", arrived + skew, i, {"loss": 1.0}, 10)
                if i
                else RunStarted(rank, "run", arrived + skew)
            )
            board.apply(record, arrived)
    shown = board.snapshot(START + 5)
    assert states(board, 5) == ["running", "running"]
    np.testing.assert_allclose(shown.charts[1].ranks, 100)


def test_kinds_of_values_share_a_chart_and_the_loss_comes_first():
    board = model(2)
    for i in range(1, 21):
        for rank in (0, 1):
            step(board, rank, i, i, {"main/accuracy": 0.5, "main/loss": 2.0 + rank}, samples=8)
    for rank in (0, 1):
        for i in (10, 20):
            step(board, rank, i, 20, {"validation/main/loss": float(i)})
    charts = board.snapshot(START + 20).charts
    assert [chart.key for chart in charts] == ["loss", "samples/s", "accuracy"]
    assert charts[0].names == ("main/loss", "validation/main/loss")
    np.testing.assert_allclose(charts[0].mean, 2.5)
    (validation,) = charts[0].others
    np.testing.assert_allclose(validation[9:], np.arange(10, 21))
    assert np.isnan(validation[:9]).all()


def test_a_late_value_and_one_of_some_ranks_only():
    board = model(3)
    for i in range(1, 31):
        for rank in range(3):
            values = {"loss": 1.0}
            if i > 20 and rank == 1:
                values["reward"] = float(i)
            step(board, rank, i, i, values)
    shown = board.snapshot(START + 30)
    chart = shown.charts[1]
    assert chart.key == "reward"
    assert np.isnan(chart.ranks[[0, 2]]).all()
    known = np.isfinite(chart.mean)
    np.testing.assert_allclose(chart.mean[known], np.arange(21, 31))
    assert [row.values[1] for row in shown.rows] == [None, 30.0, None]


def test_not_finite_values_are_said_and_do_not_spoil_the_mean():
    board = model(2)
    for i in range(1, 11):
        step(board, 0, i, i, {"loss": 2.0})
        step(board, 1, i, i, {"loss": math.nan if i > 4 else 2.0})
    shown = board.snapshot(START + 10)
    assert shown.message == "rank 1: loss not finite, from iteration 5"
    assert shown.means == (2.0,)
    state = json.loads(encode_state(shown))
    assert [row["values"] for row in state["rows"]] == [["2.000"], ["NaN"]]
    assert math.isnan(decode_frame(encode_frame(shown), state["charts"])[0]["r1"][-1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({0: [7]}, "rank 0: loss not finite, at iteration 7"),
        ({0: [7, 8], 1: [6]}, "rank 1: loss not finite, at iteration 6; rank 0 from 7"),
        (
            {2: range(4, 11), **{rank: range(5, 11) for rank in (0, 1, 3, 4, 5)}},
            "rank 2: loss not finite, from iteration 4; ranks 0, 1, 3–5 from 5",
        ),
        (
            {rank: [rank + 3, rank + 4] for rank in range(6)},
            "rank 0: loss not finite, from iteration 3; rank 1 from 4; rank 2 from 5; "
            "ranks 3–5 later",
        ),
        (
            {rank: [5] for rank in (0, 1, 2, 3, 5)},
            "ranks 0–3, 5: loss not finite, at iteration 5",
        ),
    ],
)
def test_not_finite_values_name_every_rank_concerned(bad, message):
    board = model(6)
    for i in range(1, 11):
        for rank in range(6):
            step(board, rank, i, i, {"loss": math.inf if i in bad.get(rank, ()) else 1.0})
    assert board.snapshot(START + 10).message == message


def uneven(seconds):
    """Rank 0 makes 60 steps of 0.1 s at loss 2, rank 1 of 0.2 s at loss 3."""
    board = model(2)
    steps = [(0.1 * i, 0, i) for i in range(1, 61)] + [(0.2 * i, 1, i) for i in range(1, 61)]
    begin(board, iterations=60)
    for time, rank, i in sorted(steps):
        if time <= seconds:
            step(board, rank, i, time, {"loss": 2.0 + rank}, samples=4)
            if i == 60:
                board.apply(RunEnded(rank, "run", START + time, "done"), START + time)
    return board


def test_mean_of_uneven_ranks_while_both_run():
    loss, throughput = uneven(5).snapshot(START + 5).charts
    assert len(loss.x) == 50
    np.testing.assert_allclose(loss.mean[:25], 2.5)
    assert np.isnan(loss.mean[25:]).all()
    np.testing.assert_allclose(throughput.mean[:9], 30)
    np.testing.assert_allclose(throughput.total[:9], 60)


def test_mean_of_uneven_ranks_once_one_is_done():
    loss, throughput = uneven(10).snapshot(START + 10).charts
    np.testing.assert_allclose(loss.mean[:50], 2.5)
    assert np.isnan(loss.mean[50:]).all()  # rank 1 is going to have values there
    late = throughput.x > 6.5
    assert late.any()
    np.testing.assert_allclose(throughput.mean[late], 20)
    np.testing.assert_allclose(throughput.total[late], 20)


def test_mean_of_uneven_ranks_that_were_interrupted():
    board = uneven(5)
    for rank in (0, 1):
        board.apply(RunEnded(rank, "run", START + 5.1, "interrupted"), START + 5.1)
    board.finish("interrupted", START + 5.2)
    loss, throughput = board.snapshot(START + 6).charts
    np.testing.assert_allclose(loss.mean[:25], 2.5)
    assert np.isnan(loss.mean[25:]).all()
    assert set(np.round(throughput.mean[np.isfinite(throughput.mean)], 6)) == {30}


def test_time_of_a_run_ends_with_its_last_step():
    board = uneven(12)
    assert board.progress(START + 15).elapsed == 15
    board.finish("done", START + 17)
    assert board.progress(START + 99).elapsed == pytest.approx(12)
    assert "trained 0:12" in json.loads(encode_state(board.snapshot(START + 99)))["headline"]


def test_frame_holds_what_the_charts_hold():
    board = model(3)
    rng = np.random.default_rng(0)
    values = rng.normal(size=(3, 333))
    for i in range(1, 334):
        for rank in range(3):
            reported = dict.fromkeys(["loss", "a", "b", "c", "d"], values[rank, i - 1])
            step(board, rank, i, 0.01 * i, reported, samples=7)
    shown = board.snapshot(START + 4)
    layout = json.loads(encode_state(shown))["charts"]
    frame = encode_frame(shown)
    assert [chart["key"] for chart in layout] == ["loss", "samples/s", "a", "b"]
    assert len(layout) == MAX_CHARTS
    decoded = decode_frame(frame, layout)
    np.testing.assert_array_equal(decoded[0]["x"], np.arange(1, 334))
    for rank in range(3):
        np.testing.assert_array_equal(decoded[3][f"r{rank}"], values[rank].astype("f4"))
    np.testing.assert_allclose(decoded[1]["total"], 3 * 700, rtol=1e-6)
    np.testing.assert_allclose(decoded[0]["mean"], values.mean(axis=0), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(decoded[0]["low"], values.min(axis=0).astype("f4"))
    np.testing.assert_array_equal(decoded[0]["high"], values.max(axis=0).astype("f4"))
    assert len(frame) == sum(
        -(-(8 + 4 * len(chart["columns"])) * chart["points"] // 8) * 8 for chart in layout
    )


def test_ranks_that_are_not_shown_are_ignored():
    board = RunModel([0, 2], START)
    step(board, 1, 5, 1)
    step(board, 2, 3, 1)
    shown = board.snapshot(START + 1)
    assert shown.ranks == (0, 2)
    assert [row.iteration for row in shown.rows] == [0, 3]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "–"),
        (math.nan, "NaN"),
        (-math.inf, "−∞"),
        (0.0, "0.0000"),
        (0.30712, "0.3071"),
        (12.5, "12.50"),
        (12345.6, "12346"),
        (1.2e-6, "1.20e-06"),
    ],
)
def test_numbers_in_words(value, words):
    assert text.number(value) == words


def test_rates_and_times_in_words():
    assert [text.rate(r) for r in (3.14159, 42.0, 512.3, 1920.4, 12345.0, 1.05e6, math.nan)] == [
        *("3.14", "42.0", "512", "1,920", "12.3k", "1.05M", "–")
    ]
    assert [text.duration(s) for s in (6.6, 750, 11_100, 183_600)] == [
        *("0:07", "12:30", "3:05:00", "2 d 03:00")
    ]
    assert text.label("validation/main/loss") == "validation loss"
