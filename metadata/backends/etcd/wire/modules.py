"""The messages and stubs of etcd's API, from the ``etcd3`` package, for the protobuf that is installed.

The package's generated modules were made for protobuf 3 and cannot be imported under later releases. The serialized
descriptors in them are still valid. This module reads the descriptors from the source, builds the same three modules
with the installed protobuf and puts them where ``etcd3`` looks for them. The descriptors have a pool of their own, so
that they do not clash with another library's file of the same name.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import threading
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.internal import builder

from heliograph.base.errors import ResourceError

_PACKAGE = "etcd3.etcdrpc"
_NAMES = ("kv_pb2", "auth_pb2", "rpc_pb2")  # the last imports the others
# Fields of etcd 3.4 that the package's older description lacks: (message, field, number).
_ADDED_FLAGS = (
    ("WatchCreateRequest", "fragment", 8),
    ("WatchResponse", "fragment", 7),
    ("MemberAddRequest", "isLearner", 2),
    ("Member", "isLearner", 5),
)
_lock = threading.Lock()


@cache
def etcd_api() -> Any:
    """Return the module with every message and every stub (``etcd3.etcdrpc``).

    Raises:
        ResourceError: the package is missing, or is not the release that this was written for.
    """
    with _lock:
        try:
            _put_in_place(_folder())
            return importlib.import_module(_PACKAGE)
        except (ImportError, OSError, SyntaxError, LookupError, TypeError, ValueError) as error:
            raise ResourceError(f"the etcd3 package cannot be used ({error}): install etcd3 0.12.0") from error


def _folder() -> Path:
    # Found, not imported: importing the package would run its generated modules.
    spec = importlib.util.find_spec("etcd3")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("no module named etcd3")
    return Path(spec.submodule_search_locations[0]) / "etcdrpc"


def _put_in_place(folder: Path) -> None:
    pool = DescriptorPool()
    for name in _NAMES:
        full_name = f"{_PACKAGE}.{name}"
        if full_name in sys.modules:
            continue
        file = FileDescriptorProto.FromString(_descriptor_in(folder / f"{name}.py"))
        _add_flags(file)
        sys.modules[full_name] = _module(full_name, pool.AddSerializedFile(file.SerializeToString()))


def _descriptor_in(source: Path) -> bytes:
    """Return the serialized file descriptor: the longest ``serialized_pb`` argument in the source."""
    found = [
        _literal(node.value)
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.keyword) and node.arg == "serialized_pb"
    ]
    return max(found, key=len)


def _literal(node: ast.expr) -> bytes:
    if isinstance(node, ast.Call):  # _b('...'), which encodes as Latin-1
        node = node.args[0]
    value = ast.literal_eval(node)
    if value is None:
        return b""
    return value if isinstance(value, bytes) else str(value).encode("latin1")


def _add_flags(file: FileDescriptorProto) -> None:
    for message_name, name, number in _ADDED_FLAGS:
        for message in file.message_type:
            if message.name == message_name:
                _add_flag(message, name, number)


def _add_flag(message: DescriptorProto, name: str, number: int) -> None:
    if any(field.number == number for field in message.field):
        return
    message.field.add(
        name=name, number=number, type=FieldDescriptorProto.TYPE_BOOL, label=FieldDescriptorProto.LABEL_OPTIONAL
    )


def _module(name: str, descriptor: Any) -> ModuleType:
    module = ModuleType(name, f"Built from {descriptor.name}.")
    content: dict[str, Any] = {"DESCRIPTOR": descriptor}
    builder.BuildMessageAndEnumDescriptors(descriptor, content)
    builder.BuildTopDescriptorsAndMessages(descriptor, name, content)
    vars(module).update(content)
    return module
