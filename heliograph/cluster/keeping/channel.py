"""Frames between the actor of a part and the process of the part: pickles with their length, on a Unix socket.

The socket's name is abstract (Linux): it belongs to the network namespace, one process can have it, and it is free when
that process has ended. Both ends go on only with their own user. docs/formats.md describes the frames.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pickle
import socket
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import ray.cloudpickle

from heliograph.base.errors import ServiceNotReadyError
from heliograph.base.guard.local_socket import UNMAPPED, user_of

VERSION = 1
FRAME_BYTES_MAX = 256 << 20  # I15
HELLO, WELCOME, CALL, CANCEL, RESULT, FAILURE, END = "hello", "welcome", "call", "cancel", "result", "failure", "end"
ENDED = "the part's process has ended: try again"

_LENGTH = struct.Struct(">I")


def socket_name(namespace: str, node_id: str, part: str) -> bytes:
    """Return the abstract name of a part's process on a node of Ray."""
    return _name("part", node_id, namespace, part)


def fork_server_name(node_id: str, environment: str) -> bytes:
    return _name("fork-server", node_id, environment)


def _name(*words: str) -> bytes:
    digest = hashlib.sha256("/".join(words).encode()).hexdigest()  # a name has 107 bytes at most
    return f"\0heliograph/{words[0]}/{digest}".encode()


def connected(name: bytes, kind: socket.SocketKind = socket.SOCK_STREAM) -> socket.socket | None:
    """Return a socket that is connected to the process with a name; None if there is none of this user."""
    unix = socket.socket(socket.AF_UNIX, kind)
    with contextlib.suppress(OSError):
        unix.connect(name)
        if is_own_user(unix):
            return unix
    unix.close()
    return None


def is_own_user(unix: socket.socket) -> bool:
    return os.geteuid() != UNMAPPED and user_of(unix) == os.geteuid()


class PartChannel:
    """One end of a connection: frames are tuples whose first item is their kind."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def over(cls, unix: socket.socket) -> PartChannel:
        """Return the end that a connected socket is."""
        unix.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=unix))

    async def receive(self) -> tuple[Any, ...] | None:
        """Return the next frame; None when the other end has closed."""
        try:
            [length] = _LENGTH.unpack(await self._reader.readexactly(_LENGTH.size))
            if length > FRAME_BYTES_MAX:
                return None
            frame: tuple[Any, ...] = pickle.loads(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, OSError):
            return None
        return frame

    async def send(self, *frame: Any) -> None:
        """Send a frame. It is lost if the other end has closed; then ``receive`` returns None."""
        packed = ray.cloudpickle.dumps(frame)  # type: ignore[no-untyped-call]
        if len(packed) > FRAME_BYTES_MAX:
            raise ValueError(f"a frame of {len(packed)} bytes, at most {FRAME_BYTES_MAX}")
        if self._writer.is_closing():
            return  # uvloop raises RuntimeError on a transport that is closed
        with contextlib.suppress(OSError):
            self._writer.write(_LENGTH.pack(len(packed)) + packed)
            await self._writer.drain()

    async def drained(self) -> None:
        """Wait until the other end has taken enough of the bytes that it was sent."""
        with contextlib.suppress(OSError):
            await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


class PartCalls:
    """The actor's end: calls, and their answers."""

    def __init__(self, channel: PartChannel, on_end: Callable[[], Awaitable[None]]) -> None:
        """
        Args:
            on_end: called once, when the process has closed its end; calls that wait fail when it has returned.
        """
        self._channel = channel
        self._on_end = on_end
        self._waiting: dict[int, asyncio.Future[Any]] = {}  # one for each call of the actor  # I15
        self._last = 0
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def call(self, method: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a method of the part, as its own actor would run it.

        Raises:
            ServiceNotReadyError: the process ended before it answered; it may have carried the call out.
            Exception: what the method raises.
        """
        if self._reading.done():
            raise ServiceNotReadyError(ENDED)
        self._last = number = self._last + 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        try:
            await self._channel.send(CALL, number, method, arguments, options)
            return await answer
        except asyncio.CancelledError:
            await self._channel.send(CANCEL, number)
            raise
        finally:
            self._waiting.pop(number, None)

    async def end(self) -> None:
        """Have the process end at once, and wait until it has."""
        await self._channel.send(END)
        await asyncio.wait([self._reading])

    async def _read(self) -> None:
        while (frame := await self._channel.receive()) is not None:
            kind, number, outcome = frame
            answer = self._waiting.get(number)
            if answer is None or answer.done():
                continue  # its caller has gone
            if kind == RESULT:
                answer.set_result(outcome)
            else:
                answer.set_exception(outcome)
        self._channel.close()
        await self._on_end()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(ServiceNotReadyError(ENDED))


async def answered(channel: PartChannel, number: int, work: Awaitable[Any]) -> None:
    """Send the outcome of a call; what cannot be pickled is sent as its text."""
    outcome: Any
    try:
        kind, outcome = RESULT, await work
    except Exception as error:  # as Ray does with what a method raises
        kind, outcome = FAILURE, error
    try:
        await channel.send(kind, number, outcome)
    except Exception:
        await channel.send(FAILURE, number, ServiceNotReadyError(f"{type(outcome).__name__}: {outcome}"))
