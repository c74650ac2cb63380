"""The endpoint's bytes: frames, requests and replies, whole, damaged, and as kazoo writes and reads them."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kazoo.protocol import serialization as kazoo
from kazoo.security import ACL, Id

from heliograph.metadata.endpoint.limits import ACL_ENTRIES_MAX, FRAME_BYTES_MAX, GREETING_BYTES_MAX
from heliograph.metadata.endpoint.wire import jute, replies
from heliograph.metadata.endpoint.wire.acl import AclEntry
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode, code_of
from heliograph.metadata.endpoint.wire.frames import FOUR_LETTER_WORDS, FrameCutter
from heliograph.metadata.endpoint.wire.requests import (
    CreateNode,
    Multi,
    Read,
    SetAcl,
    SetData,
    SetWatches,
    VersionedRequest,
    decode_connect,
    decode_request,
)
from heliograph.metadata.errors import BadVersionError, ConnectionLossError, MetadataProtocolError, ValueTooLargeError
from heliograph.metadata.store import EventType, Stat, WatchEvent
from heliograph.metadata.znode import is_kind

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
ints = st.integers(-(1 << 31), (1 << 31) - 1)
longs = st.integers(-(1 << 63), (1 << 63) - 1)
stats = st.builds(Stat, longs, longs, ints, ints, longs, ints, ints, longs, longs, longs)
acls = st.lists(st.builds(AclEntry, st.integers(0, 31), texts, texts), max_size=4)


def request(op: int, record: Any) -> Any:
    """Return our reading of what kazoo writes."""
    return decode_request(jute.int32(7) + jute.int32(op) + bytes(record.serialize())).body


def kazoo_acls(entries: list[AclEntry]) -> list[Any]:
    return [ACL(entry.permissions, Id(entry.scheme, entry.identity)) for entry in entries]


@given(st.binary(max_size=300))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    for decode in (decode_request, decode_connect):
        with contextlib.suppress(MetadataProtocolError):
            decode(data)


@given(st.sampled_from(list(OpCode)), st.binary(max_size=300))
def test_any_body_is_read_or_noted_as_unreadable(op: OpCode, body: bytes) -> None:
    assert decode_request(jute.int32(1) + jute.int32(op) + body).op is op


@given(st.lists(st.binary(max_size=300)), st.binary(max_size=40))
def test_frames_do_not_depend_on_how_the_bytes_come(contents: list[bytes], cuts: bytes) -> None:
    stream = b"".join(replies.frame(content) for content in contents)
    cutter, found, rest = FrameCutter(), [], stream
    for cut in cuts:
        found += cutter.feed(rest[:cut])
        rest = rest[cut:]
    found += cutter.feed(rest)
    assert found == contents


@given(st.lists(st.binary(max_size=300), max_size=5))
def test_any_stream_is_cut_or_refused(chunks: list[bytes]) -> None:
    cutter = FrameCutter()
    try:
        for chunk in chunks:
            assert sum(map(len, cutter.feed(chunk))) <= sum(map(len, chunks))
    except MetadataProtocolError:
        pass


def test_frames_are_bounded_and_words_are_told_apart_from_lengths() -> None:
    for first, most in ((b"", GREETING_BYTES_MAX), (replies.frame(b"connect"), FRAME_BYTES_MAX)):
        cutter = FrameCutter()
        cutter.feed(first + jute.int32(most))
        assert (cutter.buffered, cutter.missing) == (4, most)
        cutter.feed(b"x" * most)
        assert (cutter.buffered, cutter.missing) == (0, 4)
        for length in (most + 1, -1, (1 << 31) - 1):
            with pytest.raises(MetadataProtocolError):
                FrameCutter().feed(first + jute.int32(length))
    for word in FOUR_LETTER_WORDS:
        assert int.from_bytes(word) > FRAME_BYTES_MAX
        cutter = FrameCutter()
        assert cutter.feed(word[:2]) == []
        assert cutter.feed(word[2:] + b"\n") == []
        assert cutter.word == word
    later = FrameCutter()
    later.feed(replies.frame(b"hello"))
    with pytest.raises(MetadataProtocolError):
        later.feed(b"ruok")


def test_counts_are_checked_before_anything_is_read() -> None:
    for count in (1 << 30, -2):
        with pytest.raises(MetadataProtocolError):
            jute.JuteReader(jute.int32(count) + b"x" * 8).strings()
        with pytest.raises(MetadataProtocolError):
            jute.JuteReader(jute.int32(count) + b"x" * 8).buffer()
    assert jute.JuteReader(jute.int32(-1)).strings() == []
    assert jute.JuteReader(jute.int32(-1)).buffer() == b""
    entry = jute.int32(1) + jute.string("world") + jute.string("anyone")
    for size, is_read in ((ACL_ENTRIES_MAX, True), (ACL_ENTRIES_MAX + 1, False)):
        body = jute.string("/a") + jute.vector([entry] * size) + jute.int32(0)
        read = decode_request(jute.int32(1) + jute.int32(OpCode.SET_ACL) + body)
        assert (read.body is not None) is is_read


@given(texts, st.binary(max_size=50), acls, ints, st.booleans())
def test_requests_are_read_as_kazoo_writes_them(
    path: str, value: bytes, acl: list[AclEntry], number: int, watch: bool
) -> None:
    theirs = kazoo_acls(acl)
    created = CreateNode(path, value, tuple(acl), number)
    assert request(OpCode.CREATE, kazoo.Create(path, value, theirs, number)) == created
    assert request(OpCode.CREATE2, kazoo.Create2(path, value, theirs, number)) == created
    assert request(OpCode.SET_DATA, kazoo.SetData(path, value, number)) == SetData(path, value, number)
    assert request(OpCode.SET_ACL, kazoo.SetACL(path, theirs, number)) == SetAcl(path, tuple(acl), number)
    assert request(OpCode.GET_DATA, kazoo.GetData(path, watch)) == Read(path, watch)
    operations = [
        kazoo.Create(path, value, theirs, number), kazoo.SetData(path, value, number),
        kazoo.CheckVersion(path, number), kazoo.Delete(path, number),
    ]  # fmt: skip
    assert request(OpCode.MULTI, kazoo.Transaction(operations)) == Multi(
        [
            (OpCode.CREATE, created),
            (OpCode.SET_DATA, SetData(path, value, number)),
            (OpCode.CHECK, VersionedRequest(path, number)),
            (OpCode.DELETE, VersionedRequest(path, number)),
        ]
    )


@given(longs, st.lists(st.lists(texts, max_size=3), min_size=5, max_size=5))
def test_set_watches_is_read_back(zxid: int, lists: list[list[str]]) -> None:
    data, exist, child, persistent, recursive = lists
    body = jute.int64(zxid) + b"".join(map(replies.strings, lists))
    assert decode_request(jute.int32(-8) + jute.int32(OpCode.SET_WATCHES2) + body).body == SetWatches(
        zxid, data, exist, child, persistent, recursive
    )
    assert decode_request(jute.int32(-8) + jute.int32(OpCode.SET_WATCHES) + body).body == SetWatches(
        zxid, data, exist, child, [], []
    )


@given(longs, longs, ints, st.binary(min_size=16, max_size=16), st.booleans())
def test_the_hello_is_kazoos(session_id: int, zxid: int, timeout_ms: int, password: bytes, read_only: bool) -> None:
    asked = decode_connect(bytes(kazoo.Connect(0, zxid, timeout_ms, session_id, password, read_only).serialize()))
    assert (asked.session_id, asked.last_zxid, asked.timeout_ms, asked.password, asked.has_read_only) == (
        session_id, zxid, timeout_ms, password, True,
    )  # fmt: skip
    answer, _ = kazoo.Connect.deserialize(replies.connected(timeout_ms, session_id, password, True)[4:], 0)
    assert (answer.time_out, answer.session_id, answer.passwd, answer.read_only) == (
        timeout_ms, session_id, password, False,
    )  # fmt: skip
    over, _ = kazoo.Connect.deserialize(replies.expired(False)[4:], 0)
    assert (over.time_out, over.session_id, over.passwd) == (0, 0, bytes(16))


@given(stats, st.lists(texts), acls, st.binary(max_size=30), ints)
def test_replies_are_read_by_kazoo_as_meant(
    stat: Stat, names: list[str], acl: list[AclEntry], value: bytes, version: int
) -> None:
    encoded = replies.stat(stat, version)
    shown = kazoo.Exists.deserialize(encoded, 0)
    if stat.czxid != -1:
        assert (shown.czxid, shown.mzxid, shown.pzxid, shown.version, shown.cversion, shown.aversion) == (
            stat.czxid, stat.mzxid, stat.pzxid, stat.version, stat.cversion, version,
        )  # fmt: skip
        assert (shown.ephemeralOwner, shown.dataLength, shown.numChildren) == (
            0 if is_kind(stat.ephemeral_owner) else stat.ephemeral_owner, stat.data_length, stat.num_children,
        )  # fmt: skip
        assert (shown.ctime, shown.mtime) == (stat.created_ms, stat.modified_ms)
    assert kazoo.GetChildren.deserialize(replies.strings(names), 0) == names
    assert kazoo.GetACL.deserialize(replies.acl(acl) + encoded, 0)[0] == kazoo_acls(acl)
    assert kazoo.GetData.deserialize(jute.buffer(value) + encoded, 0)[0] == value


def test_an_event_and_an_error_are_read_by_kazoo_as_meant() -> None:
    data = replies.event(WatchEvent(EventType.CHILD, "/ä"))[4:]
    header, offset = kazoo.ReplyHeader.deserialize(data, 0)
    assert (header.xid, header.zxid, header.err) == (-1, -1, 0)
    event, _ = kazoo.Watch.deserialize(data, offset)
    assert (event.type, event.state, event.path) == (4, 3, "/ä")
    failed, rest = kazoo.ReplyHeader.deserialize(replies.reply(5, 9, ErrorCode.NO_NODE, b"ignored")[4:], 0)
    assert (failed, rest) == (kazoo.ReplyHeader(5, 9, -101), 16)


def test_numbers_beyond_javas_wrap_round_and_every_error_has_a_code() -> None:
    assert jute.int32((1 << 32) + 5) == jute.int32(5)
    assert jute.int64((1 << 63) + 5) == jute.int64(5 - (1 << 63))
    assert code_of(BadVersionError()) is ErrorCode.BAD_VERSION
    assert code_of(ValueTooLargeError()) is ErrorCode.BAD_ARGUMENTS
    assert code_of(ConnectionLossError()) is ErrorCode.SYSTEM_ERROR  # not answered: its connection ends
