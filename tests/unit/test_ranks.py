"""Choosing and naming ranks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmn.ranks import name_ranks, parse_ranks


@pytest.mark.parametrize(
    ("text", "size", "ranks"),
    [
        ("", 3, (0, 1, 2)),
        ("all", 2, (0, 1)),
        ("0", 1, (0,)),
        ("-1", 4, (3,)),
        ("0,2", 4, (0, 2)),
        ("2, 0 , 2", 4, (0, 2)),
        ("1:", 4, (1, 2, 3)),
        ("::2", 5, (0, 2, 4)),
        (":-1", 3, (0, 1)),
        ("::-1", 3, (0, 1, 2)),
        ("0,2:", 4, (0, 2, 3)),
        ("1:99", 3, (1, 2)),
    ],
)
def test_parse(text: str, size: int, ranks: tuple[int, ...]) -> None:
    assert parse_ranks(text, size) == ranks


@pytest.mark.parametrize(
    "text", ["4", "-5", "0,4", "9:", "1:1", "x", "0;1", "1.0", ",", "::0", "0x1"]
)
def test_parse_refuses(text: str) -> None:
    with pytest.raises(ValueError, match=r"rank|choice|zero"):
        parse_ranks(text, 4)


@given(st.integers(1, 20), st.data())
def test_slices_are_pythons(size: int, data: st.DataObject) -> None:
    bound = st.one_of(st.none(), st.integers(-25, 25))
    start, stop = data.draw(bound), data.draw(bound)
    step = data.draw(st.one_of(st.none(), st.integers(-5, 5).filter(bool)))
    text = ":".join("" if part is None else str(part) for part in (start, stop, step))
    expected = tuple(sorted(range(size)[slice(start, stop, step)]))
    if expected:
        assert parse_ranks(text, size) == expected
    else:
        with pytest.raises(ValueError, match="chooses no rank"):
            parse_ranks(text, size)


@pytest.mark.parametrize(
    ("ranks", "name"),
    [
        ([3], "rank 3"),
        ([0, 1], "ranks 0, 1"),
        ([2, 1, 0], "ranks 0–2"),
        ([0, 1, 2, 5], "ranks 0–2, 5"),
        ([0, 2, 4], "ranks 0, 2, 4"),
        (range(64), "ranks 0–63"),
    ],
)
def test_name(ranks: list[int], name: str) -> None:
    assert name_ranks(ranks) == name
