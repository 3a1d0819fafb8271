"""The thread that averages, and what of it goes into snapshots; without MPI."""

import io
import signal
import threading
import time
from types import SimpleNamespace

import chainer
import numpy as np
import pytest

from nbmn.communicators import BrokenCommunicatorError, CollectiveTimeoutError
from nbmn.communicators.background import Worker
from nbmn.communicators.link import Link, Uid
from nbmn.communicators.waiting import wait
from nbmn.optimizers.double_buffering import Means, _load, _save

UID = Uid((0, 1), 1)


def test_job_runs_while_the_caller_goes_on():
    worker, gate = Worker(UID), threading.Event()
    worker.start(lambda: gate.wait(10))
    assert not worker.idle()
    gate.set()
    wait(worker.idle, 10)
    assert worker.result() is True
    assert worker.result() is True  # as often as it is asked for
    assert worker.started == 1


def test_without_threads_it_is_done_at_once():
    worker = Worker(UID, threaded=False)
    worker.start(lambda: 5)
    assert worker.idle()
    assert worker.result() == 5


def test_without_threads_an_interrupt_is_not_put_off():
    def interrupted():
        raise KeyboardInterrupt

    worker = Worker(UID, threaded=False)
    with pytest.raises(KeyboardInterrupt):
        worker.start(interrupted)
    assert worker.idle()


def test_interrupt_or_error_while_a_job_begins_leaves_nothing_to_wait_for(monkeypatch):
    gate = threading.Event()
    begin = threading.Thread.start

    def interrupted(thread):
        signal.raise_signal(signal.SIGINT)
        begin(thread)

    worker = Worker(UID)
    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.start(gate.set)
    assert gate.wait(10)  # it began all the same, and ends
    wait(worker.idle, 10)
    assert worker.started == 1

    def refused(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    with pytest.raises(RuntimeError):
        worker.start(gate.set)
    assert worker.idle()


def test_who_talks_in_the_background_is_not_in_what_the_rank_recorded(monkeypatch):
    """So it cannot be seen there that it waits for ever: the rank may be in something else."""

    class Peers:
        def answer(self):
            pass

        def deadlock(self, link):
            return "waits for ever"

    monkeypatch.setattr("nbmn.communicators.link._LOOK", 0.01)
    monkeypatch.setattr("nbmn.communicators.link._LINGER", 0.01)
    link = Link(UID, SimpleNamespace(rank=0, size=2), Peers())
    with pytest.raises(CollectiveTimeoutError, match="for ever"):
        link.wait(lambda: False, "the other ranks")
    link.worker = Worker(UID)
    until = time.monotonic() + 0.1
    link.wait(lambda: time.monotonic() > until, "the other ranks")


def test_error_is_raised_in_who_asks():
    worker = Worker(UID)
    worker.start(lambda: 1 / 0)
    wait(worker.idle, 10)
    with pytest.raises(ZeroDivisionError):
        worker.result()
    worker.start(lambda: 1)
    wait(worker.idle, 10)
    assert worker.result() == 1


def test_job_that_waits_for_ranks_can_be_stopped():
    worker = Worker(UID)
    worker.start(lambda: wait(lambda: worker.test(lambda: False), 10))
    worker.stop()
    wait(worker.idle, 5)
    with pytest.raises(BrokenCommunicatorError):
        worker.result()
    worker.reset()
    assert worker.started == 0
    assert worker.test(lambda: True)


def model():
    link = chainer.Chain()
    with link.init_scope():
        link.a = chainer.links.Linear(3, 2)
        link.b = chainer.links.Linear(None, 2)
    return link


def saved(means):
    file = io.BytesIO()

    class Saved:
        def serialize(self, serializer):
            _save(serializer["there"], means)

    chainer.serializers.save_npz(file, Saved())
    file.seek(0)
    return np.load(file)


@pytest.mark.parametrize("strict", [True, False])
def test_means_in_a_snapshot(strict):
    params = sorted(model().namedparams())
    arrays = [np.array([0.1, 0.2], "f"), np.ones((2, 3), np.float16), None, None]
    file = saved(Means(params, arrays, [None, 8.0, None, None]))
    deserializer = chainer.serializers.NpzDeserializer(file, "there/", strict)
    got = _load(deserializer, model())
    assert [name for name, _ in got.params] == ["/a/W", "/a/b", "/b/W", "/b/b"]
    for mine, right in zip(got.arrays, arrays, strict=True):
        assert (mine is None) is (right is None)
        if right is not None:
            assert mine.dtype == right.dtype
            np.testing.assert_array_equal(mine, right)
    assert got.scales == [None, 8.0, None, None]


@pytest.mark.parametrize("strict", [True, False])
def test_snapshot_without_means(strict):
    for file in (saved(None), {}):
        deserializer = chainer.serializers.NpzDeserializer(file, "there/", strict)
        assert _load(deserializer, model()) is None
