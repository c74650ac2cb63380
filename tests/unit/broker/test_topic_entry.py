"""Which memory an entry keeps: its own once it has the broker's metadata, and that of an answer only if it is large."""

from __future__ import annotations

import pytest

from heliograph.actors.broker.records.entry_stamp import EntryStamp
from heliograph.actors.broker.records.topic_entry import COPIED_BYTES_MAX, TopicEntry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.frame import PulsarFrameDecoder, encode_payload_frame

SEND = pb.BaseCommand(type=pb.BaseCommand.SEND, send=pb.CommandSend(producer_id=1, sequence_id=1))
LARGE = encode_entry_of("p", 0, 1, [b"x" * 1_000] * 128, None)
SMALL = encode_entry_of("p", 0, 1, [b"x" * 1_000], None)

assert len(LARGE) > COPIED_BYTES_MAX > len(SMALL)


@pytest.mark.parametrize("piece", [1 << 12, 1 << 16, 250_000, 1 << 20])
def test_a_stamped_entry_keeps_nothing_of_its_frame(piece: int) -> None:
    """However the stream is cut, and even if many frames came in one piece."""
    decoder, stamp = PulsarFrameDecoder(), EntryStamp(time_ms=1, latest_ms=1, next_index=None)
    stream = b"".join(encode_payload_frame(SEND, entry) for entry in (LARGE, SMALL, LARGE, LARGE, SMALL))
    kept: list[TopicEntry] = []
    for start in range(0, len(stream), piece):
        for _, section in decoder.feed(stream[start : start + piece]):
            assert section is not None
            kept.append(TopicEntry.read(section, check=True))
            stamp.stamp(kept[-1])
    assert [bytes(one.client_bytes()) for one in kept] == [LARGE, SMALL, LARGE, LARGE, SMALL]
    assert all(type(one.payload) is bytes for one in kept)


def test_a_large_entry_that_was_read_stays_where_it_is() -> None:
    memory = bytearray(LARGE)
    passing = TopicEntry.read(memoryview(memory), check=False, copies=True).payload
    assert isinstance(passing, memoryview)
    assert passing.obj is memory
    assert type(TopicEntry.read(memoryview(bytearray(SMALL)), check=True, copies=True).payload) is bytes
