"""The bounded histories behind the curves, against plain NumPy on all the values."""

from __future__ import annotations

import numpy as np
import pytest

from nbmn.dashboard.history import IterationGrid, RateHistory, ValueHistory


def fill(values, capacity, first=1):
    """A history of ``values``, shape (ranks, iterations)."""
    grid = IterationGrid(capacity)
    history = ValueHistory(len(values), grid)
    for step in range(values.shape[1]):
        for row in range(len(values)):
            add(history, row, first + step, values[row, step])
    return history


def add(history, row, iteration, value):
    grid = history.grid
    while grid.bucket(iteration) >= grid.capacity:
        history.double()
        grid.double()
    history.add(row, grid.bucket(iteration), iteration, value)


def which(*rows, ranks):
    """A mask of ranks."""
    return np.isin(np.arange(ranks), rows)


def means(history, left=(), awaited=()):
    ranks = len(history.last)
    masks = which(*left, ranks=ranks), which(*awaited, ranks=ranks)
    return history.means(history.filled(), *masks)


def test_short_history_is_exact():
    values = np.random.default_rng(0).normal(size=(3, 50))
    history = fill(values, capacity=64)
    x, y = history.curves(history.filled())
    np.testing.assert_array_equal(x, np.arange(1, 51))
    np.testing.assert_array_equal(y, values)
    np.testing.assert_allclose(means(history)[1], values.mean(axis=0))


@pytest.mark.parametrize("steps", [65, 128, 129, 1000, 100_003])
def test_long_history_keeps_first_last_and_extremes_of_each_rank(steps):
    values = np.random.default_rng(steps).normal(size=(2, steps))
    history = fill(values, capacity=64)
    x, y = history.curves(history.filled())
    assert len(x) <= 2 * 64 + 2
    assert (np.diff(x) >= 0).all()
    assert x[0] == 1
    assert x[-1] == steps
    np.testing.assert_array_equal(y[:, 0], values[:, 0])
    np.testing.assert_array_equal(y[:, -1], values[:, -1])
    np.testing.assert_array_equal(np.nanmin(y, axis=1), values.min(axis=1))
    np.testing.assert_array_equal(np.nanmax(y, axis=1), values.max(axis=1))


def test_each_stretch_of_a_long_history_has_its_own_extremes():
    values = np.random.default_rng(1).normal(size=(1, 512))
    history = fill(values, capacity=64)
    _, y = history.curves(history.filled())
    stride = history.grid.stride
    assert stride == 8
    stretches = values[0].reshape(-1, stride)
    pairs = y[0, 1:-1].reshape(-1, 2)
    np.testing.assert_array_equal(pairs.min(axis=1), stretches.min(axis=1))
    np.testing.assert_array_equal(pairs.max(axis=1), stretches.max(axis=1))
    rising = stretches.argmin(axis=1) < stretches.argmax(axis=1)
    np.testing.assert_array_equal(pairs[:, 0] < pairs[:, 1], rising)


def test_mean_of_a_long_history_is_the_mean_of_all_values():
    line = np.linspace(5, 1, 1024)[None] + np.array([[0.0], [2.0]])
    history = fill(line, capacity=64)
    x, mean = means(history)
    inside = slice(2, -2)
    expected = np.interp(x, np.arange(1, 1025), line.mean(axis=0))
    np.testing.assert_allclose(mean[inside], expected[inside], atol=0.05)


def test_nan_and_inf_are_gaps_that_are_counted():
    values = np.ones((1, 10))
    values[0, 3], values[0, 4], values[0, 8] = np.nan, np.inf, -np.inf
    history = fill(values, capacity=64)
    _, y = history.curves(history.filled())
    np.testing.assert_array_equal(np.isnan(y[0]), ~np.isfinite(values[0]))
    assert history.not_finite.tolist() == [3]
    assert history.first_not_finite_at.tolist() == [4]


def test_nan_from_the_first_step_on_breaks_nothing():
    history = fill(np.full((2, 300), np.nan), capacity=64)
    _, y = history.curves(history.filled())
    assert np.isnan(y).all()
    assert np.isnan(means(history)[1]).all()


def test_a_value_reported_now_and_then_is_a_line_and_not_extrapolated():
    history = ValueHistory(2, IterationGrid(64))
    for iteration in (10, 20, 30):
        add(history, 0, iteration, float(iteration))
    add(history, 1, 40, 1.0)
    x, y = history.curves(history.filled())
    known = np.isfinite(y[0])
    np.testing.assert_array_equal(x[known], np.arange(10, 31))
    np.testing.assert_allclose(y[0, known], x[known])


