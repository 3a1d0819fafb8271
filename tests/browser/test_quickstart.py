"""The quickstart as a newcomer runs it: JupyterLab, Run All, and the board moves."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "01_quickstart.ipynb"


def _points(chart: dict, rank: int) -> list[float]:
    return [y for y in chart["data"].get(f"r{rank}", []) if y is not None]


def _text(outputs: list[dict]) -> str:
    streams = ["".join(output.get("text", "")) for output in outputs]
    shown = ["".join(output.get("data", {}).get("text/plain", "")) for output in outputs]
    return "\n".join(streams + shown)


def test_run_all(lab, notebook, page, keep_screenshot):
    cells = ["".join(cell["source"]) for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"]]
    training = next(i for i, source in enumerate(cells) if source.startswith("%%mn_train"))
    last = max(i for i, source in enumerate(cells) if source.startswith("%mn_stop"))
    shutil.copy(NOTEBOOK, lab.root / "quickstart.ipynb")

    book = notebook("quickstart")
    book.start_all()

    # Both charts hold data of both ranks, and hold more a moment later, while the cell runs.
    def filled(boards):
        keys = {
            chart["key"]
            for chart in boards
            if min(map(len, (_points(chart, r) for r in (0, 1)))) > 3
        }
        return any("loss" in key for key in keys) and any(
            "rate" in key or "samples" in key for key in keys
        )

    first = book.wait_for_boards(filled, timeout=120)
    assert book.is_running(training)
    counts = {chart["key"]: [len(_points(chart, r)) for r in (0, 1)] for chart in first}

    def moved(boards):
        return all(
            len(_points(chart, rank)) > counts[chart["key"]][rank]
            for chart in boards
            if chart["key"] in counts and min(counts[chart["key"]]) > 3
            for rank in (0, 1)
        )

    book.wait_for_boards(moved, timeout=30)
    book.scroll_to(training)
    keep_screenshot(page, "quickstart-training-light")
    book.set_theme("JupyterLab Dark")
    keep_screenshot(page, "quickstart-training-dark")
    assert book.is_running(training), "charts moved only after the training had ended"
    book.set_theme("JupyterLab Light")

    deadline = time.monotonic() + 180
    while book.is_running(last) or not book.outputs(last):
        errors = [
            output
            for i in range(len(cells))
            for output in book.outputs(i) or []
            if output["output_type"] == "error"
        ]
        assert not errors, errors  # Run All has ended there
        assert time.monotonic() < deadline, "the last cell has not run within 180 s"
        page.wait_for_timeout(200)
    everything = "\n".join(_text(book.outputs(i)) for i in range(len(cells)) if book.outputs(i))
    assert not any(
        output["output_type"] == "error"
        for i in range(len(cells))
        for output in book.outputs(i) or []
    ), everything
    accuracy = float(re.search(r"test accuracy: ([\d.]+)%", everything).group(1))
    assert accuracy > 95
    gap = float(re.search(r"2 ranks against 1: (\S+)", everything).group(1))
    assert gap < 1e-4

    # What a static viewer can show stays in the file; the widget does not.
    saved = json.dumps(book.save()["cells"][training]["outputs"])
    assert "image/svg" in saved
    assert "widget-view" not in saved
    book.scroll_to(training)
    keep_screenshot(page, "quickstart-trained")
    assert page.script_errors == []
