"""Caffe's message classes, for the protobuf that is installed."""

from __future__ import annotations

import ast
import functools
import importlib.metadata
from types import ModuleType

from nbmn.compat.repair import Repair


@functools.cache
def _is_recent() -> bool:
    try:
        version = importlib.metadata.version("protobuf")
    except importlib.metadata.PackageNotFoundError:
        return False
    return int(version.partition(".")[0]) >= 4


def serialized_descriptor(source: str) -> bytes:
    """Read the file descriptor out of a module that protoc 2 or 3 generated.

    Raises
    ------
    ValueError
        The source holds no ``serialized_pb``.
    """
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb":
            literal = next(n for n in ast.walk(node) if isinstance(n, ast.Constant))
            return literal.value.encode("latin1")
    raise ValueError("the module holds no serialized_pb: protoc did not generate it")


def _caffe_pb2(module: ModuleType) -> None:
    from google.protobuf import descriptor_pool, message_factory
    from google.protobuf.internal.enum_type_wrapper import EnumTypeWrapper

    serialized = serialized_descriptor(module.__spec__.loader.get_source(module.__name__))
    # A pool of its own: an installed Caffe registers the same names in the default one.
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(serialized)
    module.DESCRIPTOR = file = pool.FindFileByName("caffe.proto")
    for name, message in file.message_types_by_name.items():
        setattr(module, name, message_factory.GetMessageClass(message))
    for name, enum in file.enum_types_by_name.items():
        setattr(module, name, EnumTypeWrapper(enum))
        for value in enum.values:
            setattr(module, value.name, value.number)


REPAIRS = (
    Repair(
        "chainer.links.caffe.protobuf3.caffe_pb2",
        "message classes made from the file's own serialized descriptor",
        "protobuf 4 and later refuse descriptors that generated code builds by hand",
        instead=_caffe_pb2,
        needed=_is_recent,
    ),
)
