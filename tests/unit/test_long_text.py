"""Text that grows without end: its beginning and its end are kept."""

from __future__ import annotations

import random
from collections.abc import Iterable

from nbmn.cluster.capture import Capture
from nbmn.cluster.long_text import KEPT, LongText, bridged
from nbmn.cluster.output import LIVE_LINES, group, render_text

COUNT = 700_000
LINES = "".join(f"line {number}\n" for number in range(COUNT))


def written(pieces: Iterable[str], read: bool = False) -> LongText:
    text = LongText()
    for piece in pieces:
        text.add(piece)
        if read:
            text.read()
    return text


def pieces_of(text: str, seed: int) -> list[str]:
    chance = random.Random(seed)
    cuts = sorted(chance.sample(range(len(text)), 50))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def test_what_is_not_too_long_is_whole() -> None:
    text = LINES[: 2 * KEPT]
    for read in (False, True):
        kept = written(pieces_of(text, 1), read)
        assert kept.read() == text
        assert kept.gap.characters == 0
        assert bridged(kept.read(), kept.gap) == text


def test_what_is_kept_does_not_depend_on_how_it_was_written() -> None:
    one = written([LINES])
    for seed, read in ((1, False), (2, True)):
        other = written(pieces_of(LINES, seed), read)
        assert other.read() == one.read() == LINES[:KEPT] + LINES[-KEPT:]
        assert other.gap == one.gap
    assert one.gap.characters == len(LINES) - 2 * KEPT
    assert one.gap.lines == LINES[KEPT:-KEPT].count("\n")


def test_memory_stays_bounded() -> None:
    text = LongText()
    for _ in range(300):
        text.add("x" * 100_000)
        assert sum(map(len, text._pieces)) <= 4 * KEPT
    assert len(text.read()) == 2 * KEPT


def test_the_gap_is_told_of_between_whole_lines() -> None:
    kept = written([LINES])
    rows = bridged(kept.read(), kept.gap).splitlines()
    (at,) = (number for number, row in enumerate(rows) if "left out" in row)
    assert rows[:at] == [f"line {number}" for number in range(at)]
    behind = len(rows) - at - 1
    assert rows[at + 1 :] == [f"line {number}" for number in range(COUNT - behind, COUNT)]
    assert rows[at] == f"… {COUNT - at - behind:,} lines left out …"


def test_one_endless_line() -> None:
    kept = written(["x" * (2 * KEPT + 4_000_000)])
    start, gap, end = bridged(kept.read(), kept.gap).split("\n")
    assert (len(start), len(end)) == (KEPT, KEPT)
    assert gap == "… 4,000,000 characters left out …"


def test_an_endless_line_among_others() -> None:
    kept = written(["before\n", "x" * (2 * KEPT + 1_000_000), "\nbehind\n"])
    first, start, gap, end, last = bridged(kept.read(), kept.gap).splitlines()
    assert (first, last) == ("before", "behind")
    assert (len(start), len(end)) == (KEPT - len("before\n"), KEPT - len("\nbehind\n"))
    assert gap == f"… {1_000_000 + len('before..behind.'):,} characters left out …"


def test_a_progress_bar_is_still_one_line() -> None:
    capture = Capture(0)
    updates = "".join(f"\r{step}/150000 {'#' * 40}" for step in range(150_001))
    _write(capture, f"epoch 1\n{updates}")
    assert render_text(group([capture.output()])) == f"rank 0:\nepoch 1\n150000/150000 {'#' * 40}"


def test_ranks_that_differ_in_what_is_left_out_are_not_alike() -> None:
    middle = len(LINES) // 2
    other = f"{LINES[:middle]}!{LINES[middle + 1 :]}"
    outputs = []
    for rank, text in enumerate((LINES, LINES, other)):
        capture = Capture(rank)
        _write(capture, text)
        outputs.append(capture.output())
    assert [each.ranks for each in group(outputs)] == [(0, 1), (2,)]


def test_while_it_runs_a_rank_that_is_behind_is_alike_and_all_lines_count() -> None:
    outputs = []
    for rank, length in enumerate((len(LINES), len(LINES) - 300_000, 5_000)):
        capture = Capture(rank)
        _write(capture, LINES[:length])
        outputs.append(capture.output())
    (everyone,) = group(outputs, running=True)
    assert everyone.ranks == (0, 1, 2)
    shown = render_text([everyone], LIVE_LINES).splitlines()
    assert shown[1] == f"… {COUNT - LIVE_LINES} lines above …"
    assert shown[-1] == f"line {COUNT - 1}"


def _write(capture: Capture, text: str) -> None:
    for piece in pieces_of(text, 3):
        capture({"header": {"msg_type": "stream"}, "content": {"name": "stdout", "text": piece}})
