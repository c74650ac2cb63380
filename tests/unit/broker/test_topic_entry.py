"""Which memory an entry keeps: its own, or that of the frame that it came in."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.records.topic_entry import COPIED_BYTES_MAX, TopicEntry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.frame import PulsarFrameDecoder, encode_payload_frame

SEND = pb.BaseCommand(type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1))
LARGE = encode_entry_of("p", 0, 1, [b"x" * 1_000] * 128, None)
SMALL = encode_entry_of("p", 0, 1, [b"x" * 1_000], None)

assert len(LARGE) > COPIED_BYTES_MAX > len(SMALL)


def kept_of(stream: bytes, piece: int) -> list[bytes | memoryview]:
    decoder, kept = PulsarFrameDecoder(), []
    for start in range(0, len(stream), piece):
        for _, section in decoder.feed(stream[start : start + piece]):
            assert section is not None
            kept.append(TopicEntry.read(section, check=True).payload)
    return kept


def memory_of(payload: bytes | memoryview) -> int:
    return memoryview(payload if isinstance(payload, bytes) else payload.obj).nbytes


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16, 250_000, 1 << 20])
def test_an_entry_keeps_little_more_than_its_bytes(piece: int) -> None:
    """However the stream is cut, and even if many frames came in one piece."""
    frames = [encode_payload_frame(SEND, entry) for entry in (LARGE, SMALL, LARGE, LARGE, SMALL)]
    kept = kept_of(b"".join(frames), piece)
    assert [bytes(one) for one in kept] == [LARGE, SMALL, LARGE, LARGE, SMALL]
    assert all(memory_of(one) <= len(one) + len(one) // 8 for one in kept)


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16, 1 << 20])
def test_a_large_entry_is_not_copied_out_of_its_frame(piece: int) -> None:
    [kept] = kept_of(encode_payload_frame(SEND, LARGE), piece)
    assert isinstance(kept, memoryview)
    assert isinstance(kept.obj, bytes)


def test_memory_that_can_change_is_not_kept() -> None:
    memory = bytearray(LARGE)
    entry = TopicEntry.read(memoryview(memory), check=True)
    memory[-1] ^= 1
    assert bytes(entry.payload) == LARGE


def test_a_large_entry_that_passes_stays_where_it_is() -> None:
    memory = bytearray(LARGE)
    passing = TopicEntry.read(memoryview(memory), check=False, is_kept=False).payload
    assert isinstance(passing, memoryview)
    assert passing.obj is memory
    assert TopicEntry.read(memoryview(bytearray(SMALL)), check=True, is_kept=False).payload == SMALL
