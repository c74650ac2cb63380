"""Frames: they are decoded from a stream cut at any places, and a peer cannot make the buffer grow."""

from __future__ import annotations

import struct
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.errors import BadRequestError, ProtocolError
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.frame import PulsarFrameDecoder, encode_command, encode_payload_frame

T = pb.BaseCommand
PING = T(type=T.PING, ping=pb.CommandPing())
SEND = T(type=T.SEND, send=pb.CommandSend(producer_id=1, sequence_id=2, num_messages=3))
SECTION = b"\x0e\x01" + bytes(range(100))


def test_layout_of_a_simple_frame() -> None:
    body = PING.SerializeToString()
    assert encode_command(PING) == struct.pack(">II", 4 + len(body), len(body)) + body


def test_layout_of_a_payload_frame() -> None:
    body = SEND.SerializeToString()
    head = struct.pack(">II", 4 + len(body) + len(SECTION), len(body))
    assert encode_payload_frame(SEND, SECTION) == head + body + SECTION


@given(st.lists(st.integers(1, 40), max_size=60))
def test_any_cutting_gives_the_same_commands(cuts: list[int]) -> None:
    stream = encode_command(PING) + encode_payload_frame(SEND, SECTION) + encode_command(PING)
    decoder, got, position = PulsarFrameDecoder(), [], 0
    for cut in [*cuts, len(stream)]:
        got += [
            (command.type, bytes(section) if section is not None else None)
            for command, section in decoder.feed(stream[position : position + cut])
        ]
        position += cut
    assert got == [(T.PING, None), (T.SEND, SECTION), (T.PING, None)]
    assert decoder.buffered == 0


def test_broker_metadata_in_front_of_an_entry_is_left_out() -> None:
    block = pb.BrokerEntryMetadata(broker_timestamp=5, index=6).SerializeToString()
    section = b"\x0e\x02" + struct.pack(">I", len(block)) + block + SECTION
    [(_, got)] = PulsarFrameDecoder().feed(encode_payload_frame(SEND, section))
    assert bytes(got or b"") == SECTION
    [(_, got)] = PulsarFrameDecoder().feed(encode_payload_frame(SEND, section[: -len(SECTION)] + section))
    assert bytes(got or b"") == SECTION  # a client cannot pass its own block for the broker's by sending two
    [(_, got)] = PulsarFrameDecoder(keeps_broker_metadata=True).feed(encode_payload_frame(SEND, section))
    assert bytes(got or b"") == section


def test_an_oversized_frame_is_refused_by_its_length_alone() -> None:  # I15
    decoder = PulsarFrameDecoder(frame_bytes_max=1000)
    with pytest.raises(ProtocolError) as caught:
        decoder.feed(struct.pack(">I", 1001))
    assert caught.value.limit == "1000 bytes"
    assert decoder.buffered == 0
    with pytest.raises(ProtocolError):
        decoder.feed(encode_command(PING))  # the stream cannot be decoded any further


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack(">I", 3) + b"abc",
        struct.pack(">II", 6, 100) + b"ab",
        struct.pack(">II", 6, 2) + b"\xff\xff",
        struct.pack(">II", 6, 2) + b"\x08\x7e",  # an unknown command type
        struct.pack(">II", 8, 2) + b"\x08\x12" + b"\x0e\x02",
        encode_payload_frame(SEND, b"\x0e\x02" + struct.pack(">I", 99)),
    ],
)
def test_contradictions_are_protocol_errors(stream: bytes) -> None:
    with pytest.raises(ProtocolError):
        PulsarFrameDecoder().feed(stream)


@given(st.binary(max_size=300))
def test_garbage_never_escapes_as_another_error(garbage: bytes) -> None:
    decoder = PulsarFrameDecoder(frame_bytes_max=1 << 16)
    try:
        decoder.feed(garbage)
    except ProtocolError:
        return
    assert decoder.buffered <= len(garbage)


def test_an_incomplete_command_is_not_sent() -> None:
    with pytest.raises(BadRequestError):
        encode_command(T(type=T.SEND, send=pb.CommandSend()))


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (T(type=T.LOOKUP, lookup=pb.CommandLookup(topic="~~", request_id=1)), "lookup.topic"),
        (
            T(
                type=T.SUBSCRIBE,
                subscribe=pb.CommandSubscribe(
                    topic="t", subscription="s", sub_type=pb.CommandSubscribe.SHARED, consumer_id=1, request_id=1,
                    metadata=[pb.KeyValue(key="k", value="v"), pb.KeyValue(key="~~", value="v")],
                ),
            ),
            "subscribe.metadata.key",
        ),
        (
            T(
                type=T.GET_TOPICS_OF_NAMESPACE_RESPONSE,
                get_topics_of_namespace_response=pb.CommandGetTopicsOfNamespaceResponse(request_id=1, topics=["~~"]),
            ),
            "get_topics_of_namespace_response.topics",
        ),
    ],
)  # fmt: skip
def test_a_text_that_is_not_utf8_is_refused(command: pb.BaseCommand, field: str) -> None:
    assert PulsarFrameDecoder().feed(encode_command(command)), "a text as any other"
    with pytest.raises(ProtocolError, match=f"a text that is not UTF-8: {field}$"):
        PulsarFrameDecoder().feed(encode_command(command).replace(b"~~", b"\xff~"))


def test_a_frame_that_drips_in_costs_little_more_than_its_bytes() -> None:
    decoder = PulsarFrameDecoder()
    decoder.feed((1 << 20).to_bytes(4, "big"))
    for _ in range(10_000):
        decoder.feed(b"x")
    assert decoder.buffered == 10_004
    assert decoder.missing == (1 << 20) - 10_000
    assert sum(sys.getsizeof(piece) for piece in decoder._pieces) < 2 * decoder.buffered
    decoder.clear()
    assert not decoder.buffered
    assert not decoder._pieces
    with pytest.raises(ProtocolError):
        decoder.feed(b"x")


def test_a_small_rest_does_not_keep_what_came_with_it() -> None:
    decoder = PulsarFrameDecoder()
    pings = encode_command(PING) * 10_000
    decoder.feed(pings + (1 << 20).to_bytes(4, "big") + b"x" * 5_000)
    (piece,) = decoder._pieces
    assert isinstance(piece, memoryview)
    assert len(bytes(piece.obj)) == decoder.buffered == 5_004
