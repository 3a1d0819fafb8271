"""The order of synchronized iterators."""

import numpy as np

from nbmn.iterators.synchronized import ChainedOrder


def orders(seed, length, epochs):
    sampler, order, found = ChainedOrder(seed), np.arange(length), []
    for _ in range(epochs):
        order = sampler(order, 0)
        found.append(tuple(order.tolist()))
    return found


def test_every_order_has_every_example_once():
    for order in orders(3, 20, 5):
        assert sorted(order) == list(range(20))


def test_seed_and_order_before_decide():
    assert orders(3, 20, 5) == orders(3, 20, 5)
    assert set(orders(3, 20, 5)).isdisjoint(orders(4, 20, 5))
    assert len(set(orders(3, 20, 200))) == 200
    order = np.array(orders(3, 20, 4)[-1], np.intp)
    assert tuple(ChainedOrder(3)(order, 7).tolist()) == orders(3, 20, 5)[-1]


def test_places_are_even():
    """Each example comes first about equally often: 2000 draws of 10, within 5 deviations."""
    first = np.bincount([order[0] for order in orders(0, 10, 2000)], minlength=10)
    assert abs(first - 200).max() < 5 * np.sqrt(2000 * 0.1 * 0.9)
