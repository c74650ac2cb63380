"""What hostile clients of the ZooKeeper endpoint say: each operation as a list of encoded fields. Pure."""

from __future__ import annotations

import struct
from random import Random

from heliograph.metadata.endpoint.wire.codes import OpCode
from heliograph.metadata.endpoint.wire.frames import FOUR_LETTER_WORDS
from heliograph.metadata.endpoint.wire.jute import boolean, buffer, int32, int64
from tests.fuzz import values
from tests.fuzz.conversation import Message

PATHS = ("/", "/a", "/a/b", "/b", "/c", "/c/d/e", "/zookeeper/config", "/zookeeper/quota", "/endpoint-acls", "/cluster")
SHORT_MS = 100  # timeout of the sessions
_HEADER = struct.Struct("!ii")


def client(random: Random) -> list[Message]:
    """Return what one client says: CONNECT, then requests; sometimes a four-letter word instead."""
    if random.random() < 0.05:
        word = random.choice((*sorted(FOUR_LETTER_WORDS), b"nope", values.octets(random)[:4]))
        return [word + random.choice((b"", b"\n", b"\r\n", values.octets(random)[:200]))]
    messages: list[Message] = []
    if random.random() < 0.97:
        messages.append(connect(random, 0, bytes(16)))
    for number in range(random.randint(1, 12)):
        if random.random() < 0.06:
            messages.append(("session", random.randbytes(8)))
            continue
        op = random.choice(list(OpCode))
        xid = random.choice((number + 1, number + 1, -1, -2, -4, -8, values.number(random)))
        code: int = values.number(random) if random.random() < 0.03 else op
        messages.append(framed(random, int32(xid) + int32(code) + body(random, op)))
    if random.random() < 0.3:
        messages.append(framed(random, int32(99) + int32(OpCode.CLOSE_SESSION)))
    return messages


def connect(random: Random, session_id: int, password: bytes) -> bytes:
    """Return the first frame of a connection."""
    timeout_ms = random.choice((SHORT_MS, 0, -1, -(1 << 31), 50))
    fields = [int32(0), int64(0), int32(timeout_ms), int64(session_id), buffer(password), boolean(False)]
    if random.random() < 0.1:
        fields[random.randrange(len(fields))] = any_field(random)
    return framed(random, b"".join(fields))


def framed(random: Random, content: bytes) -> bytes:
    """Return a frame, rarely of a wrong length."""
    length = values.number(random) if random.random() < 0.01 else len(content)
    return int32(length) + content


def body(random: Random, op: int) -> bytes:
    """Return the arguments of an operation, some of which no client sends."""
    fields = fields_of(random, op)
    for at in range(len(fields)):
        if random.random() < 0.08:
            fields[at] = any_field(random)
    if fields and random.random() < 0.05:
        del fields[random.randrange(len(fields))]
    if random.random() < 0.05:
        fields.append(any_field(random))
    return b"".join(fields)


def fields_of(random: Random, op: int) -> list[bytes]:
    """Return the fields of an operation's arguments."""
    path, version = text(random, PATHS), int32(random.choice((-1, -1, 0, 1, values.number(random))))
    value = buffer(random.choice((b"", None, b"x", random.randbytes(300), bytes(random.choice((99_999, 1_100_000))))))
    match op:
        case OpCode.CREATE | OpCode.CREATE2 | OpCode.CREATE_CONTAINER | OpCode.CREATE_TTL:
            flags = int32(random.choice((0, 1, 2, 3, 4, 5, 6, values.number(random))))
            ttl = [int64(random.choice((1, 1_000, values.number(random))))] if op == OpCode.CREATE_TTL else []
            return [path, value, *acl(random), flags, *ttl]
        case OpCode.DELETE | OpCode.CHECK:
            return [path, version]
        case OpCode.EXISTS | OpCode.GET_DATA | OpCode.GET_CHILDREN | OpCode.GET_CHILDREN2:
            return [path, boolean(random.random() < 0.5)]
        case OpCode.SET_DATA:
            return [path, value, version]
        case OpCode.SET_ACL:
            return [path, *acl(random), version]
        case OpCode.MULTI | OpCode.MULTI_READ:
            return multi(random, op == OpCode.MULTI)
        case OpCode.AUTH:
            scheme = text(random, ("digest", "world", "ip", "auth", "sasl", "token"))
            return [int32(0), scheme, buffer(random.choice((b"me:secret", b"me", b":", values.octets(random)[:9_000])))]
        case OpCode.SET_WATCHES | OpCode.SET_WATCHES2:
            lists = 5 if op == OpCode.SET_WATCHES2 else 3
            return [int64(random.choice((0, 1, values.number(random)))), *(paths(random) for _ in range(lists))]
        case OpCode.ADD_WATCH | OpCode.CHECK_WATCHES | OpCode.REMOVE_WATCHES:
            return [path, int32(random.choice((0, 1, 2, 3, 4, 5, values.number(random))))]
        case OpCode.GET_ACL | OpCode.SYNC | OpCode.GET_EPHEMERALS | OpCode.GET_ALL_CHILDREN_NUMBER:
            return [path]
        case OpCode.RECONFIG | OpCode.SASL | OpCode.DELETE_CONTAINER:
            return [path, value]
    return []


def multi(random: Random, writes: bool) -> list[bytes]:
    """Return the fields of a multi of up to eight operations."""
    kinds = (
        (OpCode.CREATE, OpCode.DELETE, OpCode.SET_DATA, OpCode.CHECK, OpCode.CREATE2, OpCode.CREATE_TTL)
        if writes
        else (OpCode.GET_DATA, OpCode.GET_CHILDREN)
    )
    fields: list[bytes] = []
    for _ in range(random.choice((0, 1, 2, 8))):
        op = random.choice(kinds if random.random() < 0.9 else list(OpCode))
        arguments = fields_of(random, op) if op not in (OpCode.MULTI, OpCode.MULTI_READ) else []
        fields += [int32(op), boolean(False), int32(-1), *arguments]
    return [*fields, int32(-1), boolean(random.random() < 0.95), int32(-1)]


def acl(random: Random) -> list[bytes]:
    """Return the fields of an ACL."""
    count = random.choice((1, 1, 1, 0, 2, 70))
    entries: list[bytes] = []
    for _ in range(count):
        entries.append(int32(random.choice((31, 31, 0, 1, -1, values.number(random)))))
        entries.append(text(random, ("world", "world", "digest", "auth", "ip", "x509")))
        entries.append(text(random, ("anyone", "anyone", "me:hash", "", "a:b:c")))
    return [int32(count if random.random() < 0.95 else values.number(random)), *entries]


def paths(random: Random) -> bytes:
    """Return a list of paths."""
    count = random.choice((0, 1, 2, 20))
    return int32(count) + b"".join(text(random, PATHS) for _ in range(count))


def text(random: Random, usual: tuple[str, ...]) -> bytes:
    """Return a counted text: a usual one, or one that is strange or not UTF-8."""
    if random.random() < 0.85:
        return buffer(random.choice(usual).encode())
    return buffer(values.octets(random))


def any_field(random: Random) -> bytes:
    """Return a field of any type."""
    return random.choice(
        (
            int32(values.number(random)),
            int64(values.number(random)),
            buffer(values.octets(random)),
            int32(values.number(random)) + values.octets(random),
            int32(-1),
            b"",
            b"\xff",
        )
    )
