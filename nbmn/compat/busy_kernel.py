"""Let a board be found and used while a cell blocks the kernel.

A reloaded JupyterLab asks what the kernel can do and which widgets there are. Both
questions go to the main thread, which is busy with the cell: to a subshell only
once the first has been answered, and that is too late for the second. A press of a
board's button goes to a subshell in some front ends with some versions of ipykernel,
else to the main thread too. So these messages, and no others, are answered from the
kernel's shell channel thread while the main thread does not get to them. To see them,
ipykernel's receiver of the shell stream is replaced, in the versions this was tried with.
"""

from __future__ import annotations

import asyncio
import functools
import importlib.metadata
import threading
from typing import Any

__all__ = ["PRESS", "answer_while_busy"]

PRESS = "nbmn-press"
"""A widget's custom message with this key is a press, whose callback only sets an event."""

_PATIENCE = 0.25
"""Seconds the main thread has to show that it is not blocked."""

_LOOK = 0.01
"""Seconds between looks whether it has."""

_TRIED = "7."
"""Versions of ipykernel whose inner workings are as expected."""

_CONTROL = "jupyter.widget.control"
_NEEDED = (
    "comm_manager",
    "kernel_info",
    "shell_channel_thread",
    "shell_channel_thread_main",
    "shell_stream",
)


@functools.cache
def answer_while_busy(kernel: Any) -> bool:
    """Answer a reloaded page and pressed buttons in place of a blocked main thread.

    Local; does its work once per kernel. Everything else passes through unchanged and
    in order.

    Parameters
    ----------
    kernel : ipykernel.kernelbase.Kernel
        The kernel of this process.

    Returns
    -------
    bool
        False for a kernel of another kind or version: there the board comes back, and
        hears of a press, when the cell ends.
    """
    if not importlib.metadata.version("ipykernel").startswith(_TRIED):
        return False
    if any(getattr(kernel, name, None) is None for name in _NEEDED):
        return False
    in_order = asyncio.Lock()

    async def receive(message: list[Any]) -> None:
        async with in_order:
            if _is_question(kernel, message) and not await _responds(kernel.io_loop):
                _answer(kernel, message)
            else:
                await kernel.shell_channel_thread_main(message)

    # The stream belongs to that thread.
    loop = kernel.shell_channel_thread.io_loop
    loop.add_callback(lambda: kernel.shell_stream.on_recv(receive, copy=False))
    return True


def _is_question(kernel: Any, message: list[Any]) -> bool:
    """Whether it is for the main thread and one of those a reloaded page asks; or a press."""
    session = kernel.session
    try:
        _, (_, header, _, _, content, *_) = session.feed_identities(message, copy=False)
        header = session.unpack(header.bytes)
        kind = header["msg_type"]
        if kind in ("comm_open", "comm_msg"):
            content = session.unpack(content.bytes)
    except (KeyError, TypeError, ValueError):
        return False  # the kernel's own handler says what is wrong with it
    if kind == "comm_msg":
        comm = kernel.comm_manager.get_comm(content.get("comm_id"))
        if comm is not None and _is_press(content.get("data")):
            return True  # for a subshell too, from where some versions send it to the main thread
    if header.get("subshell_id"):
        return False
    if kind == "comm_open":
        return content.get("target_name") == _CONTROL
    if kind == "comm_msg":
        return comm is not None and comm.target_name == _CONTROL
    return kind == "kernel_info_request"


def _is_press(data: Any) -> bool:
    custom = data.get("content") if isinstance(data, dict) else None
    return isinstance(custom, dict) and PRESS in custom


async def _responds(main_loop: Any) -> bool:
    """Whether the main thread gets to its event loop within a moment."""
    # An event that needs no loop: the main thread may get to it when this one's is closed.
    reached = threading.Event()
    main_loop.add_callback(reached.set)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + _PATIENCE
    while not reached.is_set() and loop.time() < deadline:
        await asyncio.sleep(_LOOK)
    return reached.is_set()


def _answer(kernel: Any, message: list[Any]) -> None:
    session = kernel.session
    identities, frames = session.feed_identities(message, copy=False)
    request = session.deserialize(frames, copy=False)

    def publish(state: str, parent: dict[str, Any] | None) -> None:
        content = {"execution_state": state}
        session.send(kernel.iopub_socket, "status", content, parent=parent, ident=b"status")

    publish("busy", request)
    kind = request["header"]["msg_type"]
    if kind == "kernel_info_request":
        reply = {"status": "ok", **kernel.kernel_info}
        session.send(kernel.shell_stream, "kernel_info_reply", reply, request, identities)
    elif kind == "comm_open":
        # The widgets' state goes out on IOPub, which takes messages from any thread.
        kernel.comm_manager.comm_open(kernel.shell_stream, identities, request)
    else:
        # Not by the comm's own handler: it tells IPython that a cell begins and ends, and the
        # figures of the one that runs would be flushed.
        kernel.comm_manager.get_comm(request["content"]["comm_id"])._msg_callback(request)
    # A request is over when its idle has come; the kernel itself is still at work.
    publish("idle", request)
    publish("busy", None)
