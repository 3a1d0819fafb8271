"""Values as parts."""

from __future__ import annotations

import subprocess
import sys
import threading

import chainer
import numpy as np
import pytest

from nbmn import frames


def test_arrays_travel_beside_the_pickle_uncopied() -> None:
    array = np.arange(1_000_000, dtype="f")
    parts = frames.dump({"a": array, "b": [array[:10].copy()]})
    assert len(parts) == 3
    assert parts[0].nbytes < 1000
    assert np.shares_memory(parts[1], array)
    back = frames.load(parts)
    np.testing.assert_array_equal(back["a"], array)


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((0, 3)),
        np.array(3.0),
        np.asfortranarray(np.arange(6).reshape(2, 3)),
        np.arange(10)[::2],
        np.array(["text", None], object),
        np.float16([1, 2]),
    ],
    ids=["empty", "0-d", "fortran", "strided", "objects", "half"],
)
def test_arrays_of_all_sorts(array: np.ndarray) -> None:
    back = frames.load(frames.dump(array))
    assert back.dtype == array.dtype
    np.testing.assert_array_equal(back, array)


def test_what_came_over_a_socket_is_made_writable() -> None:
    parts = frames.dump(np.zeros(1000))
    received = [np.frombuffer(part.tobytes(), np.uint8) for part in parts]
    assert not frames.load(received).flags.writeable
    back = frames.load(frames.writable(received))
    back[:] = 1


def test_classes_of_the_notebook_travel_by_value(tmp_path: object) -> None:
    script = (
        "import sys, chainer, chainer.links as L\n"
        "from nbmn import frames\n"
        "class Net(chainer.Chain):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        with self.init_scope():\n"
        "            self.l = L.Linear(3, 2)\n"
        "    def answer(self): return 42\n"
        "import numpy\n"
        "numpy.savez(sys.argv[1], *frames.dump(Net()))\n"
    )
    path = f"{tmp_path}/parts.npz"
    subprocess.run([sys.executable, "-c", script, path], check=True, timeout=60)
    stored = np.load(path)
    net = frames.load([stored[name] for name in stored.files])
    assert isinstance(net, chainer.Chain)
    assert net.answer() == 42
    assert net.l.W.shape == (2, 3)


def test_what_cannot_be_sent_says_why() -> None:
    with pytest.raises(TypeError, match=r"a lock cannot be sent: cannot pickle"):
        frames.dump(threading.Lock())

    class Angry:
        def __reduce__(self) -> tuple:
            raise RuntimeError("not me")

    with pytest.raises(TypeError, match="a Angry cannot be sent: not me"):
        frames.dump(Angry())
