"""For the test of these checks where no GPU is: CuPy on a stand-in of CUDA, and one of NCCL.

Memory is the host's; nbmn's packing is run on the host, CuPy's and Chainer's kernels are compiled
and not run. Streams and events are those of NCCL's stand-in. The environment is that which
``tests/nccl/nccl_session.py`` makes. Imported before CuPy.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import device_standin
from host_runtime import Standin

library = Standin()
_tickets: dict[int, tuple[int, int]] = {}


def _record(event: int, stream: int, *_: object) -> int:
    _tickets[event] = (stream, library.record(stream) if stream else 0)
    return 0


def _query(event: int) -> int:
    stream, ticket = _tickets.get(event, (0, 0))
    return 0 if not stream or library.reached(stream, ticket) else 600


def _wait(event: int, *_: object) -> None:
    while _query(event):
        threading.Event().wait(1e-3)


def _end(stream: int) -> None:
    ticket = library.record(stream) if stream else 0
    while stream and not library.reached(stream, ticket):
        threading.Event().wait(1e-3)


device_standin.PROPERTIES["uuid"] = (7).to_bytes(16, "big")
device_standin.ANSWERS |= {
    "streamCreateWithFlags": lambda flags: library.stream(),
    "streamCreateWithPriority": lambda flags, priority: library.stream(),
    "streamSynchronize": _end,
    "eventRecord": _record,
    "eventQuery": _query,
    "eventSynchronize": _wait,
    "streamWaitEvent": lambda stream, event, *_: _wait(event),
}


def run_packing_on_the_host() -> None:
    """Let nbmn's kernels give numbers."""
    import host_kernel

    host_kernel.stand_for_device(Path(tempfile.mkdtemp(dir=os.environ["NBMN_NCCL_STANDIN"])))
