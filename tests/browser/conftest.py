"""A real JupyterLab, or Notebook 7, in a real, headless Chromium.

``lab`` starts one server for the session, ``notebook`` opens notebooks in a fresh
page of it; ``jupyter_notebook`` and ``notebook_7`` are their likes. ``keep_screenshot`` saves
what the page looks like. Where no Chromium is, the tests skip and say so.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

_REPOSITORY = Path(__file__).parents[2]
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
_START = 90  # seconds for the server
_PAGE = 90_000  # milliseconds for anything in the page

# The page's own view of the current notebook.
_PANEL = "window.jupyterapp.shell.currentWidget"
_BOARDS = """async () => {
  const charts = [];
  for (const loading of Object.values(globalThis.nbmnBokeh ?? {})) {
    for (const doc of (await loading).documents) {
      const points = doc.get_model_by_name("points");
      if (!points) continue;
      const data = {};
      for (const [name, column] of Object.entries(points.data)) {
        data[name] = Array.from(column, (value) => (Number.isFinite(value) ? value : null));
      }
      charts.push({ key: doc.roots()[0].name, data });
    }
  }
  return charts;
}"""


@dataclass(frozen=True)
class Server:
    """A running server; notebooks live in ``root``."""

    url: str
    page: str
    """Where a notebook of that name is opened."""
    root: Path
    log: Path
    """What the server and its kernels wrote."""


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium."""
    for name in (os.environ.get("NBMN_CHROMIUM"), "chromium", "chromium-browser", "google-chrome"):
        found = name and shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium here (Debian: apt install chromium; or set NBMN_CHROMIUM)")


