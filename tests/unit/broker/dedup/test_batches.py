"""Sequence ids of the messages of a batch, which a user may choose: the highest one, and repeats at the head."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.broker.dedup.dedup import CHUNKS_MS_MAX, Chunk, Deduplication, DedupVerdict, Remembered
from heliograph.actors.broker.dedup.topic_dedup import TopicDeduplication, _drop_repeats, _sequence_ids
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import compress

IDS = [100, 250, 400]
CODECS = [pb.NONE, pb.LZ4, pb.ZLIB, pb.ZSTD, pb.SNAPPY]


def batch(
    ids: Sequence[int | None], first: int, compression: pb.CompressionType = pb.NONE, highest: int = 0
) -> TopicEntry:
    """Return a batch; a message whose id is None does not name it."""
    plain = b""
    for place, number in enumerate(ids):
        single = pb.SingleMessageMetadata(payload_size=1, partition_key=f"k{place}")
        if number is not None:
            single.sequence_id = number
        head = single.SerializeToString()
        plain += len(head).to_bytes(4, "big") + head + b"%d" % place
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=first,
        publish_time=1,
        num_messages_in_batch=len(ids),
        compression=compression,
        uncompressed_size=len(plain),
        highest_sequence_id=highest,
    )
    return TopicEntry.read(codec.encode_entry(metadata, compress(compression, plain)), check=True)


def values(entry: TopicEntry) -> list[tuple[str, bytes]]:
    metadata, payload = codec.split(entry.payload)
    read = codec.batch_messages(metadata, payload)
    assert read is not None, "the batch can be read"
    messages = list(read)
    assert metadata.num_messages_in_batch == len(messages) == entry.messages
    return [(single.partition_key, value) for single, value in messages]


@pytest.mark.parametrize("compression", CODECS)
def test_the_highest_id_of_a_batch_is_that_of_its_last_message(compression: pb.CompressionType) -> None:
    assert _sequence_ids(batch(IDS, 100, compression), 100, 0) == (IDS, 400)


def test_an_id_that_the_client_names_is_believed_without_reading_the_batch() -> None:
    assert _sequence_ids(batch(IDS, 100), 100, 400) == (None, 400)


def test_a_highest_id_that_is_too_small_for_the_batch_is_not_believed() -> None:
    assert _sequence_ids(batch(IDS, 100), 100, 101) == (None, 102)


def test_messages_without_an_id_count_on_from_the_first() -> None:
    assert _sequence_ids(batch([None, None, None], 7), 7, 0) == ([7, 8, 9], 9)


def test_a_batch_that_cannot_be_read_counts_its_messages() -> None:
    entry = batch(IDS, 100)
    metadata, payload = codec.split(entry.payload)
    metadata.encryption_keys.add(key="k", value=b"v")
    entry.payload = codec.encode_entry(metadata, bytes(payload))
    assert _sequence_ids(entry, 100, 0) == (None, 102)
    before = bytes(entry.payload)
    assert _sequence_ids(entry, 100, 400, 250) == (None, 400), "its repeats are not known"
    assert bytes(entry.payload) == before, "to store a message twice is safe, to drop it is not"


@pytest.mark.parametrize("compression", CODECS)
@pytest.mark.parametrize(("pushed", "left"), [(99, 3), (100, 2), (250, 1), (300, 1), (399, 1)])
def test_repeats_at_the_head_of_a_batch_go_and_the_rest_stays(
    compression: pb.CompressionType, pushed: int, left: int
) -> None:
    entry = batch(IDS, 100, compression, highest=400)
    ids, highest = _sequence_ids(entry, 100, 400, max(pushed, 100))
    assert (ids, highest) == (IDS, 400)
    _drop_repeats(entry, IDS, pushed)
    assert values(entry) == [(f"k{place}", b"%d" % place) for place in range(3 - left, 3)]
    metadata, _ = codec.split(entry.payload)
    assert (metadata.sequence_id, metadata.highest_sequence_id) == (IDS[3 - left], 400)
    assert TopicEntry.read(entry.payload, check=True).messages == left, "the checksum is of the new bytes"


def test_a_batch_that_would_hold_the_loop_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = batch(IDS, 100, pb.ZSTD)
    monkeypatch.setattr(codec, "IDS_MESSAGES_MAX", 2)
    assert codec.sequence_ids(entry.payload, 100) is None
    monkeypatch.setattr(codec, "IDS_MESSAGES_MAX", 3)
    assert codec.sequence_ids(entry.payload, 100) == IDS
    monkeypatch.setattr(codec, "IDS_BYTES_MAX", 1)
    assert codec.sequence_ids(entry.payload, 100) is None


def test_a_producer_was_active_by_the_clock_of_its_topic() -> None:  # I21
    """A takeover replays these times, and chunks are judged by them: the clock of the machine may be behind."""
    core, topic_ms = Deduplication(), 1 << 50
    log: Any = SimpleNamespace(mark=0)
    stamp = SimpleNamespace(now_ms=lambda: topic_ms)
    ledger: Any = SimpleNamespace(chain=SimpleNamespace(end=0), stamp=stamp, ages=stamp, lose=None)
    dedup = TopicDeduplication(core, log, ledger, snapshot_entries=1)
    assert core.judge("p", 7) is DedupVerdict.ACCEPT
    dedup.confirmed("p", 7, None)
    assert core.snapshot() == [Remembered("p", 7, topic_ms)]


def test_a_chunk_that_comes_again_after_its_producer_left_is_judged_by_the_clock_of_the_topic() -> None:  # I21
    """The clock of the machine is far behind the topic's: what was stored a moment ago does not look old."""
    core, topic_ms = Deduplication(), 1 << 50
    log: Any = SimpleNamespace(mark=0)
    stamp = SimpleNamespace(now_ms=lambda: topic_ms)
    ledger: Any = SimpleNamespace(chain=SimpleNamespace(end=0), stamp=stamp, ages=stamp, lose=None)
    dedup, chunk = TopicDeduplication(core, log, ledger, snapshot_entries=1), Chunk(b"m", 0, is_last=False)
    core.connected("p")
    assert core.judge("p", 7, chunk, topic_ms) is DedupVerdict.ACCEPT
    dedup.confirmed("p", 7, chunk)
    dedup.left("p", forget=False)
    core.connected("p")
    assert core.judge("p", 7, chunk, topic_ms + CHUNKS_MS_MAX) is DedupVerdict.DUPLICATE
