"""The answers and events that the endpoint sends, as bytes. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from heliograph.metadata.endpoint.wire import jute
from heliograph.metadata.endpoint.wire.acl import AclEntry
from heliograph.metadata.endpoint.wire.codes import EVENT_CODES, NO_ZXID, STATE_CONNECTED, XID_EVENT, ErrorCode, OpCode
from heliograph.metadata.store import Stat, WatchEvent
from heliograph.metadata.znode import is_kind

PASSWORD_BYTES = 16
NO_PASSWORD = bytes(PASSWORD_BYTES)


def frame(content: bytes) -> bytes:
    """Return ``content`` after its length."""
    return jute.int32(len(content)) + content


def connected(timeout_ms: int, session_id: int, password: bytes, has_read_only: bool) -> bytes:
    """Return the answer to a ConnectRequest; a timeout of 0 means that there is no such session."""
    body = jute.int32(0) + jute.int32(timeout_ms) + jute.int64(session_id) + jute.buffer(password)
    return frame(body + (jute.boolean(False) if has_read_only else b""))


def expired(has_read_only: bool) -> bytes:
    """Return the answer to a client whose session has ended, or is not its own."""
    return connected(0, 0, NO_PASSWORD, has_read_only)


def reply(xid: int, zxid: int, code: ErrorCode, body: bytes = b"") -> bytes:
    """Return the answer to a request; it has a body only if the code is OK."""
    return frame(jute.int32(xid) + jute.int64(zxid) + jute.int32(code) + (body if code is ErrorCode.OK else b""))


def event(watched: WatchEvent) -> bytes:
    body = jute.int32(EVENT_CODES[watched.type]) + jute.int32(STATE_CONNECTED) + jute.string(watched.path)
    return reply(XID_EVENT, NO_ZXID, ErrorCode.OK, body)


def stat(found: Stat, acl_version: int = 0) -> bytes:
    """Return the stat of a node. As in ZooKeeper, it does not show whether the node is a container or has a time to
    live."""
    owner = 0 if is_kind(found.ephemeral_owner) else found.ephemeral_owner
    return b"".join(
        (
            jute.int64(found.czxid),
            jute.int64(found.mzxid),
            jute.int64(found.created_ms),
            jute.int64(found.modified_ms),
            jute.int32(found.version),
            jute.int32(found.cversion),
            jute.int32(acl_version),
            jute.int64(owner),
            jute.int32(found.data_length),
            jute.int32(found.num_children),
            jute.int64(found.pzxid),
        )
    )


def strings(texts: Sequence[str]) -> bytes:
    return jute.vector(map(jute.string, texts))


def acl(entries: Sequence[AclEntry]) -> bytes:
    return jute.vector(
        jute.int32(entry.permissions) + jute.string(entry.scheme) + jute.string(entry.identity) for entry in entries
    )


def multi(results: Sequence[tuple[OpCode, bytes]]) -> bytes:
    """Return the results of a multi, each with the operation that it belongs to, or OpCode.ERROR."""
    parts: list[bytes] = []
    for op, result in results:
        code = result if op is OpCode.ERROR else jute.int32(ErrorCode.OK)
        parts += (jute.int32(op), jute.boolean(False), code, result)
    parts += (jute.int32(OpCode.ERROR), jute.boolean(True), jute.int32(-1))
    return b"".join(parts)
