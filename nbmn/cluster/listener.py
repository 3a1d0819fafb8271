"""Where the ranks' records arrive, and commands to running ranks leave.

One ROUTER socket in a daemon thread, so that records are read also while a
cell blocks the notebook. Bound to loopback unless a host was named; only
clients that hold the session's CURVE key are let in.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import zmq
from zmq.auth.thread import ThreadAuthenticator

from nbmn.debug.states import Heard
from nbmn.messages import Endpoint
from nbmn.records import Heartbeat, Record, Stack, Timeline, decode

PING = 1.0
"""Seconds between two pings to each rank."""
TICK = 20
"""Milliseconds after which a queued command leaves at the latest."""

LOOK = 0.01
"""Seconds between two looks for answers."""

Subscriber = Callable[[list[Record]], None]

T = TypeVar("T")


class Listener:
    """Receives records; open until :meth:`close`."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.beats: dict[int, Heard] = {}
        self.stacks: dict[int, Stack] = {}
        """The newest answer of each rank to :meth:`ask_where`."""
        self.timelines: dict[int, Timeline] = {}
        """The newest answer of each rank to :meth:`ask_trace`."""
        self.malformed = 0
        """Messages that were no records; they are dropped."""
        self._subscribers: tuple[Subscriber, ...] = ()
        self._commands: deque[tuple[bytes, ...]] = deque()
        self._closing = threading.Event()
        # A context of its own: the authenticator speaks for every server socket in its context.
        self._context = zmq.Context()
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        self._authenticator = ThreadAuthenticator(self._context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", _OnlyClient(client_public))
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.curve_server = True
        self._socket.curve_secretkey = server_secret
        self._socket.setsockopt(zmq.LINGER, 0)
        port = self._socket.bind_to_random_port(f"tcp://{host}")
        self.endpoint = Endpoint(
            f"tcp://{host}:{port}", server_public, client_public, client_secret
        )
        self._thread = threading.Thread(target=self._listen, name="nbmn-listener", daemon=True)
        self._thread.start()

    def subscribe(self, subscriber: Subscriber) -> None:
        """Call ``subscriber`` with each batch, in the listener's thread."""
        self._subscribers = (*self._subscribers, subscriber)

    def unsubscribe(self, subscriber: Subscriber) -> None:
        self._subscribers = tuple(other for other in self._subscribers if other != subscriber)

    def interrupt(self, ranks: Iterable[int], run: str) -> None:
        """Raise KeyboardInterrupt on these ranks, if they still run that cell."""
        for rank in ranks:
            self._tell(rank, "interrupt", run)

    def free(self, ranks: Iterable[int], run: str) -> None:
        """Raise KeyboardInterrupt where these ranks wait for others, whatever their code has made
        of SIGINT; if they still run that cell."""
        for rank in ranks:
            self._tell(rank, "free", run)

    def ask_where(self, ranks: Iterable[int]) -> None:
        """Ask ranks for their stacks; answers come to :attr:`stacks`."""
        for rank in ranks:
            self.stacks.pop(rank, None)
            self._tell(rank, "where")

    def ask_trace(self, ranks: Iterable[int], steps: int) -> None:
        """Ask ranks for their last steps; answers come to :attr:`timelines`."""
        for rank in ranks:
            self.timelines.pop(rank, None)
            self._tell(rank, "trace", str(steps))

    def answer(self, rank: int, run: str, question: int, text: str) -> None:
        """Send what the person typed to a rank that has asked."""
        self._tell(rank, "answer", run, str(question), text)

    def _tell(self, rank: int, *words: str) -> None:
        # What a person types may hold what has no code.
        data = [word.encode(errors="replace") for word in words]
        self._commands.append((str(rank).encode(), *data))

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        self._authenticator.stop()
        self._socket.close()
        self._context.term()

    def _listen(self) -> None:
        pinged = time.monotonic()
        while not self._closing.is_set():
            if self._socket.poll(TICK):
                self._receive(self._socket.recv_multipart())
            while self._commands:
                self._socket.send_multipart(self._commands.popleft())
            if time.monotonic() - pinged > PING:
                pinged = time.monotonic()
                for rank in list(self.beats):
                    self._socket.send_multipart((str(rank).encode(), b"ping"))

    def _receive(self, message: list[bytes]) -> None:
        try:
            _, payload = message
            records = decode(payload)
        except ValueError:
            self.malformed += 1
            return
        now = time.monotonic()
        for record in records:
            if isinstance(record, Heartbeat):
                last = self.beats.get(record.rank)
                heard = Heard(record, now, since=now) if last is None else last.then(record, now)
                self.beats[record.rank] = heard
            elif isinstance(record, Stack):
                self.stacks[record.rank] = record
            elif isinstance(record, Timeline):
                self.timelines[record.rank] = record
        told = [record for record in records if not isinstance(record, (Stack, Timeline))]
        for subscriber in self._subscribers if told else ():
            try:
                subscriber(told)
            except Exception:
                # Interrupts and lamps depend on this thread, whatever a board does.
                logging.getLogger(__name__).exception("a subscriber to the ranks' records failed")


def await_answers(answers: Mapping[int, T], ranks: Sequence[int], seconds: float) -> dict[int, T]:
    """What ranks have answered, at the latest after some seconds; some may be missing."""
    deadline = time.monotonic() + seconds
    while not answers.keys() >= set(ranks) and time.monotonic() < deadline:
        time.sleep(LOOK)
    return {rank: answer for rank, answer in dict(answers).items() if rank in ranks}


@dataclass(frozen=True, slots=True)
class _OnlyClient:
    """Lets one public key in."""

    key: bytes

    def callback(self, domain: str, key: bytes) -> bool:
        return key == self.key
