"""The embedded backend's bytes: frames and records, whole and damaged."""

from __future__ import annotations

import dataclasses
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.metadata.backends.embedded.protocol import (
    ANSWER_BYTES_MAX,
    FRAME_BYTES_MAX,
    EmbeddedFrameDecoder,
    Notice,
    decode_error,
    decode_event,
    decode_operation,
    decode_stat,
    encode_answer,
    encode_error,
    encode_frame,
    encode_operation,
    encode_stat,
    event_code,
)
from heliograph.metadata.backends.embedded.server.record import (
    decode_node,
    decode_session,
    decode_state,
    encode_node,
    encode_session,
    encode_state,
    node_key,
    session_key,
)
from heliograph.metadata.errors import (
    BadVersionError,
    MetadataProtocolError,
    NoNodeError,
    RecordError,
    ValueTooLargeError,
)
from heliograph.metadata.session.sealing import sealed
from heliograph.metadata.store import Check, Create, Delete, EventType, Operation, Set, Stat
from heliograph.metadata.tree import TreeSession
from heliograph.metadata.znode import Znode

NODE = Znode(b"value", 1, 2, 3, 4, 5, 6, 7, 8)


@given(st.lists(st.binary(max_size=40), max_size=8), st.data())
def test_frames_come_out_as_they_went_in_however_they_are_cut(values: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(encode_frame([number, 3, value]) for number, value in enumerate(values))
    decoder, frames, start = EmbeddedFrameDecoder(), [], 0
    while start < len(stream):
        end = data.draw(st.integers(start + 1, len(stream)))
        frames += decoder.feed(stream[start:end])
        start = end
    assert frames == [[number, 3, value] for number, value in enumerate(values)]


def test_frames_are_bounded() -> None:  # I15
    with pytest.raises(ValueTooLargeError):
        encode_frame([1, 2, bytes(FRAME_BYTES_MAX)])
    with pytest.raises(MetadataProtocolError):
        EmbeddedFrameDecoder().feed(struct.pack(">I", FRAME_BYTES_MAX + 1))


@pytest.mark.slow
def test_large_answers_come_in_parts_that_only_a_client_joins() -> None:
    names = ["n" * 700 for _ in range(20_000)]
    stream, decoder = encode_answer([7, 0, names], joins_answers=True), EmbeddedFrameDecoder(joins_answers=True)
    assert len(stream) > FRAME_BYTES_MAX
    found = [decoder.feed(stream[start : start + 100_000]) for start in range(0, len(stream), 100_000)]
    assert [frame for frames in found for frame in frames] == [[7, 0, names]]
    assert encode_answer([1, 0, None], joins_answers=False) == encode_frame([1, 0, None])
    parts = EmbeddedFrameDecoder().feed(stream)
    assert [frame[:2] for frame in parts] == [[0, Notice.PART]] * (len(parts) - 1) + [[0, Notice.LAST_PART]]
    with pytest.raises(ValueTooLargeError):
        encode_answer([1, 0, bytes(ANSWER_BYTES_MAX)], joins_answers=True)
    with pytest.raises(ValueTooLargeError, match="upgrade it"):
        encode_answer([7, 0, names], joins_answers=False)
    for bad in ([0, Notice.PART], [0, Notice.PART, "text"]):
        with pytest.raises(MetadataProtocolError):
            EmbeddedFrameDecoder(joins_answers=True).feed(encode_frame(bad))
    part = encode_frame([0, Notice.PART, bytes(FRAME_BYTES_MAX // 2)])
    with pytest.raises(MetadataProtocolError, match="above the limit"):
        EmbeddedFrameDecoder(joins_answers=True).feed(part * (ANSWER_BYTES_MAX * 2 // FRAME_BYTES_MAX + 1))


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x01", b"\x91\x01", b"\x92\xa1a\x01", b"\x92\x01\x02\x03"])
def test_frames_that_make_no_sense(body: bytes) -> None:
    with pytest.raises(MetadataProtocolError):
        EmbeddedFrameDecoder().feed(struct.pack(">I", len(body)) + body)


@pytest.mark.parametrize(
    "operation",
    [
        Create("/a", b"v", True, True),
        Set("/a", b"v", 3),
        Delete("/a", 3),
        Check("/a"),
        Create("/\ud800"),
        Create("/a", None),
        Set("/a", None),
    ],
)
def test_operations_come_out_as_they_went_in(operation: Operation) -> None:
    (frame,) = EmbeddedFrameDecoder().feed(encode_frame([1, 3, encode_operation(operation)]))
    assert decode_operation(frame[2]) == operation


@pytest.mark.parametrize(
    "items", [None, [], [9, "/a"], [1, "/a"], [2, "/a", "text", 1], [3, b"/a", 1], [4, "/a", True]]
)
def test_operations_that_make_no_sense(items: object) -> None:
    with pytest.raises(MetadataProtocolError):
        decode_operation(items)


def test_errors_and_stats_and_events_come_out_as_they_went_in() -> None:
    error: HeliographError = BadVersionError("why")
    error.operation_index = 3  # type: ignore[attr-defined]
    (frame,) = EmbeddedFrameDecoder().feed(encode_error(7, error))
    again = decode_error(frame[1], frame[2])
    assert isinstance(again, BadVersionError)
    assert (frame[0], str(again), again.operation_index) == (7, "why", 3)
    (frame,) = EmbeddedFrameDecoder().feed(encode_error(7, BadRequestError("why", field="f", limit="l")))
    again = decode_error(frame[1], frame[2])
    assert (type(again), again.field, again.limit) == (BadRequestError, "f", "l")
    assert isinstance(decode_error(99, ["", None, None, None]), MetadataProtocolError)
    assert isinstance(decode_error(1, None), MetadataProtocolError)
    assert isinstance(decode_error(1, ["", None, None, None]), NoNodeError)
    stat = Stat(1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    assert encode_stat(decode_stat(encode_stat(stat))) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [decode_event([1, event_code(kind), "/"])[1].type for kind in EventType] == list(EventType)


def test_records_come_out_as_they_went_in() -> None:
    key = node_key("/ä/b")
    assert decode_node(key, encode_node(key, NODE)) == ("/ä/b", NODE)
    null = dataclasses.replace(NODE, value=None)
    assert decode_node(key, encode_node(key, null)) == ("/ä/b", null)
    key = session_key(1 << 61)
    session = TreeSession(1 << 61, "password", 700, 0)
    assert decode_session(key, encode_session(key, session)) == session
    assert decode_state(encode_state(99)) == 99


def test_record_layout_is_what_was_written_before() -> None:
    key = node_key("/a")
    assert key == b"n/a"
    assert encode_node(key, NODE).hex() == (
        "3cabd33a01"
        "0100000000000000020000000000000003000000000000000400000000000000"
        "0500000000000000060000000000000007000000000000000800000000000000"
        "76616c7565"
    )


def test_a_null_value_is_a_flag_of_layout_2_and_other_flags_are_refused() -> None:
    key = node_key("/a")
    stored = encode_node(key, dataclasses.replace(NODE, value=None))
    assert stored[4:5] + stored[-1:] == b"\x02\x01"
    assert len(stored) == len(encode_node(key, NODE)) - len(NODE.value or b"") + 1
    with pytest.raises(RecordError, match="upgrade"):
        decode_node(key, sealed(key, stored[5:-1] + b"\x80", 2))


@given(st.integers(0, 73), st.integers(1, 255))
def test_damaged_records_are_refused(place: int, flip: int) -> None:
    key = node_key("/a")
    value = bytearray(encode_node(key, NODE))
    value[place % len(value)] ^= flip
    with pytest.raises(RecordError):
        decode_node(key, bytes(value))


def test_records_that_are_short_misplaced_or_newer() -> None:
    key = node_key("/a")
    with pytest.raises(RecordError, match="short"):
        decode_node(key, encode_node(key, NODE)[:20])
    with pytest.raises(RecordError, match="checksum"):
        decode_node(node_key("/b"), encode_node(key, NODE))
