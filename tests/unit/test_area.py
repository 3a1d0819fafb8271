"""How often a cell's output is redrawn while it runs."""

from __future__ import annotations

import pytest

from nbmn.cluster import area
from nbmn.cluster.output import RankOutput


class Clock:
    """Time that passes when told so; drawing takes ``cost`` seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.cost, self.draws = 100.0, 0.0, 0
        monkeypatch.setattr(area.time, "monotonic", lambda: self.now)
        monkeypatch.setattr(area, "display", self._display)

    def _display(self, *args: object, **options: object) -> None:
        self.draws += 1
        self.now += self.cost

    def run(self, page: area.NotebookArea, seconds: float, text: str, notices: bool = False) -> int:
        """Update ten times a second, with other output each time; return how often it was drawn."""
        before, until = self.draws, self.now + seconds
        while self.now < until:
            page.update([RankOutput(0, text + str(self.now))], str(self.now) if notices else "")
            self.now += 0.1
        return self.draws - before


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_short_output_is_drawn_several_times_a_second(clock: Clock) -> None:
    assert 30 <= clock.run(area.NotebookArea(), 10, "short") <= 51


def test_a_page_gets_no_more_than_it_can_take(clock: Clock) -> None:
    page = area.NotebookArea()
    many = "x" * 45_000
    outputs = [RankOutput(rank, f"{rank} {many}") for rank in range(16)]
    until = clock.now + 10
    while clock.now < until:
        outputs[0] = RankOutput(0, f"{clock.now}{many}")
        page.update(outputs)
        clock.now += 0.1
    size = 2 * 16 * len(many)
    assert 5 <= clock.draws <= 10 * area.CHARACTERS_PER_SECOND / size + 1


def test_drawing_leaves_most_of_the_time_to_others(clock: Clock) -> None:
    clock.cost = 0.5
    page = area.NotebookArea()
    clock.run(page, 5, "slow")  # the first draw is the dearest
    assert clock.run(page, 20, "slow") * clock.cost <= 20 / area.SHARE
    # What is said of the cell as a whole, such as a countdown, does not wait for that.
    assert clock.run(page, 7, "slow", notices=True) >= 7
