"""A real notebook kernel, driven as JupyterLab drives it."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
from jupyter_client.manager import start_new_kernel

ANSI = re.compile(r"\x1b\[[0-9;]*m")
CELL_SECONDS = 90


@dataclass
class Ran:
    """What a cell left behind."""

    ok: bool
    streams: dict[str, str] = field(default_factory=lambda: {"stdout": "", "stderr": ""})
    displays: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Mime bundles; one that is updated in place counts once, as it is at the end."""
    widgets: list[dict[str, Any]] = field(default_factory=list)
    """First state of each that came, with its bytes."""
    updates: int = 0
    error: str = ""
    error_name: str = ""
    request: str = ""
    """Id of the request, under which later output comes."""

    def take(self, message: dict[str, Any]) -> None:
        """Add one IOPub message."""
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            self.streams[content["name"]] += content["text"]
        elif kind in ("display_data", "execute_result", "update_display_data"):
            self.updates += kind == "update_display_data"
            key = content.get("transient", {}).get("display_id") or f"_{len(self.displays)}"
            self.displays[key] = content["data"]
        elif kind == "comm_open" and content["target_name"] == "jupyter.widget":
            data = content["data"]
            paths = [path[0] for path in data["buffer_paths"]]
            self.widgets.append(
                {**data["state"], **dict(zip(paths, message["buffers"], strict=True))}
            )
        elif kind == "error":
            self.error = ANSI.sub("", "\n".join(content["traceback"]))
            self.error_name = content["ename"]

    @property
    def text(self) -> str:
        """Everything a person reads without a browser."""
        shown = [data.get("text/plain", "") for data in self.displays.values()]
        return "\n".join([self.streams["stdout"], *shown]).strip()


class Notebook:
    """A kernel with the extension loaded."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")
        self.pid: int = self.manager.provisioner.pid

    def run(
        self,
        code: str,
        interrupt_when: Callable[[], bool] | None = None,
        seconds: float = CELL_SECONDS,
        on_message: Callable[[Ran], None] = lambda ran: None,
        presses: int = 1,
        typed: Callable[[str, Ran], str | None] | None = None,
    ) -> Ran:
        """Run a cell; press the stop button once ``interrupt_when`` holds, ``presses`` times.

        ``on_message`` sees what there is so far, after each message. ``typed`` gives what the
        person types at a prompt, knowing what there is so far; None for nothing yet. Without
        it the front end cannot ask.
        """
        ran = Ran(ok=False)

        def hook(message: dict[str, Any]) -> None:
            ran.take(message)
            on_message(ran)

        def ask(message: dict[str, Any]) -> None:
            answer = typed(message["content"]["prompt"], ran)
            if answer is not None:
                self.client.input(answer)

        done = threading.Event()

        def stop_button() -> None:
            while not done.is_set():
                if interrupt_when():
                    for _ in range(presses):
                        if not done.is_set():  # else it would stop the next cell
                            self.manager.interrupt_kernel()
                        done.wait(0.3)
                    # As a person would: Python drops an interrupt that lands in a finalizer.
                    while not done.wait(8):
                        self.manager.interrupt_kernel()
                    return
                time.sleep(0.01)

        button = threading.Thread(target=stop_button, daemon=True)
        if interrupt_when is not None:
            button.start()
        try:
            reply = self.client.execute_interactive(
                code,
                allow_stdin=typed is not None,
                output_hook=hook,
                stdin_hook=ask,
                timeout=seconds,
            )
        finally:
            done.set()
            if interrupt_when is not None:
                button.join()
        ran.ok = reply["content"]["status"] == "ok"
        ran.request = reply["parent_header"]["msg_id"]
        return ran

    def follow(self, ran: Ran, until: Callable[[Ran], bool], seconds: float = 30) -> None:
        """Take in what still appears under a cell that has returned."""
        deadline = time.monotonic() + seconds
        while not until(ran):
            left = deadline - time.monotonic()
            assert left > 0, f"not within {seconds} s; so far:\n{ran.text}"
            try:
                message = self.client.get_iopub_msg(timeout=left)
            except queue.Empty:
                continue
            if message["parent_header"].get("msg_id") == ran.request:
                ran.take(message)

    def check(self, code: str) -> Ran:
        """Run a cell that must succeed."""
        ran = self.run(code)
        assert ran.ok, f"{code}\nfailed:\n{ran.error}\n{ran.streams['stderr']}"
        return ran

    def value(self, expression: str) -> Any:
        """A variable or expression of the notebook, as its repr evaluates."""
        import ast

        return ast.literal_eval(self.check(f"print(repr({expression}))").streams["stdout"])

    def next_cell(self) -> str:
        """What the next cell is called where its lines are named, such as ``cell [12]``."""
        reply = self.client.execute_interactive("pass", timeout=CELL_SECONDS)
        return f"cell [{reply['content']['execution_count'] + 1}]"

    def descendants(self) -> list[psutil.Process]:
        """Every process under the kernel that is part of a cluster."""
        return [p for p in psutil.Process(self.pid).children(recursive=True) if p.is_running()]

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=False)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Look until a condition holds; fail with ``what`` after a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.02)


def all_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of these processes runs."""
    return not any(
        process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in processes
    )


def works(notebook: Notebook, ranks: int = 2) -> None:
    """The next cell runs on all ranks, together, and finds the variable ``kept``, their number."""
    notebook.check("%%mn -o got\nfloat(comm.allreduce(np.array([1.0]))[0]), kept")
    assert notebook.value("got") == {rank: (ranks, rank) for rank in range(ranks)}


def printed(ran: Ran) -> str:
    """What a cell has printed, without colours."""
    return ANSI.sub("", ran.streams["stdout"])
