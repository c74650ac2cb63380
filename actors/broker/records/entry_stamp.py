"""The broker's own metadata in front of every entry: when it was stored by the topic's clock, the latest publish time
up to it, the number of the topic's messages up to it, and on request the index of its last message in the topic.

The clock of a topic never goes back, over failover too (I21): the next owner starts at the time of the last entry. It
is the only clock of expiry, retention, quotas and deduplication. Publish times come in any order, as each producer's
clock and queue have it, but the latest one up to an entry only grows: so a search by time is a bisection, and exact.

A publish time counts as ``APART_MS_MAX`` after the storing at most, so that one message "from next year" draws searches
by time to it for a day only. A clock that was ahead is not set back: no broker knows that it was not its own that is
behind, and what was deleted for that cannot be had back. Ages begin again when the time has come.

Messages are counted from 0, each chunk of a chunked message by itself. An entry gets its index when it is published,
in publish order, and keeps it when it is added again after a ledger failed. So the topic's last stored entry tells the
next owner where to go on. The record has the number as well, for a topic whose entries were all trimmed, or whose last
ones were stored by a broker that does not count.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.message_count import (
    NOTHING_COUNTED,
    TopicCount,
    counted_at_end,
    counted_by_last_entry,
    is_noted,
    with_count,
)
from heliograph.actors.broker.records.topic_chain import last_ledger_id
from heliograph.actors.broker.records.topic_entry import PendingPublish, TopicEntry
from heliograph.actors.errors import BookieError, QuorumLostError
from heliograph.base.clock import wall_ms
from heliograph.metadata.model import LedgerInfo, LedgerMetadata, TopicRecord
from heliograph.protocol.entry import NO_BROKER_METADATA, broker_metadata_of, encode_broker_metadata
from heliograph.protocol.pulsar_pb2 import BrokerEntryMetadata

NONE, TIME, INDEX, BOTH = ENTRY_METADATA = ("none", "time", "index", "both")  # values of the broker's setting
NEXT_INDEX = "next_index"  # property of the record: of the next message; only topics that were ever counted have it
STORED = "latest_stored"  # property of the record: the topic's time, noted whenever ``LATEST`` is
LATEST = "latest_published"  # property of the record: <last closed ledger>:<latest publish time up to its end>
APART_MS_MAX = 24 * 3_600_000  # between right clocks: one set to the wrong time zone is less than a day off
PROBES = 3  # of the last entries, where copies of neighbours are on other bookies
_MESSAGES = struct.Struct("<Q")  # the last field of the block, ``messages``, which is a fixed64

log = logging.getLogger(__name__)


class EntryStamp:
    """Puts the broker's metadata in front of the entries of one topic.

    Args:
        time_ms: of the topic's clock: no entry was stored later.
        latest_ms: the latest publish time of the topic.
        next_index: the index of the next message; None if messages have no index.
        count: the messages of all entries.

    Attributes:
        count: which entries carry a number, and the messages when the topic was opened.
        messages: of all stamped entries, confirmed or not.
        time_ms, latest_ms: of the newest entry; they only grow.  # I21
    """

    def __init__(
        self, *, time_ms: int, latest_ms: int, next_index: int | None, count: TopicCount = NOTHING_COUNTED
    ) -> None:
        assert next_index is None or next_index >= 0, "messages are counted from 0"
        self.time_ms = time_ms
        self.latest_ms = latest_ms
        self.next_index = next_index
        self.messages = count.messages
        self.count = count
        self._metadata = BrokerEntryMetadata()  # one for all entries: making one costs more than filling it
        self._block = b""  # of the times above without the number, once an entry has it; not if messages have an index

    def stamp(self, entry: TopicEntry) -> None:
        """Put the broker's metadata in front of an entry, which has none; its messages are counted. The entry is copied
        out of what it came in, and changed in place: a second one costs more than all the rest of this."""
        assert not entry.broker_bytes, "the broker's metadata is given once"
        if (now := wall_ms()) > self.time_ms:
            self.time_ms, self._block = now, b""
        block = self._block  # that of the entry before: a busy topic stores many a millisecond
        if not block or entry.publish_time_ms > self.latest_ms:
            block = self._next_block(entry)
        self.messages = entry.counted = self.messages + entry.messages
        block += _MESSAGES.pack(entry.counted)
        entry.payload = block + entry.payload
        entry.broker_bytes = len(block)
        entry.stored_ms = self.time_ms
        entry.latest_ms = self.latest_ms

    def _next_block(self, entry: TopicEntry) -> bytes:
        metadata, now = self._metadata, self.time_ms
        if entry.publish_time_ms > self.latest_ms:
            self.latest_ms = max(self.latest_ms, min(entry.publish_time_ms, now + APART_MS_MAX))
        metadata.broker_timestamp, metadata.latest_published, metadata.messages = now, self.latest_ms, 0
        if self.next_index is not None:
            self.next_index += entry.messages
            metadata.index = self.next_index - 1
        block = encode_broker_metadata(metadata)[: -_MESSAGES.size]
        if self.next_index is None:
            self._block = block
        return block

    def now_ms(self) -> int:
        """Return the topic's clock: the wall clock, except that it does not go back."""
        now = wall_ms()
        if now > self.time_ms:
            self.time_ms, self._block = now, b""
        return self.time_ms

    def take_back(self, pending: Iterable[PendingPublish]) -> None:
        """Count the messages of the newest entries no more: they failed, and none of them is added again."""
        gone = sum(entry.messages for entry, _, _ in pending)
        self.messages -= gone
        if self.next_index is not None:
            self.next_index -= gone

    def noted(
        self, record: TopicRecord, pending: Iterable[PendingPublish], confirmed_in: Callable[[int], int]
    ) -> TopicRecord:
        """Return the record with the topic's time and the latest publish time, and with the number of messages up to
        the last confirmed one, which is before the ``pending`` ones, and the index after it.

        Args:
            confirmed_in: returns how many entries of a ledger are confirmed here: recovery may have found more.
        """
        unconfirmed = sum(entry.messages for entry, _, _ in pending)
        last = next((info for info in reversed(record.ledgers) if info.closed_ms and info.entries), None)
        closed = None if last is None else last.ledger_id
        if last is not None and not is_noted(record, last.ledger_id) and confirmed_in(last.ledger_id) == last.entries:
            count = self.count._replace(messages=self.messages - unconfirmed)
            record = with_count(record, last.ledger_id, count)
        known = record.properties
        is_known = STORED in known and known.get(LATEST, "").startswith(f"{closed}:")
        if closed is not None and not is_known:
            noted = {LATEST: f"{closed}:{self.latest_ms}", STORED: str(self.time_ms)}
            record = replace(record, properties={**known, **noted})
        if self.next_index is None:
            return record
        return with_next_index(record, self.next_index - unconfirmed)


