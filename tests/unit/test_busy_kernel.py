"""Answers in place of a busy kernel: only where ipykernel is as expected, and quietly."""

from __future__ import annotations

import asyncio
import importlib.metadata
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from jupyter_client.session import Session

from nbmn.compat import busy_kernel
from nbmn.compat.busy_kernel import PRESS
from nbmn.dashboard.asking import Asking


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
    assert not run(busy_kernel._responds(main))
    main.go_on()
    assert len(main.waiting) == 1


def test_a_main_thread_that_is_free_is_found_so():
    main = SimpleNamespace(add_callback=lambda callback: threading.Thread(target=callback).start())
    assert run(busy_kernel._responds(main))


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
    assert busy_kernel.answer_while_busy(kernel) is bool(changed)
    assert len(kernel.changes) == changed


CUSTOM = {"method": "custom", "content": {PRESS: "where"}}


class Comms:
    """A board's comm, one that is not ours to answer, and the one for the state of all widgets."""

    def __init__(self):
        self.heard = []
        names = {"board": "jupyter.widget", "all": "jupyter.widget.control"}
        self.comms = {
            key: SimpleNamespace(target_name=name, _msg_callback=self.heard.append)
            for key, name in names.items()
        }

    def get_comm(self, comm_id):
        return self.comms.get(comm_id)


class Channel:
    """Keeps what is sent, as a ZeroMQ stream or socket does."""

    def __init__(self):
        self.sent = []

    def send_multipart(self, frames, *args, **kwargs):
        self.sent.append(frames)


def kernel_with_comms():
    return SimpleNamespace(
        session=Session(key=b"key"),
        comm_manager=Comms(),
        iopub_socket=Channel(),
        shell_stream=Channel(),
    )


def message(kernel, comm_id, data, **header):
    made = kernel.session.msg("comm_msg", {"comm_id": comm_id, "data": data})
    made["header"].update(header)
    frames = [b"page", *kernel.session.serialize(made)]
    return [SimpleNamespace(bytes=frame) for frame in frames]


@pytest.mark.parametrize(
    ("comm_id", "data", "header", "ours"),
    [
        ("board", CUSTOM, {}, True),
        ("board", CUSTOM, {"subshell_id": "some"}, True),
        ("board", {"method": "custom", "content": {"event": "click"}}, {}, False),
        ("board", {"method": "custom", "content": PRESS}, {}, False),
        ("board", {"method": "update", "state": {PRESS: 1}}, {}, False),
        ("gone", CUSTOM, {}, False),
        ("all", {"method": "request_states"}, {}, True),
        ("all", {"method": "request_states"}, {"subshell_id": "some"}, False),
    ],
)
def test_only_presses_of_a_board_and_questions_are_answered(comm_id, data, header, ours):
    kernel = kernel_with_comms()
    assert busy_kernel._is_question(kernel, message(kernel, comm_id, data, **header)) is ours


def test_a_press_is_told_to_its_widget_alone():
    kernel = kernel_with_comms()
    frames = [frame.bytes for frame in message(kernel, "board", CUSTOM)]
    parts = [SimpleNamespace(bytes=frame, buffer=memoryview(frame)) for frame in frames]
    busy_kernel._answer(kernel, parts)
    (heard,) = kernel.comm_manager.heard
    assert heard["content"]["data"] == CUSTOM
    assert len(kernel.iopub_socket.sent) == 3
    assert kernel.shell_stream.sent == []


class Widget:
    """The kernel's half of a board."""

    def __init__(self):
        self.sent = []
        self.arrived = threading.Condition()

    def on_msg(self, callback):
        self.press = lambda content: callback(self, content, [])

    def send(self, content):
        with self.arrived:
            self.sent.append(content)
            self.arrived.notify_all()

    def wait_for(self, number):
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.sent) >= number, 10)


def test_presses_are_answered_one_after_the_other_and_failures_are_shown():
    widget, begun, go_on, asked = Widget(), threading.Event(), threading.Event(), []

    def ask():
        asked.append(threading.current_thread())
        if len(asked) == 1:
            raise ValueError("nobody there")
        begun.set()
        assert go_on.wait(10)
        return f"answer {len(asked)}"

    asking = Asking(widget, ask)
    widget.press({"event": "click"})
    widget.press({PRESS: "where"})
    widget.wait_for(1)
    assert widget.sent == [{"error": "ValueError: nobody there"}]
    widget.press({PRESS: "where"})
    assert begun.wait(10)
    for _ in range(3):  # while an answer is on its way: together they are one question more
        widget.press({PRESS: "where"})
    go_on.set()
    widget.wait_for(3)
    assert [answer["html"] for answer in widget.sent[1:]] == ["answer 2", "answer 3"]
    assert threading.current_thread() not in asked
    asking.close()
    asked[0].join(10)
    assert not asked[0].is_alive()
    assert len(asked) == 3
