"""One call of a function on one rank, through ipyparallel's client."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ipyparallel import Client
from ipyparallel.serialize import PrePickled

from nbmn.cluster.capture import Capture


class Call:
    """A call that was sent; made by :func:`send`."""

    def __init__(self, rank: int) -> None:
        self.output = Capture(rank)
        self._future: Any = None

    def attach(self, future: Any) -> None:
        """Take the future before its message leaves, so that no output can be missed."""
        self._future = future
        future.iopub_callbacks += [self.output, _Forget(future.output.metadata)]
        future.output.add_done_callback(lambda _: self.output.complete.set())

    def done(self) -> bool:
        """Whether the rank has answered. Output may still be on its way."""
        return self._future.done()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the answer; False when it did not come in time."""
        return self._future.wait(seconds)

    def when_done(self, callback: Callable[[], None]) -> None:
        """Call back, in the client's thread, when the rank has answered."""
        self._future.add_done_callback(lambda _: callback())

    def result(self) -> Any:
        """The answer.

        Raises
        ------
        ipyparallel.error.RemoteError
            The function raised.
        ipyparallel.error.EngineError
            The rank died.
        """
        value = self._future.result()
        if isinstance(value, Exception):
            raise value
        return value


@dataclass(frozen=True)
class _Forget:
    """Drops what ipyparallel gathers of a call's output beside us.

    It would keep all of it, and copy all text with each message.
    """

    gathered: dict[str, Any]

    def __call__(self, message: dict[str, Any]) -> None:
        self.gathered.update(stdout="", stderr="", outputs=[])


def _forget_late(client: Client) -> None:
    """Drop what threads printed after their cell had ended, and nobody asks for."""
    for message in list(client.metadata):
        if message not in client._futures:
            client.metadata.pop(message, None)


def send(
    client: Client, engines: Mapping[int, int], function: Callable[..., Any], *args: Any
) -> dict[int, Call]:
    """Call an importable function on ranks; returns at once.

    Parameters
    ----------
    engines
        ipyparallel's id of each rank to call.
    *args
        Pickled once for all of them.
    """
    _forget_late(client)
    # One by one, since a view would hand over the futures when output may have been lost.
    packed = [PrePickled(arg) for arg in args]
    packed_function = PrePickled(function)
    calls: dict[int, Call] = {}
    for rank, engine in engines.items():
        call = calls[rank] = Call(rank)
        identity = client._build_targets(engine)[0][0]
        client.send_apply_request(
            client._mux_stream,  # never the bare socket: the stream would miss its replies
            packed_function,
            packed,
            ident=identity,
            message_future_hook=call.attach,
        )
    return calls
