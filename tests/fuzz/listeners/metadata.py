"""The listener of the embedded metadata store, open and with a cluster secret."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from random import Random
from typing import Any

import msgpack
from typing_extensions import override

from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.protocol import (
    MAGIC,
    PROTOCOL_VERSION,
    EmbeddedFrameDecoder,
    EmbeddedOp,
    decode_error,
)
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import MetadataProtocolError
from heliograph.metadata.store import SessionState
from tests.fuzz import values
from tests.fuzz.conversation import Conversation, Message, disturbed
from tests.fuzz.listener import BrokenPromiseError, Listener

ROOT = "/confirmed"  # of the well-behaved client; no other client says it
PATHS = ("/", "/a", "/a/b", "/b", "/c", "/c/d/e", "/a/")
SECRET = "0123456789abcdef-fuzz"
SHORT_MS = 100  # timeout of the hostile clients' sessions
_ERROR_CODES = range(1, 12)


class MetadataListener(Listener):
    """The embedded store on a disk."""

    name = "metadata"
    secret: str | None = None

    @override
    async def start(self) -> None:
        limits = ServerLimits(session_timeout_ms_min=SHORT_MS)
        self.server = EmbeddedServer(self.directory, "127.0.0.1", secret=self.secret, limits=limits)
        await self.server.start()
        host, _, port = self.server.address.rpartition(":")
        self.address = (host, int(port))
        login = f"cluster:{self.secret}@" if self.secret else ""
        self._store = await connect_store(f"embedded://{login}{self.server.address}", session_timeout_ms=120_000)
        self._states: list[SessionState] = []
        self._store.add_session_listener(self._states.append)
        await self._store.create(ROOT, b"")
        self._confirmed: dict[str, bytes] = {}

    @override
    async def stop(self) -> None:
        await self._store.close()
        await self.server.stop()

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        return disturbed(random, [_client(random) for _ in range(random.choice((1, 1, 2, 3)))])

    @override
    def examine(self, heard: bytes) -> None:
        for request_id, code, *rest in EmbeddedFrameDecoder().feed(heard):
            if request_id and code and (code not in _ERROR_CODES or type(decode_error(code, *rest)) is HeliographError):
                raise BrokenPromiseError(f"an error without a type: {code}, {rest!r:.300}")

    @override
    async def work(self) -> None:
        if self.server.failure is not None or self._states:
            raise BrokenPromiseError(f"the store ended or dropped a session: {self.server.failure!r}, {self._states}")
        name, value = f"n{len(self._confirmed)}", b"value %d" % len(self._confirmed)
        await self._store.create(f"{ROOT}/{name}", b"")
        await self._store.set(f"{ROOT}/{name}", value)
        self._confirmed[name] = value
        await self._expect(name)

    @override
    async def audit(self) -> None:
        names = await self._store.children(ROOT)
        if sorted(names) != sorted(self._confirmed):
            raise BrokenPromiseError(f"nodes {set(names) ^ set(self._confirmed)} were lost or invented")
        for name in names:
            await self._expect(name)

    @override
    def held(self) -> Counter[str]:
        counts = self.server.statistics()
        return Counter({name: counts[name] for name in ("connections", "watches", "held_bytes")})

    @override
    def held_long(self) -> Counter[str]:
        assert self.server._service is not None
        sessions = self.server._service.tree.sessions.values()
        return Counter(sessions=sum(session.timeout_ms <= SHORT_MS for session in sessions))

    @override
    def reply(self, name: str, form: bytes, heard: Sequence[bytes]) -> bytes:
        """Come back to a session of one of the connections, or end it."""
        random = Random(form)
        known = [found for each in heard if (found := _session_of(each)) is not None]
        if not known:
            return b""
        session_id, password = random.choice(known)
        owner = random.choice(("", "", "me"))
        resume = [MAGIC, PROTOCOL_VERSION, session_id, password, owner or "x", random.random() < 0.5]
        hello = [MAGIC, PROTOCOL_VERSION, SHORT_MS, session_id, password]
        return _frame(
            random,
            random.choice(
                (
                    [9, EmbeddedOp.RESUME, *resume],
                    [9, EmbeddedOp.HELLO, *hello],
                    [9, EmbeddedOp.END_SESSION, session_id, password],
                )
            ),
        )

    async def _expect(self, name: str) -> None:
        value, _ = await self._store.get(f"{ROOT}/{name}")
        if value != self._confirmed[name]:
            raise BrokenPromiseError(f"{name} was confirmed as {self._confirmed[name]!r} and reads as {value!r}")


class MetadataDoorListener(MetadataListener):
    """A store that asks for the cluster's secret, and clients that do not know it."""

    name = "metadata-door"
    secret = SECRET

    @classmethod
    @override
    def conversation(cls, random: Random) -> Conversation:
        return disturbed(random, [cls._stranger(random) for _ in range(random.choice((1, 1, 2)))])

    @classmethod
    def _stranger(cls, random: Random) -> list[Message]:
        messages = _client(random)
        for _ in range(random.randint(1, 3)):
            nonce = random.randbytes(random.choice((0, 31, 32, 32, 32, 33)))
            step = random.choice(
                ([EmbeddedOp.CHALLENGE, MAGIC, PROTOCOL_VERSION, nonce], [EmbeddedOp.PROVE, random.randbytes(32)])
            )
            messages.insert(random.randrange(len(messages) + 1), _frame(random, [1, *step]))
        return messages

    @override
    def examine(self, heard: bytes) -> None:
        for frame in EmbeddedFrameDecoder().feed(heard):
            is_challenge = len(frame) == 3 and frame[1] == 0 and type(frame[2]) is bytes
            if not is_challenge and frame[1] not in _ERROR_CODES:
                raise BrokenPromiseError(f"a stranger was served: {frame!r:.300}")


