"""Administrative calls over the Unix socket of a cluster that runs in one process: its two sides.

A connection carries one request and its answer, each a length of 4 bytes, big-endian, and so many bytes of MessagePack.
The socket is in a directory that only its user may enter, so callers show no credentials.
"""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import msgpack

from heliograph.base import errors
from heliograph.base.errors import ConnectionLostError, HeliographError, ProtocolError
from heliograph.operations.table import AdminOperation

CALL_BYTES_MAX = 64 << 20  # of a request or an answer # I15
_LENGTH = struct.Struct(">I")


async def ask(path: str, operation: AdminOperation, arguments: dict[str, Any], address: str) -> Any:
    """Run an operation in the process that listens at ``path``.

    Args:
        address: of the caller, for the audit log.

    Raises:
        ConnectionLostError: nobody listens, or the answer was lost: the outcome is unknown.
        HeliographError: what the operation raises.
    """
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        raise ConnectionLostError(f"no cluster listens at {path} ({error.strerror})") from error
    try:
        await send(writer, {"operation": operation.name, "arguments": arguments, "address": address})
        answer = await receive(reader)
    except (OSError, EOFError) as error:
        raise ConnectionLostError(f"the process that listens at {path} hung up") from error
    finally:
        writer.close()
    if failure := answer.get("failure"):
        raise made_again(failure)
    return answer.get("value")


async def send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    """Send a message.

    Raises:
        OSError: the connection is broken.
    """
    packed = msgpack.packb(message)
    if writer.is_closing():  # uvloop raises RuntimeError then
        raise ConnectionResetError("the connection is closed")
    writer.write(_LENGTH.pack(len(packed)) + packed)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> dict[str, Any]:
    """Receive a message.

    Raises:
        EOFError, OSError: the connection is closed or broken.
        ProtocolError: it is too long or no map.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > CALL_BYTES_MAX:
        raise ProtocolError(f"a call has {length} bytes, the limit is {CALL_BYTES_MAX}")
    try:
        message = msgpack.unpackb(await reader.readexactly(length), strict_map_key=False)
    except ValueError as error:
        raise ProtocolError("a call is not MessagePack") from error
    if not isinstance(message, dict):
        raise ProtocolError("a call is no map")
    return message


def described(error: HeliographError) -> dict[str, Any]:
    """Return an error in the form that ``made_again`` reads."""
    return {"class": type(error).__name__, "reason": str(error), "field": error.field, "limit": error.limit}


def made_again(failure: dict[str, Any]) -> HeliographError:
    """Return the error; one of a class that clients do not know is of the nearest general one."""
    known = getattr(errors, str(failure.get("class")), HeliographError)
    if not (isinstance(known, type) and issubclass(known, HeliographError)):
        known = HeliographError
    return known(str(failure.get("reason")), field=failure.get("field"), limit=failure.get("limit"))
