"""The ZooKeeper endpoint, open and with authentication."""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import Sequence
from random import Random

from typing_extensions import override

from heliograph.auth.config import AuthConfig
from heliograph.metadata.connect import connect_store
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode
from heliograph.metadata.endpoint.wire.jute import JuteReader
from heliograph.metadata.errors import MetadataProtocolError
from heliograph.metadata.store import MetadataStore
from tests.contracts.endpoint.wire import client as wire_client
from tests.contracts.endpoint.wire.client import Reply, WireClient
from tests.fuzz.conversation import Conversation, disturbed
from tests.fuzz.encodings import zookeeper
from tests.fuzz.listener import BrokenPromiseError, Listener
from tests.unit.auth.keys import SECRET, token

ROOT = "/confirmed"  # of the well-behaved client, behind an ACL; no other client says it
CREDENTIAL = b"works:well"
LONG_MS = 60_000
ACL = ((31, "auth", ""),)
NO_TOKEN = b"\xff" * 4  # the answer to SASL
_UNTYPED = (ErrorCode.SYSTEM_ERROR, ErrorCode.RUNTIME_INCONSISTENCY)


class ZooKeeperListener(Listener):
    """An endpoint on a store in memory."""

    name = "zookeeper"
    auth = AuthConfig()
    credential = ("digest", CREDENTIAL)

    @override
    async def start(self) -> None:
        url = f"memory://{self.directory.name}"

        async def open_store(timeout_ms: int, token: str | None) -> MetadataStore:
            return await connect_store(url, session_timeout_ms=timeout_ms, token=token)

        limits = EndpointLimits(session_timeout_ms_min=zookeeper.SHORT_MS, session_timeout_ms_max=LONG_MS)
        self.endpoint = ZooKeeperEndpoint(open_store, limits=limits, auth=self.auth)
        await self.endpoint.start()
        host, _, port = (await self.endpoint.listen("127.0.0.1", 0)).rpartition(":")
        self.address = (host, int(port))
        self._client = await WireClient.begin(self.endpoint.address, timeout_ms=LONG_MS)
        await self._ask(OpCode.AUTH, wire_client.auth(*self.credential), -4)
        self._confirmed: dict[str, bytes] = {}
        await self._ask(OpCode.CREATE, wire_client.create(ROOT, b"", 0, ACL))

    @override
    async def stop(self) -> None:
        await self._client.close()
        await self.endpoint.stop(ends_sessions=True)

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        return disturbed(random, [zookeeper.client(random) for _ in range(random.choice((1, 1, 2, 3)))])

    @override
    def examine(self, heard: bytes) -> None:
        for reply in _replies(heard):
            if reply.error in _UNTYPED:
                raise BrokenPromiseError(f"an error without a type: {reply}")
            if reply.error not in ErrorCode.__members__.values():
                raise BrokenPromiseError(f"an unknown error: {reply}")

    @override
    async def work(self) -> None:
        name, value = f"n{len(self._confirmed)}", b"value %d" % len(self._confirmed)
        await self._ask(OpCode.CREATE, wire_client.create(f"{ROOT}/{name}", value, 0, ACL))
        self._confirmed[name] = value
        await self._expect(name)

    @override
    async def audit(self) -> None:
        reply = await self._ask(OpCode.GET_CHILDREN, wire_client.path_and_watch(ROOT))
        names = JuteReader(reply.body).strings()
        if sorted(names) != sorted(self._confirmed):
            raise BrokenPromiseError(f"nodes {set(names) ^ set(self._confirmed)} were lost or invented")
        for name in names:
            await self._expect(name)

    @override
    def held(self) -> Counter[str]:
        found = Counter(connections=len(self.endpoint._connections))
        for connection in self.endpoint._connections:
            found["requests"] += connection._unanswered
            found["request bytes"] += connection._request_bytes
        return found

    @override
    def held_long(self) -> Counter[str]:
        sessions = [session for session in self.endpoint.sessions if session.timeout_ms <= zookeeper.SHORT_MS]
        return Counter(sessions=len(sessions), tasks=len(asyncio.all_tasks()))

    @override
    def reply(self, name: str, form: bytes, heard: Sequence[bytes]) -> bytes:
        """Come back to a session of one of the connections."""
        random = Random(form)
        known = [found for each in heard if (found := _session_of(each)) is not None]
        return zookeeper.connect(random, *random.choice(known)) if known else b""

    async def _expect(self, name: str) -> None:
        reply = await self._ask(OpCode.GET_DATA, wire_client.path_and_watch(f"{ROOT}/{name}"))
        value = JuteReader(reply.body).buffer()
        if value != self._confirmed[name]:
            raise BrokenPromiseError(f"{name} was confirmed as {self._confirmed[name]!r} and reads as {value!r}")

    async def _ask(self, op: int, body: bytes, xid: int | None = None) -> Reply:
        reply = await self._client.call(op, body, xid)
        self._client.heard.clear()
        if reply.error:
            raise BrokenPromiseError(f"the client that works was told {reply}")
        return reply


class ZooKeeperDoorListener(ZooKeeperListener):
    """An endpoint that asks for tokens, and clients that have none."""

    name = "zookeeper-door"
    auth = AuthConfig(
        enabled=True,
        token_secret_key="data:;base64," + base64.b64encode(SECRET).decode(),
        superuser_roles=("root",),
    )

    @override
    async def start(self) -> None:
        self.credential = ("token", token("root"))
        await super().start()

    @override
    def examine(self, heard: bytes) -> None:
        super().examine(heard)
        for reply in _replies(heard):
            if reply.error == 0 and reply.body not in (b"", NO_TOKEN):
                raise BrokenPromiseError(f"a stranger was served: {reply}")


def _replies(heard: bytes) -> list[Reply]:
    """Return the replies that a connection was sent after the answer to its CONNECT; none to a four-letter word."""
    found: list[Reply] = []
    frames = _frames(heard)
    if not frames or _session_of(heard) is None:
        return []
    for frame in frames[1:]:
        reader = JuteReader(frame)
        found.append(Reply(reader.int32(), reader.int64(), reader.int32(), reader.take(reader.remaining)))
    return found


def _frames(heard: bytes) -> list[bytes]:
    frames, start = [], 0
    while len(heard) - start >= 4:
        length = int.from_bytes(heard[start : start + 4], signed=True)
        end = start + 4 + length
        if length < 0 or end > len(heard):
            break  # a word's answer, or a frame that was cut by the end of the connection
        frames.append(heard[start + 4 : end])
        start = end
    return frames


def _session_of(heard: bytes) -> tuple[int, bytes] | None:
    """Return id and password of the session that a connection was given, if it was."""
    frames = _frames(heard)
    if not frames:
        return None
    try:
        reader = JuteReader(frames[0])
        reader.int32(), reader.int32()
        session_id, password = reader.int64(), reader.buffer()
    except MetadataProtocolError:
        return None
    return (session_id, password) if session_id else None
