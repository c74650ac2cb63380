"""Ids of single messages that one object serializes equal those of ``MessageId``."""

from __future__ import annotations

from heliograph.pipelines.reading.message_ids import SingleIds
from heliograph.protocol.message_id import MessageId
from heliograph.protocol.pulsar_pb2 import MessageIdData

# Ledgers and partitions change, come back, and meet ids of chunked messages in between.
PLACES = [
    MessageId(ledger, entry, partition)
    for ledger, partition in ((0, -1), (0, 0), (7, 0), (7, -1), (0, -1), (1 << 40, 3))
    for entry in (0, 1, 127, 128, 1 << 33, 0)
]


def test_each_id_equals_that_of_a_message_id() -> None:
    ids = SingleIds()
    assert [ids.bytes_of(place) for place in PLACES] == [place.to_bytes() for place in PLACES]


def test_the_first_chunk_of_a_message_is_no_part_of_the_next_id() -> None:
    ids = SingleIds()
    place = MessageId(7, 5)
    chunked = MessageIdData.FromString(ids.bytes_of(place, first_chunk=(6, 4)))
    assert (chunked.first_chunk_message_id.ledger_id, chunked.first_chunk_message_id.entry_id) == (6, 4)
    assert MessageId.from_bytes(chunked.SerializeToString()) == place
    assert ids.bytes_of(place) == place.to_bytes()