@pytest.fixture(scope="session")
def lab(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """JupyterLab."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    with _serve("jupyterlab", "lab/tree/{}?reset", tmp_path_factory.mktemp("lab")) as server:
        yield server


@pytest.fixture(scope="session")
def jupyter_notebook(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Notebook 7: JupyterLab's parts, one notebook a page."""
    pytest.importorskip("notebook", reason="Jupyter Notebook is not installed")
    with _serve("notebook", "notebooks/{}", tmp_path_factory.mktemp("notebook")) as server:
        yield server


@contextmanager
def _serve(module: str, page: str, home: Path) -> Iterator[Server]:
    """Without token, on a free loopback port; settings in a temporary folder."""
    root = home / "notebooks"
    root.mkdir()
    _write_settings(home / "settings")
    port = _free_port()
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "IPYTHONDIR": str(home / "ipython"),
    }
    command = [
        *(sys.executable, "-m", module, "--no-browser", "--expose-app-in-browser"),
        *("--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *("--IdentityProvider.token=", "--ServerApp.allow_root=True"),
        f"--ServerApp.root_dir={root}",
    ]
    log = (home / "server.log").open("w")
    server = subprocess.Popen(
        command, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
    )
    try:
        _wait_for_server(f"http://127.0.0.1:{port}/api", server, home / "server.log")
        yield Server(f"http://127.0.0.1:{port}", page, root, home / "server.log")
    finally:
        _stop(server)
        log.close()


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """The browser, as a playwright ``Browser``."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        running = driver.chromium.launch(executable_path=chromium, args=_FLAGS)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A fresh page; uncaught errors of scripts are in ``page.script_errors``."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(_PAGE)
    fresh = context.new_page()
    fresh.script_errors = []
    fresh.on("pageerror", lambda error: fresh.script_errors.append(str(error)))
    yield fresh
    context.close()


@pytest.fixture
def notebook(lab: Server, page: Any) -> Iterator[Callable[..., Notebook]]:
    """Opens a notebook: ``notebook("name", cells)``, or one that lies in ``lab.root`` already."""
    with _opening(lab, page) as open_notebook:
        yield open_notebook


@pytest.fixture
def notebook_7(jupyter_notebook: Server, page: Any) -> Iterator[Callable[..., Notebook]]:
    """As ``notebook``, in Notebook 7."""
    with _opening(jupyter_notebook, page) as open_notebook:
        yield open_notebook


@contextmanager
def _opening(server: Server, page: Any) -> Iterator[Callable[..., Notebook]]:
    opened: list[Notebook] = []

    def open_notebook(name: str, cells: list[str] | None = None) -> Notebook:
        path = server.root / f"{name}.ipynb"
        if cells is not None:
            path.write_text(json.dumps(_document(cells)))
        page.goto(f"{server.url}/{server.page.format(path.name)}")
        book = Notebook(page, path)
        book.wait_until_ready()
        opened.append(book)
        return book

    yield open_notebook
    for book in opened:
        book.shut_down()


@pytest.fixture(scope="session")
def keep_screenshot() -> Callable[[Any, str], Path]:
    """Saves ``page`` as ``NAME.png`` in the folder NBMN_ARTIFACTS, or ``.artifacts``."""
    folder = Path(os.environ.get("NBMN_ARTIFACTS") or _REPOSITORY / ".artifacts")
    folder.mkdir(parents=True, exist_ok=True)

    def keep(page: Any, name: str) -> Path:
        target = folder / f"{name}.png"
        page.screenshot(path=target)
        return target

    return keep


class Notebook:
    """The notebook in front on a page, and its file."""

    def __init__(self, page: Any, path: Path) -> None:
        self.page = page
        self.path = path

    def wait_until_ready(self) -> None:
        """Wait for the notebook to be drawn and its kernel to answer."""
        self.page.wait_for_function(
            f"""(name) => {{
              const panel = window.jupyterapp?.shell?.currentWidget;
              return panel?.context?.path === name && panel.context.isReady
                && panel.sessionContext?.session?.kernel?.connectionStatus === "connected"
                && !["unknown", "starting"].includes({_PANEL}.sessionContext.session.kernel.status);
            }}""",
            arg=self.path.name,
        )

    def start(self, index: int) -> None:
        """Run one cell without waiting for its end."""
        self.page.evaluate(
            f"""(index) => {{
              const panel = {_PANEL};
              panel.content.deselectAll();
              panel.content.activeCellIndex = index;
              window.jupyterapp.commands.execute("notebook:run-cell");
            }}""",
            index,
        )

    def start_all(self) -> None:
        """Run all cells without waiting for their end."""
        self.page.evaluate(
            'window.jupyterapp.commands.execute("notebook:run-all-cells") && undefined'
        )

    def run(self, index: int, timeout: float = 90.0) -> None:
        """Run one cell and wait for its end."""
        self.start(index)
        self.wait(index, timeout)

    def wait(self, index: int, timeout: float = 90.0) -> None:
        """Wait until a cell that was started has ended."""
        self.page.wait_for_function(
            f"""(index) => {{
              const model = {_PANEL}.content.widgets[index].model;
              return model.executionCount !== null && model.executionState === "idle";
            }}""",
            arg=index,
            timeout=1000 * timeout,
        )

    def is_running(self, index: int) -> bool:
        """Whether a cell still runs."""
        return self.page.evaluate(
            f'(i) => {_PANEL}.content.widgets[i].model.executionState !== "idle"', index
        )

    def wait_for_status(self, status: str) -> None:
        """Wait until the page shows the kernel as ``busy`` or ``idle``."""
        self.page.wait_for_function(
            f"(status) => {_PANEL}.sessionContext.session.kernel.status === status", arg=status
        )

    def outputs(self, index: int) -> list[dict[str, Any]]:
        """Outputs of a cell, as they would be saved."""
        return self.page.evaluate(
            f"(index) => {_PANEL}.content.widgets[index].model.toJSON().outputs", index
        )

    def error(self, index: int) -> str:
        """The error of a cell, without its colours; empty if there is none."""
        errors = [each for each in self.outputs(index) if each["output_type"] == "error"]
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(errors[0]["traceback"])) if errors else ""

    def boards(self) -> list[dict[str, Any]]:
        """Charts of all live boards: ``{"key": "loss", "data": {"x": […], "r0": […], …}}``."""
        return self.page.evaluate(_BOARDS)

    def wait_for_boards(
        self, enough: Callable[[list[dict[str, Any]]], bool], timeout: float = 60.0
    ) -> list[dict[str, Any]]:
        """Look at :meth:`boards` until ``enough`` of them is true."""
        deadline = time.monotonic() + timeout
        while True:
            boards = self.boards()
            if enough(boards):
                return boards
            if time.monotonic() > deadline:
                summary = [(chart["key"], len(chart["data"]["x"])) for chart in boards]
                raise TimeoutError(f"after {timeout:g} s the page holds {summary}")
            self.page.wait_for_timeout(50)

    def scroll_to(self, index: int) -> None:
        """Bring a cell's output to the upper edge."""
        self.page.evaluate(
            f"(index) => {_PANEL}.content.widgets[index].outputArea.node.scrollIntoView()", index
        )

    def save(self) -> dict[str, Any]:
        """Save, and read the file."""
        self.page.evaluate(f"{_PANEL}.context.save()")
        return json.loads(self.path.read_text())

    def reload(self) -> None:
        """Reload the page; the kernel lives on."""
        self.page.reload()
        self.wait_until_ready()

    def restart(self) -> None:
        """Restart the kernel, whatever it does."""
        self.page.evaluate(f"{_PANEL}.sessionContext.session.kernel.restart()")

    def set_theme(self, theme: str) -> None:
        """``JupyterLab Light`` or ``JupyterLab Dark``."""
        self.page.evaluate(
            """(theme) => window.jupyterapp.commands.execute("apputils:change-theme", { theme })""",
            theme,
        )
        light = str(theme.endswith("Light")).lower()
        self.page.wait_for_function(f'document.body.dataset.jpThemeLight === "{light}"')

    def shut_down(self) -> None:
        """End the kernel."""
        self.page.evaluate(f"window.jupyterapp && {_PANEL}?.sessionContext?.shutdown()")


def _document(cells: list[str]) -> dict[str, Any]:
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
        "cells": [
            {
                "cell_type": "code",
                "id": f"cell-{index}",
                "metadata": {},
                "execution_count": None,
                "outputs": [],
                "source": source,
            }
            for index, source in enumerate(cells)
        ],
    }


def _write_settings(folder: Path) -> None:
    """No news, no update checks, no recovered workspace dialogues."""
    settings = {
        "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
        "docmanager-extension/plugin": {"autosave": False},
        "notebook-extension/tracker": {"windowingMode": "none"},
    }
    for name, content in settings.items():
        target = folder / "@jupyterlab" / f"{name}.jupyterlab-settings"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(content))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_for_server(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _START
    while time.monotonic() < deadline:
        if server.poll() is not None:
            break
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    raise RuntimeError(f"Jupyter did not start within {_START} s:\n{log.read_text()[-3000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End the server, which ends its kernels; by force if it does not listen."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait(10)
