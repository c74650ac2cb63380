"""The broker's own metadata of entries: when it took them, and the index of their last message in the topic.

Messages are counted from 0, each chunk of a chunked message by itself. An entry gets its index when it is published,
in publish order, and keeps it when it is added again after a ledger failed. So the topic's last stored entry tells the
next owner where to go on. The record has the number as well, for a topic whose entries were all trimmed, or whose last
ones were stored by a broker that does not count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.publication import PendingPublish
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.clock import wall_ms
from heliograph.metadata.model import TopicRecord
from heliograph.protocol.entry import broker_metadata_of, encode_broker_metadata
from heliograph.protocol.pulsar_pb2 import BrokerEntryMetadata

NONE, TIME, INDEX, BOTH = ENTRY_METADATA = ("none", "time", "index", "both")  # values of the broker's setting
NEXT_INDEX = "next_index"  # property of the record: of the next message; only topics that were ever counted have it


class EntryStamp:
    """Puts the broker's metadata in front of the entries of one topic.

    Args:
        has_time: whether entries get the time.
        next_index: the index of the next message; None if messages are not counted.
    """

    def __init__(self, *, has_time: bool, next_index: int | None) -> None:
        assert next_index is None or next_index >= 0, "messages are counted from 0"
        self.next_index = next_index
        self._has_time = has_time
        self._metadata = BrokerEntryMetadata()  # one for all entries: making one costs more than filling it

    def stamped(self, entry: TopicEntry) -> TopicEntry:
        """Return the entry with the broker's metadata; its messages are counted."""
        metadata, time_ms = self._metadata, entry.publish_time_ms
        if self._has_time:
            metadata.broker_timestamp = time_ms = wall_ms()
        if self.next_index is not None:
            self.next_index += entry.messages
            metadata.index = self.next_index - 1
        return entry.behind(encode_broker_metadata(metadata), time_ms)

    def take_back(self, pending: Iterable[PendingPublish]) -> None:
        """Count the messages of the newest entries no more: they failed, and none of them is added again."""
        if self.next_index is not None:
            self.next_index -= sum(entry.messages for entry, _ in pending)

    def noted(self, record: TopicRecord, pending: Iterable[PendingPublish]) -> TopicRecord:
        """Return the record with the index after the last confirmed message, which is before the ``pending`` ones."""
        if self.next_index is None:
            return record
        return with_next_index(record, self.next_index - sum(entry.messages for entry, _ in pending))


def with_next_index(record: TopicRecord, next_index: int) -> TopicRecord:
    """Return the record with another index of the next message."""
    assert next_index >= int(record.properties.get(NEXT_INDEX, 0)), "no index is given twice"
    return replace(record, properties={**record.properties, NEXT_INDEX: str(next_index)})


async def begin_stamps(
    record: TopicRecord, ledgers: LedgersPort, setting: str
) -> tuple[TopicRecord, EntryStamp | None]:
    """Return the record of a topic that is being opened, with the index of its next message, and the stamp of entries.

    Args:
        record: every ledger of it is closed and has entries.
        setting: one of ``ENTRY_METADATA``.

    Raises:
        QuorumLostError, BookieError: the last entry cannot be read now; try again.
    """
    is_counted = setting in (INDEX, BOTH)
    next_index = None
    if (
        is_counted or NEXT_INDEX in record.properties
    ):  # noted also by brokers that do not count, before they add entries
        next_index = max(int(record.properties.get(NEXT_INDEX, 0)), await _index_after_last(record, ledgers))
        record = with_next_index(record, next_index)
    if setting == NONE:
        return record, None
    return record, EntryStamp(has_time=setting in (TIME, BOTH), next_index=next_index if is_counted else None)


async def _index_after_last(record: TopicRecord, ledgers: LedgersPort) -> int:
    """Return the index that follows the topic's last entry; 0 if that has none."""
    if not record.ledgers:
        return 0
    last = record.ledgers[-1]
    assert last.closed_ms, "the topic was recovered"
    reader = await ledgers.open(last.ledger_id)
    try:
        found = await reader.read(last.entries - 1, last.entries - 1)
        metadata = broker_metadata_of(found[0].payload)
    finally:
        await reader.close()
    return metadata.index + 1 if metadata.HasField("index") else 0
