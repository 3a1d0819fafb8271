"""What ipyparallel writes and keeps for ranks, and nbmn lets go."""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nbmn.cluster.calls import Call, send
from nbmn.cluster.files import remove_files
from nbmn.cluster.launchers import LAST, end_of
from nbmn.dashboard.widget import BoardWidget, bokeh_runtime, retire


def test_only_the_files_of_that_cluster_are_removed(tmp_path: Path) -> None:
    names = ("log/engines17-ab.json", "log/ipengine-17-ab-9.log", "security/cluster-17-ab.json")
    others = ("log/engines17-ac.json", "security/cluster-18-b.json", "startup/17-ab.py")
    for name in (*names, *others):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    remove_files(str(tmp_path), "")
    remove_files(str(tmp_path), "17-ab")
    remove_files(str(tmp_path), "17-ab")  # by the heart monitor as well
    assert {str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.*")} == set(others)
    remove_files(str(tmp_path / "nowhere"), "17-ab")


def test_a_log_may_hold_any_bytes_and_be_of_any_length(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert end_of(str(log)) == ""
    log.write_bytes(b"\xffone\n")
    assert end_of(str(log)) == "\N{REPLACEMENT CHARACTER}one\n"
    log.write_bytes(b"x" * LAST + b"\nexit code 9\n")
    assert len(end_of(str(log))) == LAST
    assert end_of(str(log)).endswith("x\nexit code 9\n")


def _future(gathered: dict[str, Any]) -> SimpleNamespace:
    output = SimpleNamespace(metadata=gathered, add_done_callback=lambda done: None)
    return SimpleNamespace(iopub_callbacks=[], output=output)


def test_output_is_kept_once() -> None:
    gathered: dict[str, Any] = {"stdout": "", "stderr": "", "outputs": [], "status": "ok"}
    call, future = Call(0), _future(gathered)
    call.attach(future)
    for text in ("one ", "two"):
        gathered["stdout"] += text  # as ipyparallel does before
        gathered["outputs"].append(text)
        message = {"header": {"msg_type": "stream"}, "content": {"name": "stdout", "text": text}}
        for callback in future.iopub_callbacks:
            callback(message)
        assert gathered == {"stdout": "", "stderr": "", "outputs": [], "status": "ok"}
    assert call.output.output().stdout == "one two"


def test_what_comes_after_a_cell_has_ended_is_not_gathered_for_ever() -> None:
    metadata: dict[str, Any] = defaultdict(dict, {"running": {}, "over": {"stdout": "late"}})
    client = SimpleNamespace(metadata=metadata, _futures={"running": object()})
    assert send(client, {}, print) == {}
    assert set(metadata) == {"running"}


def test_boards_that_are_over_leave_no_widgets() -> None:
    from ipywidgets.widgets import widget

    counts = []
    for _ in range(2):
        for _ in range(10):
            retire(BoardWidget(runtime=bokeh_runtime()))
        counts.append(len(widget._instances))
    assert counts[0] == counts[1]


@pytest.mark.parametrize("kind", ["tqdm.auto", "tqdm.autonotebook"])
def test_progress_bars_are_text(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib
    import sys

    from nbmn.compat.text_bars import use_text_bars

    package = tmp_path / "tqdm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "std.py").write_text("tqdm, trange = 'text', 'text too'\n")
    (package / "autonotebook.py").write_text("tqdm, trange = 'widget', 'widget'\n")
    (package / "auto.py").write_text("from .autonotebook import tqdm, trange\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in [name for name in sys.modules if name.split(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    use_text_bars()
    use_text_bars()
    module = importlib.import_module(kind)
    assert (module.tqdm, module.trange) == ("text", "text too")
    assert importlib.import_module("tqdm").autonotebook.tqdm == "text"
    for name in [name for name in sys.modules if name.split(".")[0] == "tqdm"]:
        del sys.modules[name]


def test_the_thread_of_a_cluster_ends() -> None:
    from ipyparallel._async import AsyncFirst

    from nbmn.cluster.processes import _end_loop

    cluster = AsyncFirst()
    _end_loop(cluster)

    async def work() -> int:
        return 7

    assert cluster._in_thread(work) == 7
    thread: threading.Thread = cluster._async_thread
    _end_loop(cluster)
    assert not thread.is_alive()
    # ipyparallel may still have something to do, as when a cluster is collected.
    assert cluster._in_thread(work) == 7
    _end_loop(cluster)