def with_next_index(record: TopicRecord, next_index: int) -> TopicRecord:
    """Return the record with another index of the next message."""
    assert next_index >= int(record.properties.get(NEXT_INDEX, 0)), "no index is given twice"
    return _with(record, NEXT_INDEX, str(next_index))


async def begin_stamps(
    record: TopicRecord, recovered: Mapping[int, LedgerMetadata], ledgers: LedgersPort, setting: str
) -> tuple[TopicRecord, EntryStamp]:
    """Return the record of a topic that is being opened, with the index of its next message, and the stamp of entries.

    Args:
        record: every ledger of it is closed and has entries.
        recovered: the metadata of ledgers that were just closed, at the wall clock, by their ids.
        setting: one of ``ENTRY_METADATA``.

    Raises:
        QuorumLostError, BookieError: messages have an index, and the last entry cannot be read now; try again.
    """
    now, is_counted = wall_ms(), setting in (INDEX, BOTH)
    is_numbered = is_counted or NEXT_INDEX in record.properties  # noted also by brokers that do not count
    last = record.ledgers[-1] if record.ledgers else None
    noted_in, _, noted = record.properties.get(LATEST, "").partition(":")
    is_dated, count = last is None or noted_in == str(last.ledger_id), counted_at_end(record)
    metadata = NO_BROKER_METADATA
    if last is not None and (is_numbered or not is_dated or count is None):
        metadata = await _last_metadata(last, ledgers, 1 if is_numbered else PROBES, recovered.get(last.ledger_id))
    if count is None:
        count = counted_by_last_entry(record, metadata.messages)
        record = with_count(record, last_ledger_id(record), count)
    time_ms, latest_ms = _noted_time(record, recovered), int(noted or 0)
    if last is not None and not is_dated:
        # Entries of an earlier release have no times: the end of their ledger counts for both.
        time_ms = max(time_ms, metadata.broker_timestamp or last.closed_ms)
        latest_ms = max(latest_ms, metadata.latest_published or time_ms)
    time_ms, latest_ms = max(time_ms, now), max(latest_ms, 1)  # I21; 0 stands for an entry without a time
    record = _with_closed(record, recovered, time_ms)
    next_index = None
    if is_numbered:
        after = metadata.index + 1 if metadata.HasField("index") else 0
        next_index = max(int(record.properties.get(NEXT_INDEX, 0)), after)
        record = with_next_index(record, next_index)
    next_index = next_index if is_counted else None
    return record, EntryStamp(time_ms=time_ms, latest_ms=latest_ms, next_index=next_index, count=count)


def _noted_time(record: TopicRecord, recovered: Collection[int]) -> int:
    """Return the topic's time as far as its record has it, without ledgers that were closed at the wall clock.

    Ledgers that were trimmed, or that only pieces name, were noted before: the record has at least their time.
    """
    closed = (info.closed_ms for info in record.ledgers if info.ledger_id not in recovered)
    return max(int(record.properties.get(STORED, 0)), *closed, 0)


def _with_closed(record: TopicRecord, recovered: Collection[int], time_ms: int) -> TopicRecord:
    """Return the record whose ledgers that were recovered have been closed at this time."""
    if not recovered:
        return record
    closed = (replace(each, closed_ms=time_ms) if each.ledger_id in recovered else each for each in record.ledgers)
    return replace(record, ledgers=tuple(closed))


async def _last_metadata(
    last: LedgerInfo, ledgers: LedgersPort, probes: int, known: LedgerMetadata | None
) -> BrokerEntryMetadata:
    """Return the broker's metadata of the last entry of a ledger.

    With several ``probes``, an entry that cannot be read counts as published as late as it may be, so that no search
    passes it by, and as stored when one of those before it was.
    """
    assert last.closed_ms, "the topic was recovered"
    time_ms = 0
    for entry_id in range(last.entries - 1, max(last.entries - 1 - probes, -1), -1):
        try:
            reader = await ledgers.open(last.ledger_id, known)
            try:
                metadata = broker_metadata_of((await reader.read(entry_id, entry_id))[0].payload)
            finally:
                await reader.close()
        except (QuorumLostError, BookieError):
            if probes == 1:
                raise
            continue
        if entry_id == last.entries - 1:
            return metadata
        time_ms = metadata.broker_timestamp
        break
    return BrokerEntryMetadata(broker_timestamp=time_ms, latest_published=last.closed_ms + APART_MS_MAX)


def _with(record: TopicRecord, name: str, value: str) -> TopicRecord:
    return replace(record, properties={**record.properties, name: value})
