"""Answers to a reloaded page: only where ipykernel is as expected, and quietly at the end."""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from nbmn.compat import jupyter_reload


class MainLoop:
    """A main thread that is busy until it is told to go on."""

    def __init__(self):
        self.waiting = []

    def add_callback(self, callback):
        self.waiting.append(callback)

    def go_on(self):
        for callback in self.waiting:
            callback()


def run(coroutine):
    """Run it in a thread of its own: the browser tests leave a loop running in the main one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def test_a_busy_main_thread_may_come_to_it_after_the_other_loop_is_closed():
    main = MainLoop()
    assert not run(jupyter_reload._responds(main))
    main.go_on()
    assert len(main.waiting) == 1


def test_a_main_thread_that_is_free_is_found_so():
    main = SimpleNamespace(add_callback=lambda callback: threading.Thread(target=callback).start())
    assert run(jupyter_reload._responds(main))


class Kernel:
    """Has all that is needed, and notes what is done to it."""

    comm_manager = kernel_info = shell_channel_thread_main = shell_stream = object()

    def __init__(self):
        self.changes = []
        loop = SimpleNamespace(add_callback=self.changes.append)
        self.shell_channel_thread = SimpleNamespace(io_loop=loop)


@pytest.mark.parametrize(("version", "changed"), [("7.4.0", 1), ("6.30.1", 0), ("8.0.0", 0)])
def test_only_versions_it_was_tried_with_are_changed(monkeypatch, version, changed):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: version)
    kernel = Kernel()
    assert jupyter_reload.answer_while_busy(kernel) is bool(changed)
    assert len(kernel.changes) == changed
