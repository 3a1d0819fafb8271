"""Grouping and showing the ranks' output."""

from __future__ import annotations

from nbmn.cluster.output import Group, RankOutput, group, render_html, render_text


def _ranks(groups: list[Group]) -> list[tuple[int, ...]]:
    return [each.ranks for each in groups]


def test_equal_output_once_in_rank_order() -> None:
    outputs = [RankOutput(r, "odd" if r % 2 else "even") for r in range(5)]
    assert _ranks(group(outputs)) == [(0, 2, 4), (1, 3)]
    assert render_text(group(outputs)) == "ranks 0, 2, 4:\neven\nranks 1, 3:\nodd"


def test_what_makes_outputs_differ() -> None:
    bundle = {"data": {"image/png": "x"}, "metadata": {}}
    outputs = [
        RankOutput(0, "a"),
        RankOutput(1, "a", "e"),
        RankOutput(2, "a", "", (bundle,)),
        RankOutput(3, "a", "", (bundle,)),
        RankOutput(4, "a", "", (), bundle),
        RankOutput(5),
    ]
    assert _ranks(group(outputs)) == [(0,), (1,), (2, 3), (4,)]


def test_while_running_a_rank_that_is_behind_is_alike() -> None:
    outputs = [RankOutput(0, "step 1\n"), RankOutput(1, "step 1\nstep 2\n"), RankOutput(2, "other")]
    (ahead, other) = group(outputs, running=True)
    assert ahead.ranks == (0, 1)
    assert ahead.output.stdout == "step 1\nstep 2\n"
    assert other.ranks == (2,)
    assert _ranks(group(outputs)) == [(0,), (1,), (2,)]


def test_text_without_newline_unicode_and_markup() -> None:
    groups = group([RankOutput(0, "Ω <b> & $x", "warn")])
    assert render_text(groups) == "rank 0:\nΩ <b> & $x\nwarn"
    html = render_html(groups)
    assert "Ω &lt;b&gt; &amp; $x" in html
    assert 'class="nbmn-stderr">warn' in html


def test_colours() -> None:
    groups = group([RankOutput(0, "\x1b[31m<red>\x1b[0m")])
    assert "&lt;red&gt;</span>" in render_html(groups)
    assert "\x1b" not in render_html(groups)
    assert "\x1b[31m<red>\x1b[0m" in render_text(groups)


def test_a_text_result_is_text_and_a_richer_one_is_rich() -> None:
    text = {"data": {"text/plain": "3"}, "metadata": {}}
    rich = {"data": {"text/plain": "3", "text/html": "<b>3</b>"}, "metadata": {}}
    assert render_text(group([RankOutput(0, "", "", (), text)])) == "rank 0:\n3"
    (only,) = group([RankOutput(0, "", "", (), rich)])
    assert only.output.rich == (rich,)
    assert render_text([only]) == ""
    assert 'class="nbmn-group"' not in render_html([only])


def test_live_text_is_short_and_final_text_whole() -> None:
    long = "".join(f"{i}\n" for i in range(100_000))
    groups = group([RankOutput(0, long)])
    live = render_text(groups, 200).splitlines()
    assert live[1] == "… 99800 lines above …"
    assert live[2:] == [str(i) for i in range(99_800, 100_000)]
    assert render_text(groups) == "rank 0:\n" + long.rstrip("\n")


def test_one_endless_line_is_short_while_it_grows() -> None:
    groups = group([RankOutput(0, "x" * 5_000_000)])
    assert len(render_text(groups, 200)) < 60_000
    assert len(render_text(groups)) == 5_000_000 + len("rank 0:\n")


def test_short_live_text_is_whole() -> None:
    groups = group([RankOutput(0, "a\nb\n")])
    assert render_text(groups, 200) == "rank 0:\na\nb"
