"""A device for CuPy where there is none: memory is the host's, kernels are compiled and not run.

CuPy's own code runs unchanged above its driver and runtime calls, which are answered here: types,
shapes, kernel sources and errors are those of a GPU; numbers are not. Imported before CuPy.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.abc
import importlib.machinery
import re
import sys
from collections.abc import Callable
from types import ModuleType

API = ("cupy_backends.cuda.api.driver", "cupy_backends.cuda.api.runtime")
TYPES = {
    "int": ctypes.c_int,
    "unsigned int": ctypes.c_uint,
    "CUdevice": ctypes.c_int,
    "cudaMemcpyKind": ctypes.c_int,
    "float": ctypes.c_float,
    "size_t": ctypes.c_size_t,
    "intptr_t": ctypes.c_ssize_t,
    "uintmax_t": ctypes.c_uint64,
    "PyObject *": ctypes.py_object,
}
ATTRIBUTES = {
    1: 1024,  # threads per block
    8: 48 << 10,  # bytes of shared memory per block
    10: 32,  # threads per warp
    16: 132,  # multiprocessors
    75: 9,  # compute capability 9.0: Hopper
    76: 0,
}

PROPERTIES = {
    "name": b"stand-in",
    "uuid": b"GPU with a zero",  # CuPy leaves out the first zero byte and what follows
    "major": 9,
    "minor": 0,
    "multiProcessorCount": 132,
    "warpSize": 32,
    "maxThreadsPerBlock": 1024,
    "maxGridSize": (2**31 - 1, 65535, 65535),
    "sharedMemPerBlock": 48 << 10,
}

CUDAS_POOL: dict[int, int] = {}
"""What CUDA's own pool says of itself, in bytes, by numbers of attributes."""

_libc = ctypes.CDLL(None)
_libc.calloc.restype = ctypes.c_void_p
_libc.calloc.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
_libc.free.argtypes = [ctypes.c_void_p]


def allocate(size: int, *_: object) -> int:
    return _libc.calloc(max(size, 1) + 512, 1)


def free(pointer: int, *_: object) -> None:
    _libc.free(pointer)


def copy(to: int, source: int, size: int, *_: object) -> None:
    ctypes.memmove(to, source, size)


def fill(pointer: int, value: int, size: int, *_: object) -> None:
    ctypes.memset(pointer, value, size)


def load(image: bytes) -> int:
    if not image.startswith(b"\x7fELF"):
        print(f"not a cubin: {image[:20]!r}", file=sys.stderr)
    return 1


def unregistered(runtime: ModuleType, pointer: int) -> object:
    """Say of any pointer that it is of ordinary memory of the host."""
    return runtime.PointerAttributes(0, 0, pointer, 0)


ANSWERS: dict[str, Callable] = {
    "getDevice": lambda: 0,
    "getDeviceCount": lambda: 1,
    "deviceGetAttribute": lambda attribute, device: ATTRIBUTES.get(attribute, 1),
    "driverGetVersion": lambda: 13000,
    "memPoolGetAttribute": lambda pool, attribute: CUDAS_POOL.get(attribute, 0),
    "memGetInfo": lambda: (64 << 30, 80 << 30),
    "malloc": allocate,
    "mallocAsync": allocate,
    "mallocManaged": allocate,
    "hostAlloc": allocate,
    "free": free,
    "freeAsync": free,
    "freeHost": free,
    "memcpy": copy,
    "memcpyAsync": copy,
    "memcpyPeer": lambda to, _to_device, source, _device, size: copy(to, source, size),
    "memcpyPeerAsync": lambda to, _to_device, source, _device, size, _: copy(to, source, size),
    "memset": fill,
    "memsetAsync": fill,
    "moduleLoadData": load,
    "moduleGetFunction": lambda module, name: 1,
    "streamCreate": lambda: allocate(8),
    "streamCreateWithFlags": lambda flags: allocate(8),
    "eventCreateWithFlags": lambda flags: allocate(8),
    "eventElapsedTime": lambda start, end: 1.0,
    "getDeviceProperties": lambda device: PROPERTIES,
    "deviceGetPCIBusId": lambda device: f"0000:{7 + device:02x}:00.0",
    "occupancyMaxPotentialBlockSize": lambda *_: (132, 256),
}

KEPT = ("runtimeGetVersion", "_getCUDAMajorVersion", "get_build_version", "check_status")

_api = ctypes.pythonapi
_api.PyCapsule_GetName.restype = ctypes.c_char_p
_api.PyCapsule_GetName.argtypes = [ctypes.py_object]
_api.PyCapsule_New.restype = ctypes.py_object
_api.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_kept: list = []


def answer(module: ModuleType) -> None:
    """Have the calls of a module of CuPy's answered here, whether they come from C or Python."""
    for name, capsule in module.__pyx_capi__.items():
        signature = _api.PyCapsule_GetName(capsule)
        matched = re.fullmatch(r"(.*?) ?\((.*)\)", signature.decode())
        if not matched or name in KEPT:
            continue
        if matched[1].endswith("PointerAttributes *"):
            result = ctypes.py_object
            called = functools.partial(unregistered, module)
        elif matched[1] in TYPES:
            result = TYPES[matched[1]]
            called = ANSWERS.get(name, lambda *_: None)
        else:
            continue
        arguments = [TYPES.get(a, ctypes.c_void_p) for a in matched[2].split(", ") if a != "void"]
        count = sum("__pyx" not in a for a in matched[2].split(", "))

        def call(*args, called=called, result=result, count=count):
            got = called(*args[:count])
            return got if result is ctypes.py_object or got is not None else 0

        function = ctypes.PYFUNCTYPE(result, *arguments)(call)
        _kept.extend((function, signature))
        pointer = ctypes.cast(function, ctypes.c_void_p).value
        module.__pyx_capi__[name] = _api.PyCapsule_New(pointer, signature, None)
        if hasattr(module, name):
            setattr(module, name, call)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name not in API:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def exec_module(module):
            execute(module)
            answer(module)

        spec.loader.exec_module = exec_module
        return spec


sys.meta_path.insert(0, Finder())
