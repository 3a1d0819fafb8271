"""Gathering output from messages."""

from __future__ import annotations

from typing import Any

from nbmn.cluster.capture import Capture


def _send(capture: Capture, kind: str, **content: Any) -> None:
    capture({"header": {"msg_type": kind}, "content": content})


def _show(capture: Capture, kind: str, html: str, name: str | None = None) -> None:
    transient = {"display_id": name} if name else {}
    _send(capture, kind, data={"text/html": html}, metadata={}, transient=transient)


def test_text_stays_as_written() -> None:
    capture = Capture(1)
    for text in ("abc\r", "d", "\n"):
        _send(capture, "stream", name="stdout", text=text)
    _send(capture, "stream", name="stderr", text="e")
    output = capture.output()
    assert (output.rank, output.stdout, output.stderr) == (1, "abc\rd\n", "e")
    _send(capture, "stream", name="stdout", text="more")
    assert capture.output("note").stdout == "abc\rd\nmore"
    assert capture.output("note").stderr == "enote"


def test_updates_replace_the_display_of_that_name() -> None:
    capture = Capture(0)
    _show(capture, "display_data", "a", "one")
    _show(capture, "display_data", "b")
    _show(capture, "update_display_data", "c", "one")
    _show(capture, "update_display_data", "d", "unknown")
    shown = [bundle["data"]["text/html"] for bundle in capture.output().displays]
    assert shown == ["c", "b"]
    # The name differs between ranks that show the same.
    assert all(set(bundle) == {"data", "metadata"} for bundle in capture.output().displays)


def test_clear_now_and_clear_with_the_next_output() -> None:
    capture = Capture(0)
    _send(capture, "stream", name="stdout", text="old")
    _send(capture, "clear_output", wait=True)
    assert capture.output().stdout == "old"
    _send(capture, "stream", name="stdout", text="new")
    assert capture.output().stdout == "new"
    _show(capture, "display_data", "x")
    _send(capture, "clear_output", wait=False)
    assert capture.output().is_empty()


def test_errors_beside_the_cells_own() -> None:
    capture = Capture(0)
    _send(capture, "error", ename="ValueError", evalue="", traceback=["line 1", "line 2"])
    _send(capture, "error", ename="SystemExit", evalue="", traceback=["no error"])
    assert capture.output().stderr == "line 1\nline 2\n"
    assert capture.output(errors=False).stderr == ""
