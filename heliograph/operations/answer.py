"""The answer to an operation as MessagePack, the same over the broker's port, over HTTP and over the local socket."""

from __future__ import annotations

import itertools
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

import msgpack

from heliograph.base import errors
from heliograph.base.errors import BadRequestError, HeliographError, ProtocolError

CONTAINERS_MAX = 100_000  # of one request: an empty list takes one byte of it, and 56 of memory  # I15

PACKED_AT_ONCE_MAX = 10_000  # rows of an answer: 2 ms


def packed_value(value: Any) -> bytes:
    """Return the answer of an operation that succeeded. Records become maps, and enums their values.

    A long list is packed in pieces, between which other threads run: msgpack holds the interpreter's lock.
    """
    if not isinstance(value, list) or len(value) <= PACKED_AT_ONCE_MAX:
        packed: bytes = msgpack.packb({"value": value}, default=plain_record)
        return packed
    packer = msgpack.Packer(default=plain_record)
    head = packer.pack_map_header(1) + packer.pack("value") + packer.pack_array_header(len(value))
    chunks = (value[first : first + PACKED_AT_ONCE_MAX] for first in range(0, len(value), PACKED_AT_ONCE_MAX))
    return b"".join([head, *(b"".join(map(packer.pack, chunk)) for chunk in chunks)])


def packed_failure(error: HeliographError) -> bytes:
    """Return the answer of an operation that failed, with the nearest class of the error that callers know."""
    known = next(each for each in type(error).__mro__ if getattr(errors, each.__name__, None) is each)
    failure = {"class": known.__name__, "reason": str(error), "field": error.field, "limit": error.limit}
    packed: bytes = msgpack.packb({"failure": failure})
    return packed


def unpacked_arguments(packed: bytes, field: str) -> dict[Any, Any]:
    """Return the map that a caller sent as MessagePack. It may take some 0.1 s for a megabyte.

    Args:
        field: the name of the input, for the error.

    Raises:
        BadRequestError: it is no map in MessagePack, or has more than CONTAINERS_MAX lists and maps.
    """
    numbers = itertools.count(1)

    def counted(container: Any) -> Any:
        if next(numbers) > CONTAINERS_MAX:
            raise BadRequestError(
                f"the {field} has too many lists and maps", field=field, limit=f"{CONTAINERS_MAX} lists and maps"
            )
        return container

    try:
        found = msgpack.unpackb(packed, strict_map_key=False, list_hook=counted, object_hook=counted)
    except (ValueError, TypeError, RecursionError) as error:  # TypeError: a list is the key of a map
        raise BadRequestError(f"the {field} is not MessagePack", field=field) from error
    if not isinstance(found, dict):
        raise BadRequestError(f"the {field} must be a map", field=field)
    return found


def unpacked(data: bytes, source: str) -> Any:
    """Return the value of an answer.

    Args:
        source: who has answered, for the error.

    Raises:
        ProtocolError: it is no answer.
        HeliographError: the operation failed. An error of a class that this release does not know is of the nearest
            general one.
    """
    try:
        answer = msgpack.unpackb(data, strict_map_key=False)
    except (ValueError, TypeError) as error:
        raise ProtocolError(f"{source} does not answer with MessagePack") from error
    if not isinstance(answer, dict):
        raise ProtocolError(f"{source} does not answer with a map")
    failure = answer.get("failure")
    if not failure:
        return answer.get("value")
    if not isinstance(failure, dict):
        raise ProtocolError(f"{source} describes no error")
    known = getattr(errors, str(failure.get("class")), HeliographError)
    if not (isinstance(known, type) and issubclass(known, HeliographError)):
        known = HeliographError
    if issubclass(known, errors.DataLostError | errors.MayBeTwiceError):  # their texts are made of other arguments
        known = known.__mro__[1]
    raise known(str(failure.get("reason")), field=failure.get("field"), limit=failure.get("limit"))


def plain_record(value: Any) -> Any:
    """Return the fields of a record by name, or the value of an enum: neither MessagePack nor JSON knows them."""
    if isinstance(value, Enum):
        return value.value
    assert is_dataclass(value), f"a {type(value).__name__} is no answer"
    assert not isinstance(value, type), "a class is no answer"
    return asdict(value)
