"""A device on the memory of the host, for the stand-in of NCCL: numbers are right, and later.

What is computed is computed at once, by NumPy; what a stream is given otherwise is done by a thread
of the stand-in, in order, so that events are reached when a device would reach them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading

import numpy as np

from nbmn.gpu.runtime import Gpu


class DeviceArray(np.ndarray):
    """Passes for an array on a device; what is computed from it is on the device too."""

    __cuda_array_interface__ = None

    def get(self):
        return np.array(self, subok=False)


def on_device(values, dtype=None):
    return np.array(values, dtype).view(DeviceArray)


class Standin:
    """The functions by which faults are ordered, of the library that CuPy has loaded."""

    def __init__(self):
        self.library = ctypes.CDLL(os.environ["NBMN_NCCL_STANDIN_LIBRARY"])
        self.library.standin_stream.restype = ctypes.c_void_p
        self.library.standin_record.restype = ctypes.c_uint64
        self.library.standin_record.argtypes = [ctypes.c_void_p]
        self.library.standin_reached.argtypes = [ctypes.c_void_p, ctypes.c_uint64]
        self.library.standin_kernel.argtypes = [ctypes.c_void_p, ctypes.c_int]

    def __getattr__(self, name):
        return getattr(self.library, f"standin_{name}")

    def reset(self):
        self.fail(-1, 0)
        self.never_arrive(0)
        self.refuse(0)
        self.in_progress(0, 0)
        self.slow_abort(0)
        self.block(0)


class HostRuntime:
    """See :class:`nbmn.gpu.runtime.Runtime`.

    Parameters
    ----------
    uuid
        Of the only device.
    """

    def __init__(self, standin, uuid=None, trouble=None, version="host runtime 1"):
        self.standin = standin
        self._uuid = uuid or f"device of process {os.getpid()}"
        self._trouble = trouble
        self._version = version
        self._compute = standin.stream()
        self.on_threads = set()
        self.downloads = self.uploads = 0
        self.garbage = 0xFF
        """What bytes of fresh memory are."""
        self.error = None
        """What the device is to report from now on."""

    def problem(self):
        return self._trouble

    def version(self):
        return self._version

    def uuid(self, device):
        return self._uuid

    def bus_id(self, device):
        return self._uuid

    def current_device(self):
        return 0

    def device_of(self, array):
        assert isinstance(array, DeviceArray)
        return 0

    def use(self, device):
        assert device == 0

    @contextlib.contextmanager
    def on(self, device):
        self.on_threads.add(threading.current_thread().name)
        yield

    def empty(self, size, dtype):
        # What is in fresh memory is anybody's guess.
        nbytes = size * dtype.itemsize
        return np.full(nbytes, self.garbage, np.uint8).view(dtype).view(DeviceArray)

    def pinned(self, size, dtype):
        return np.empty(size, dtype)[:]

    def pointer(self, array):
        assert isinstance(array, DeviceArray)
        return array.ctypes.data

    def stream(self):
        return self.standin.stream()

    def compute_stream(self):
        return self._compute

    @contextlib.contextmanager
    def computing_on(self, stream):
        assert stream == self._compute
        yield

    def handle(self, stream):
        return stream

    def record(self, stream):
        return stream, self.standin.record(stream)

    def reached(self, event):
        if self.error is not None:
            raise self.error
        return bool(self.standin.reached(*event))

    def await_(self, event):
        while not self.reached(event):
            threading.Event().wait(1e-4)

    def hold(self, stream, event):
        # The stream's thread waits for no other, so who gives it work does.
        while not self.standin.reached(*event):
            threading.Event().wait(1e-3)

    def download(self, array, host):
        assert isinstance(array, DeviceArray)
        assert not isinstance(host, DeviceArray)
        host[...] = np.asarray(array)
        self.downloads += 1

    def upload(self, host, array):
        assert isinstance(array, DeviceArray)
        array[...] = host
        self.uploads += 1


def gpu(standin, nccl, **options):
    return Gpu(HostRuntime(standin, **options), nccl)