def _client(random: Random) -> list[Message]:
    messages: list[Message] = []
    if random.random() < 0.95:
        messages.append(_frame(random, [1, EmbeddedOp.HELLO, MAGIC, PROTOCOL_VERSION, SHORT_MS, 0, ""]))
    for number in range(random.randint(1, 12)):
        if random.random() < 0.08:
            messages.append(("session", random.randbytes(8)))
            continue
        op = random.choice((*EmbeddedOp, EmbeddedOp.APPLY, EmbeddedOp.APPLY))
        items = [number + 2, op, *_arguments(random, op)]
        rate = random.choice((0.0, 0.0, 0.0, 0.2))
        items = [values.msgpack_value(random) if random.random() < rate else item for item in items]
        if random.random() < 0.03:
            del items[random.randrange(len(items)) :]
        if random.random() < 0.03:
            items.append(values.msgpack_value(random))
        messages.append(_frame(random, items))
    return messages


def _arguments(random: Random, op: EmbeddedOp) -> list[Any]:
    watch_id = random.choice((0, 1, 2, 3))
    match op:
        case EmbeddedOp.HELLO:
            timeout_ms = random.choice((SHORT_MS, 0, -1, -(1 << 63)))
            return [MAGIC, PROTOCOL_VERSION, timeout_ms, random.choice((0, 0, values.number(random))), ""]
        case EmbeddedOp.RESUME:
            return [MAGIC, PROTOCOL_VERSION, values.number(random), _path(random), _path(random), True]
        case EmbeddedOp.APPLY:
            return [[_operation(random) for _ in range(random.choice((0, 1, 1, 1, 2, 5, 30)))]]
        case EmbeddedOp.GET | EmbeddedOp.EXISTS | EmbeddedOp.CHILDREN | EmbeddedOp.WATCH:
            return [_path(random), random.choice((watch_id, values.number(random)))]
        case EmbeddedOp.UNWATCH:
            return [watch_id]
        case EmbeddedOp.RESET_WATCHES:
            number = values.number
            return [
                [
                    [watch_id + at, random.randint(0, 4), _path(random), number(random), number(random)]
                    for at in range(3)
                ]
            ]
        case EmbeddedOp.SYNC:
            return [_path(random)]
        case EmbeddedOp.REAPABLE:
            return [random.choice((0, 1, values.number(random)))]
        case EmbeddedOp.END_SESSION:
            return [random.choice((0, 1, values.number(random))), _path(random)]
        case EmbeddedOp.CHALLENGE:
            return [MAGIC, PROTOCOL_VERSION, random.randbytes(32)]
        case EmbeddedOp.PROVE:
            return [random.randbytes(32)]
    return []


def _operation(random: Random) -> Any:
    path, version = _path(random), random.choice((-1, 0, 1, 2, values.number(random)))
    value = random.choice((b"", None, b"x", random.randbytes(1_000), bytes(random.choice((100_000, (1 << 20) + 1)))))
    operation: list[Any] = random.choice(
        (
            [1, path, value, random.random() < 0.3, random.random() < 0.3],
            [1, path, value, False, False, random.choice((0, 1, -1, 1 << 56, (0xFF << 56), values.number(random)))],
            [2, path, value, version],
            [3, path, version],
            [4, path, version],
            [5, path],
        )
    )
    if random.random() < 0.1:
        operation[random.randrange(len(operation))] = values.msgpack_value(random)
    return operation if random.random() < 0.98 else values.msgpack_value(random)


def _path(random: Random) -> str:
    return random.choice(PATHS) if random.random() < 0.8 else values.text(random)


def _frame(random: Random, items: Sequence[Any]) -> bytes:
    body: bytes = msgpack.packb(
        [int(item) if isinstance(item, EmbeddedOp) else item for item in items], unicode_errors="surrogatepass"
    )
    if random.random() < 0.02:
        body = random.choice(
            (b"", b"\xc1", b"\x93\x01", b"\xdd\xff\xff\xff\xff", b"\x91" * 3_000, values.octets(random))
        )
    length = random.choice(values.UNSIGNED) % (1 << 32) if random.random() < 0.01 else len(body)
    return struct.pack(">I", length) + body


def _session_of(heard: bytes) -> tuple[int, str] | None:
    """Return id and password of the session that a connection was given, if it was."""
    try:
        for _, code, *rest in EmbeddedFrameDecoder().feed(heard):
            match rest:
                case [[int() as session_id, str() as password, int()]] if code == 0:
                    return session_id, password
    except MetadataProtocolError:
        pass
    return None
