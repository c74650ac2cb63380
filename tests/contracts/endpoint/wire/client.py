"""A bare client of ZooKeeper's protocol: it sends what a test tells it to, and records what it receives in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from heliograph.metadata.endpoint.wire.codes import OpCode
from heliograph.metadata.endpoint.wire.jute import JuteReader, boolean, buffer, int32, int64, string, vector

RESUME_PAUSE_SECONDS = 0.05
DEADLINE_SECONDS = 60
OPEN = ((31, "world", "anyone"),)
AclTriples = Sequence[tuple[int, str, str]]


@dataclass(frozen=True)
class Reply:
    xid: int
    zxid: int
    error: int
    body: bytes


@dataclass(frozen=True)
class Event:
    type: int
    state: int
    path: str


@dataclass(frozen=True)
class Stat:
    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    aversion: int
    owner: int
    length: int
    children: int
    pzxid: int

    @classmethod
    def read(cls, reader: JuteReader) -> Stat:
        czxid, mzxid, ctime, mtime = (reader.int64() for _ in range(4))
        version, cversion, aversion = (reader.int32() for _ in range(3))
        owner, length, children = reader.int64(), reader.int32(), reader.int32()
        return cls(czxid, mzxid, ctime, mtime, version, cversion, aversion, owner, length, children, reader.int64())


class WireClient:
    """One connection. ``heard`` is everything received, replies and events, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._xid = 0
        self.session_id = 0
        self.password = b""
        self.timeout_ms = 0
        self.heard: list[Reply | Event] = []

    @classmethod
    async def open(cls, address: str, *, limit: int = 1 << 24) -> WireClient:
        host, _, port = address.rpartition(":")
        return cls(*await asyncio.open_connection(host, int(port), limit=limit))

    @classmethod
    async def begin(
        cls, address: str, session_id: int = 0, password: bytes = bytes(16), timeout_ms: int = 10_000
    ) -> WireClient:
        """Connect and send the connect request; ``timeout_ms`` becomes 0 if the session has ended."""
        client = await cls.open(address)
        hello = int32(0) + int64(0) + int32(timeout_ms) + int64(session_id) + buffer(password) + boolean(False)
        client.write(int32(len(hello)) + hello)
        answer = JuteReader(await client.frame())
        answer.int32()
        client.timeout_ms, client.session_id, client.password = answer.int32(), answer.int64(), answer.buffer()
        return client

    @classmethod
    async def resume(cls, address: str, former: WireClient, timeout_ms: int) -> WireClient:
        """Continue the session of another connection. Try again while the endpoint hangs up, as clients do."""
        while True:
            try:
                return await cls.begin(address, former.session_id, former.password, timeout_ms)
            except (OSError, asyncio.IncompleteReadError):
                await asyncio.sleep(RESUME_PAUSE_SECONDS)

    def write(self, data: bytes) -> None:
        self._writer.write(data)

    async def drain(self) -> None:
        await self._writer.drain()

    async def frame(self) -> bytes:
        async with asyncio.timeout(DEADLINE_SECONDS):
            length = int.from_bytes(await self._reader.readexactly(4), signed=True)
            return await self._reader.readexactly(length)

    async def rest(self) -> bytes:
        """Return everything received up to the end of the connection."""
        async with asyncio.timeout(DEADLINE_SECONDS):
            try:
                return await self._reader.read()
            except ConnectionError:
                return b""

    def send(self, op: int, body: bytes = b"", xid: int | None = None) -> int:
        if xid is None:
            self._xid += 1
            xid = self._xid
        content = int32(xid) + int32(op) + body
        self.write(int32(len(content)) + content)
        return xid

    async def hear(self) -> Reply | Event:
        reader = JuteReader(await self.frame())
        xid, zxid, error = reader.int32(), reader.int64(), reader.int32()
        heard: Reply | Event
        if xid == -1:
            heard = Event(reader.int32(), reader.int32(), reader.string())
        else:
            heard = Reply(xid, zxid, error, reader.take(reader.remaining))
        self.heard.append(heard)
        return heard

    async def call(self, op: int, body: bytes = b"", xid: int | None = None) -> Reply:
        """Send a request and receive its reply; events before it are in ``heard``."""
        sent = self.send(op, body, xid)
        while True:
            heard = await self.hear()
            if isinstance(heard, Reply):
                assert heard.xid == sent, (heard, sent)
                return heard

    @property
    def events(self) -> list[Event]:
        return [heard for heard in self.heard if isinstance(heard, Event)]

    async def create(self, path: str, value: bytes = b"", flags: int = 0, acl: AclTriples = OPEN) -> Reply:
        return await self.call(OpCode.CREATE, create(path, value, flags, acl))

    async def close(self) -> None:
        """Break the connection; the session continues."""
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()


def path_and_watch(path: str, watch: bool = False) -> bytes:
    return string(path) + boolean(watch)


def path_and_version(path: str, version: int = -1) -> bytes:
    return string(path) + int32(version)


def create(path: str, value: bytes = b"", flags: int = 0, acl: AclTriples = OPEN) -> bytes:
    return string(path) + buffer(value) + acls(acl) + int32(flags)


def acls(acl: AclTriples) -> bytes:
    return vector(int32(permissions) + string(scheme) + string(name) for permissions, scheme, name in acl)


def set_data(path: str, value: bytes, version: int = -1) -> bytes:
    return string(path) + buffer(value) + int32(version)


def set_acl(path: str, acl: AclTriples, version: int = -1) -> bytes:
    return string(path) + acls(acl) + int32(version)


def auth(scheme: str, credential: bytes) -> bytes:
    return int32(0) + string(scheme) + buffer(credential)


def multi(*operations: tuple[int, bytes]) -> bytes:
    parts = [int32(op) + boolean(False) + int32(-1) + body for op, body in operations]
    return b"".join(parts) + int32(-1) + boolean(True) + int32(-1)


def set_watches(zxid: int, *lists: Sequence[str]) -> bytes:
    return int64(zxid) + b"".join(vector(map(string, paths)) for paths in lists)


def add_watch(path: str, mode: int) -> bytes:
    return string(path) + int32(mode)


def watch_query(path: str, kind: int) -> bytes:
    return string(path) + int32(kind)