def test_records_out_of_order_give_the_same_curve():
    values = np.random.default_rng(2).normal(size=(1, 40))
    expected = fill(values, capacity=64)
    history = ValueHistory(1, IterationGrid(64))
    for step in np.random.default_rng(3).permutation(40):
        add(history, 0, step + 1, values[0, step])
    for mine, theirs in zip(history.curves(40), expected.curves(40), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert history.latest() == [values[0, -1]]


def test_resumed_run_starts_at_the_left_edge():
    history = fill(np.arange(40.0)[None], capacity=64, first=1_000_000)
    x, y = history.curves(history.filled())
    known = np.isfinite(y[0])
    np.testing.assert_array_equal(x[known], np.arange(1_000_000, 1_000_040))
    assert history.grid.stride == 1


def test_rate_is_level_for_slow_steps_and_its_area_is_the_total():
    rates = RateHistory(1, capacity=64, width=0.5)
    rates.start(0, 0.0)
    for step in range(1, 11):
        rates.add(0, 1.7 * step, 34)
    time, rate, mean, total = rates.curves(which(ranks=1))
    np.testing.assert_allclose(rate[0], 20)
    np.testing.assert_allclose(mean, 20)
    np.testing.assert_allclose(total, 20)
    assert time[0] == 0.25
    assert time[-1] <= 17


def test_rates_survive_doubling_exactly():
    rng = np.random.default_rng(4)
    rates = RateHistory(2, capacity=16, width=0.5)
    times = np.cumsum(rng.uniform(0.05, 0.4, size=2000))
    samples = rng.integers(1, 64, size=2000)
    for row in (0, 1):
        rates.start(row, 0.0)
    for time, count in zip(times, samples, strict=True):
        for row in (0, 1):
            rates.add(row, time, count * (row + 1))
    centres, rate, _, total = rates.curves(which(ranks=2))
    cumulative = np.interp(
        np.arange(len(centres) + 1) * rates.width,
        np.concatenate([[0], times]),
        np.concatenate([[0], np.cumsum(samples)]),
    )
    np.testing.assert_allclose(rate[0], np.diff(cumulative) / rates.width)
    np.testing.assert_allclose(rate[1], 2 * rate[0])
    np.testing.assert_allclose(total, 3 * rate[0])
    assert len(centres) <= 16


@pytest.mark.parametrize("steps", [60, 600])
def test_mean_ends_where_one_rank_has_not_come_to(steps):
    history = ValueHistory(2, IterationGrid(64))
    for iteration in range(1, steps + 1):
        add(history, 0, iteration, 2.0)
        if iteration <= steps // 2:
            add(history, 1, iteration, 3.0)
    x, mean = means(history)
    stride = history.grid.stride
    np.testing.assert_allclose(mean[x <= steps // 2 - stride], 2.5)
    assert np.isnan(mean[x > steps // 2 + stride]).all()
    # Once it has left, the mean is that of the other, and no line joins the two.
    x, mean = means(history, left=[1])
    np.testing.assert_allclose(mean[x <= steps // 2 - stride], 2.5)
    np.testing.assert_allclose(mean[x > steps // 2 + 2 * stride], 2.0)
    between = mean[(x > steps // 2 - stride) & (x <= steps // 2 + 2 * stride)]
    assert np.isnan(between).any()
    assert set(between[np.isfinite(between)]) <= {2.0, 2.5}


def test_mean_of_a_value_that_some_ranks_do_not_report():
    history = ValueHistory(3, IterationGrid(64))
    for iteration in range(1, 11):
        add(history, 1, iteration, float(iteration))
    np.testing.assert_allclose(means(history)[1], np.arange(1, 11))
    assert np.isnan(means(history, awaited=[2])[1]).all()


def test_mean_is_cut_where_a_rank_is_not_finite():
    values = np.array([[1.0] * 10, [3.0] * 10])
    values[1, 4] = np.nan
    _, mean = means(fill(values, capacity=64))
    np.testing.assert_array_equal(np.isnan(mean), np.isnan(values[1]))
    assert set(mean[np.isfinite(mean)]) == {2.0}


def test_mean_rate_counts_no_rank_as_zero():
    """Rank 1 joins late, inside an interval, works at half the pace and stays longer."""
    rates = RateHistory(2, capacity=64, width=0.5)
    rates.start(0, 0.0)
    rates.start(1, 1.2)
    for step in range(1, 61):
        rates.add(0, 0.1 * step, 4)
        rates.add(1, 1.2 + 0.2 * step, 4)
    time, rate, mean, total = rates.curves(which(ranks=2))
    both = (time > 1.5) & (time < 6)
    np.testing.assert_allclose(mean[both], 30)
    assert np.isnan(mean[~both]).all()
    np.testing.assert_allclose(rate[1][time > 1.5], 20)
    np.testing.assert_allclose(total[time < 1], 40)
    np.testing.assert_allclose(total[both], 60)
    assert np.isnan(total[time > 6]).all()
    # Once it has left, the mean is that of the other, and the total loses its part.
    _, _, mean, total = rates.curves(which(0, ranks=2))
    np.testing.assert_allclose(mean[both], 30)
    np.testing.assert_allclose(mean[time > 6.5], 20)
    assert np.isnan(mean[(time > 6) & (time < 6.5)]).all()
    np.testing.assert_allclose(total[time > 6], 20)


def test_area_under_the_total_rate_is_all_samples():
    """Of ranks that start and leave at any moment, but the last to leave on an edge."""
    rng = np.random.default_rng(5)
    times = [np.linspace(0.1, 9.5, 95), rng.uniform(0.03, 7, 43), rng.uniform(0.9, 3, 17)]
    rates = RateHistory(3, capacity=64, width=0.5)
    for row, (start, stamps) in enumerate(zip((0.0, 0.03, 0.9), times, strict=True)):
        rates.start(row, start)
        for time in np.sort(stamps):
            rates.add(row, time, 8)
    _, _, _, total = rates.curves(which(0, 1, 2, ranks=3))
    assert total.sum() * rates.width == pytest.approx(8 * (95 + 43 + 17))
