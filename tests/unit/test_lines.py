"""Names for the user's lines."""

from __future__ import annotations

from nbmn.engine.lines import cell_filename, cell_label, describe, failing_line


def _failure(filename: str, source: str, namespace: dict | None = None) -> BaseException:
    try:
        exec(compile(source, filename, "exec"), namespace if namespace is not None else {})
    except BaseException as error:  # noqa: BLE001
        return error
    raise AssertionError("it did not fail")


def test_labels() -> None:
    assert cell_label(cell_filename("[12]")) == "[12]"
    assert cell_label("/tmp/train.py") is None
    assert describe("<cell [12]>", 3) == "cell [12] line 3"
    assert describe("/somewhere/train.py", 40) == "train.py line 40"
    assert describe("", 0) == ""


def test_the_innermost_line_of_a_cell() -> None:
    error = _failure("<cell [3]>", "import json\n\njson.loads('{')")
    assert failing_line(error.__traceback__) == "cell [3] line 3"
    shared: dict = {}
    exec(compile("def f():\n    1 / 0", "<cell [1]>", "exec"), shared)
    error = _failure("<cell [2]>", "\nf()", shared)
    assert failing_line(error.__traceback__) == "cell [1] line 2"


def test_without_a_cell_the_innermost_file() -> None:
    error = _failure("/x/train.py", "\n\n1 / 0")
    assert failing_line(error.__traceback__) == "train.py line 3"
    assert failing_line(None) == ""
