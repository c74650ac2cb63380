"""Frames of the bookie protocol: round trips, streams cut anywhere, and damage."""

from __future__ import annotations

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.frame import (
    FRAME_BYTES_MAX,
    BookieFrameDecoder,
    decode_answer,
    decode_batch,
    decode_request,
    encode_answer,
    encode_batch,
    encode_head,
    encode_request,
    encode_request_head,
)
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Flag, Status

IDS = st.integers(min_value=-1, max_value=2**62)
REQUESTS = st.builds(
    BookieRequest,
    op=st.sampled_from(BookieOp),
    request_id=st.integers(0, 2**62),
    ledger_id=IDS,
    entry_id=IDS,
    flags=st.sampled_from([Flag(value) for value in range(8)]),
    limit=st.integers(0, 2**31),
    last_entry_id=IDS,
)


@given(st.lists(st.tuples(REQUESTS, st.binary(max_size=50)), max_size=6), st.integers(1, 40))
def test_requests_survive_any_cut(sent: list[tuple[BookieRequest, bytes]], step: int) -> None:
    stream = b"".join(encode_request(request, body) for request, body in sent)
    decoder = BookieFrameDecoder()
    got = []
    for at in range(0, len(stream), step):
        got += [(decode_request(header), bytes(body)) for header, body in decoder.feed(stream[at : at + step])]
    assert got == sent


@given(IDS, st.sampled_from(Status), IDS, st.text(max_size=40), st.binary(max_size=30))
def test_answers_come_back(number: int, status: Status, lac: int, text: str, body: bytes) -> None:
    answer = Answer(number, status, lac, text)
    ((header, got),) = BookieFrameDecoder().feed(encode_answer(answer, body))
    assert decode_answer(header) == answer
    assert bytes(got) == body


def test_a_long_text_is_cut_to_fit_the_header() -> None:
    ((header, _),) = BookieFrameDecoder().feed(encode_answer(Answer(1, Status.STORAGE_ERROR, -1, "ü" * 100_000)))
    assert decode_answer(header).text == "ü" * 512


def test_head_and_body_may_be_written_apart() -> None:
    request = BookieRequest(BookieOp.ADD, 7, 1, 2)
    assert encode_request_head(request, 5) + b"entry" == encode_request(request, b"entry")


def test_a_damaged_header_is_noticed() -> None:
    frame = bytearray(encode_request(BookieRequest(BookieOp.READ, 1, 2, 3)))
    for at in range(4, len(frame)):
        damaged = bytes(frame[:at]) + bytes([frame[at] ^ 0x40]) + bytes(frame[at + 1 :])
        with pytest.raises(FrameError):
            BookieFrameDecoder().feed(damaged)


def test_a_frame_above_the_limit_is_refused_at_its_length() -> None:
    with pytest.raises(FrameError, match="limit"):
        BookieFrameDecoder().feed((FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(6))  # I15


@pytest.mark.parametrize(
    "header", [[], [1, 2], ["x"] * 7, [99, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 64, 0, 0], [[], *[0] * 6]]
)
def test_what_is_no_request(header: list[object]) -> None:
    with pytest.raises(FrameError):
        decode_request(header)


@pytest.mark.parametrize("header", [[], [1, 99, 0, ""], ["1", 0, 0, ""], [1, 0, 0, None], [1, [], 0, ""]])
def test_what_is_no_answer(header: list[object]) -> None:
    with pytest.raises(FrameError):
        decode_answer(header)


def test_a_header_that_is_no_array() -> None:
    ((_, body),) = BookieFrameDecoder().feed(encode_head([1], 0))
    assert bytes(body) == b""
    packed = b"\xa1x"
    frame = (6 + len(packed)).to_bytes(4, "big") + len(packed).to_bytes(2, "big")
    with pytest.raises(FrameError, match="array"):
        BookieFrameDecoder().feed(frame + crc32c.crc32c(packed).to_bytes(4, "big") + packed)


@given(st.lists(st.binary(max_size=20), max_size=5))
def test_batches_come_back(entries: list[bytes]) -> None:
    assert [bytes(entry) for entry in decode_batch(encode_batch(list(entries)))] == entries


@pytest.mark.parametrize("body", [b"\x00", b"\x00\x00\x00\x05abc"])
def test_a_batch_that_ends_early(body: bytes) -> None:
    with pytest.raises(FrameError):
        decode_batch(body)
