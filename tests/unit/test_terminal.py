"""Text as a terminal leaves it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbmn.cluster.terminal import settle


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("10%\r20%\n", "20%\n"),
        ("long\rab", "abng"),
        ("ab\r\ncd", "ab\ncd"),
        ("ab\x08c", "ac"),
        ("\x08a", "a"),
        ("one\ntwo\x1b[1A\rONE", "ONE\ntwo"),
        ("bar\r\x1b[K", ""),
        ("a\nb\nc\x1b[2A\r\x1b[J", ""),
        ("abc\x1b[2Dx", "axc"),
        ("a\x1b[3Cb", "a   b"),
        ("abc\x1b[1Gx", "xbc"),
        ("\x1b[32mgreen\x1b[0m\n", "\x1b[32mgreen\x1b[0m\n"),
        ("a \x1b[31mb\x1b[0m c", "a \x1b[31mb\x1b[0m c"),
        ("\x1b[31m10%\x1b[0m\r\x1b[31m20%\x1b[0m", "\x1b[31m20%\x1b[0m"),
        ("\x1b]0;a title\x07text", "text"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b[?25lhidden cursor", "hidden cursor"),
        ("\x1b", ""),
        ("Ω\r🦆", "🦆"),
    ],
)
def test_settle(text: str, left: str) -> None:
    assert settle(text) == left


@given(st.text(alphabet=st.characters(exclude_characters="\r\x08\x1b")))
def test_plain_text_stays(text: str) -> None:
    assert settle(text) == text


@given(st.text(alphabet="ab\n\r\x08\x1b[]0123;mAJKHh"))
def test_nothing_breaks_it(text: str) -> None:
    assert "\r" not in settle(text)


def test_a_progress_bar_of_several_lines() -> None:
    bar = "".join(f"total {i}\nepoch {i}\n\x1b[2A" for i in range(100)) + "\x1b[2B"
    assert settle(bar).splitlines() == ["total 99", "epoch 99"]
