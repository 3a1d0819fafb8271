"""A real notebook kernel, driven as JupyterLab drives it."""

from __future__ import annotations

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
    updates: int = 0
    error: str = ""
    error_name: str = ""

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
    ) -> Ran:
        """Run a cell; press the stop button once ``interrupt_when`` holds."""
        ran = Ran(ok=False)

        def hook(message: dict[str, Any]) -> None:
            kind, content = message["msg_type"], message["content"]
            if kind == "stream":
                ran.streams[content["name"]] += content["text"]
            elif kind in ("display_data", "execute_result", "update_display_data"):
                ran.updates += kind == "update_display_data"
                key = content.get("transient", {}).get("display_id") or f"_{len(ran.displays)}"
                ran.displays[key] = content["data"]
            elif kind == "error":
                ran.error = ANSI.sub("", "\n".join(content["traceback"]))
                ran.error_name = content["ename"]

        done = threading.Event()

        def stop_button() -> None:
            while not done.is_set():
                if interrupt_when():
                    self.manager.interrupt_kernel()
                    return
                time.sleep(0.05)

        if interrupt_when is not None:
            threading.Thread(target=stop_button, daemon=True).start()
        try:
            reply = self.client.execute_interactive(code, output_hook=hook, timeout=seconds)
        finally:
            done.set()
        ran.ok = reply["content"]["status"] == "ok"
        return ran

    def check(self, code: str) -> Ran:
        """Run a cell that must succeed."""
        ran = self.run(code)
        assert ran.ok, f"{code}\nfailed:\n{ran.error}\n{ran.streams['stderr']}"
        return ran

    def value(self, expression: str) -> Any:
        """A variable or expression of the notebook, as its repr evaluates."""
        import ast

        return ast.literal_eval(self.check(f"print(repr({expression}))").streams["stdout"])

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
