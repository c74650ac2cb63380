"""Administrative calls over the Unix socket of a cluster that runs in one process: its two sides.

A connection carries one request and its answer, each a length of 4 bytes, big-endian, and so many bytes of MessagePack.
The socket is in a directory that only its user may enter, so callers show no credentials.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from heliograph.base.errors import ConnectionLostError, ProtocolError
from heliograph.operations.answer import unpacked
from heliograph.operations.table import AdminOperation

CALL_BYTES_MAX = 64 << 20  # of a request or an answer # I15
PATH_BYTES_MAX = 103  # of a Unix socket, without the byte that ends it: on macOS; Linux takes 107
SHORT_ROOT = "/tmp"  # TMPDIR may be long, too
_LENGTH = struct.Struct(">I")


async def ask(path: str, operation: AdminOperation, arguments: dict[str, Any], address: str) -> Any:
    """Run an operation in the process that listens at ``path``.

    Args:
        address: of the caller, for the audit log.

    Raises:
        ConnectionLostError: nobody listens, or the answer was lost: the outcome is unknown.
        HeliographError: as the operation raises.
    """
    try:
        with short_path(path) as short:
            reader, writer = await asyncio.open_unix_connection(short)
    except OSError as error:
        raise ConnectionLostError(f"no cluster listens at {path} ({error.strerror})") from error
    try:
        call = {"operation": operation.name, "arguments": operation.sparse(arguments), "address": address}
        await send(writer, msgpack.packb(call))
        answer = await receive(reader)
    except (OSError, EOFError) as error:
        raise ConnectionLostError(f"the process that listens at {path} hung up") from error
    finally:
        writer.close()
    return unpacked(answer, f"the process that listens at {path}")


@contextlib.contextmanager
def short_path(path: str | Path) -> Iterator[str]:
    """Give a path by which the system takes a socket, however long its own is, for the length of the block.

    A long path is reached through a link to its directory, in a directory that only this user may enter.

    Raises:
        OSError: the link cannot be made.
    """
    path = Path(path)
    if len(os.fsencode(path)) <= PATH_BYTES_MAX:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="hg-", dir=SHORT_ROOT) as directory:
        link = Path(directory) / "home"
        link.symlink_to(path.parent)
        yield str(link / path.name)


async def send(writer: asyncio.StreamWriter, packed: bytes) -> None:
    """Send a message.

    Raises:
        OSError: the connection is broken.
    """
    if writer.is_closing():  # uvloop raises RuntimeError then
        raise ConnectionResetError("the connection is closed")
    writer.write(_LENGTH.pack(len(packed)) + packed)
    await writer.drain()


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Receive a message.

    Raises:
        EOFError, OSError: the connection is closed or broken.
        ProtocolError: it is too long.
    """
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    if length > CALL_BYTES_MAX:
        raise ProtocolError(f"a call has {length} bytes, the limit is {CALL_BYTES_MAX}")
    return await reader.readexactly(length)
