"""Deduplication of one topic: the core's verdicts on entries that producers send, and its snapshots.

A duplicate is answered without a position, in the order in which its producer sent it. An entry that was pushed before
and has no outcome yet is answered when it has one.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Mapping, Sequence

from typing_extensions import override

from heliograph.actors.broker.cursor.log import CursorPlace
from heliograph.actors.broker.dedup.dedup import NOTHING, Chunk, Chunks, Deduplication, DedupVerdict
from heliograph.actors.broker.dedup.log import DedupLog, create_dedup, recover_dedup
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.producers.producer import PublishRequest, TopicProducer
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.position import NOWHERE, Position
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.base.clock import NEVER_MS
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.store import MetadataStore
from heliograph.protocol import entry as codec
from heliograph.protocol import pulsar_pb2 as pb

REPLAY_ENTRIES_MAX = 500  # of one read while entries behind the snapshot are replayed
REPLAY_BYTES_MAX = 4 << 20
MESSAGE_BYTES = 16  # of what stands for the uuid of a large message, which its client chooses (I15)

log = logging.getLogger(__name__)


class TopicDeduplication:
    """The deduplication of one topic, made by ``start_deduplication`` or ``recover_deduplication``. All calls on one
    event loop.

    Attributes:
        core: the sequence ids of the producers.
        duplicates: entries that were not stored because they are duplicates.
        snapshot_entries: entries between two snapshots.
    """

    def __init__(self, core: Deduplication, log: DedupLog, ledger: ManagedLedger, snapshot_entries: int) -> None:
        self.core = core
        self.duplicates = 0
        self.snapshot_entries = snapshot_entries
        self._log = log
        self._ledger = ledger
        self._snapshot_ms = self._ledger.ages.now_ms()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._is_stopped = False  # no snapshot any more; entries in flight may still be confirmed
        log.on_lost = ledger.lose

    @property
    def mark(self) -> int:
        """Return the index of the first entry that a takeover has to read again (I14)."""
        return self._log.mark

    def admit(self, entry: TopicEntry, request: PublishRequest) -> DeduplicatedRequest | None:
        """Return the publication to publish the entry with, or None for a duplicate, whose ``request`` is answered in
        its turn."""
        name, first = request.producer.name, request.sequence_id
        chunk = None if entry.chunk_uuid is None else _chunk_of(codec.metadata_of(entry.payload))
        pushed = self.core.pushed(name)
        ids, highest = _sequence_ids(entry, first, request.highest, pushed)
        if ids and first <= pushed:
            _drop_repeats(entry, ids, pushed)
        now_ms = 0 if chunk is None else self._ledger.stamp.now_ms()
        if self.core.judge(name, highest, chunk, now_ms) is DedupVerdict.ACCEPT:
            return DeduplicatedRequest(self, request, highest, chunk)
        self.duplicates += 1
        chunks = None if chunk is None else self.core.chunks(name)
        number = 0 if chunk is None else chunk.number
        request.producer.in_turn(request, lambda: self._answer(request, highest, chunks, number))
        return None

    def left(self, name: str, *, forget: bool) -> None:
        """Note that a producer disconnected, at the time of the topic's clock, by which its chunks are judged (I21).

        Args:
            forget: no producer will use this name again.
        """
        self.core.disconnected(name, self._ledger.stamp.now_ms(), forget=forget)

    async def settled(self, name: str) -> None:
        """Wait until every entry that was pushed under this name has its outcome.

        Raises:
            ServiceNotReadyError: the topic was lost or closed meanwhile.
        """
        while not self.core.is_settled(name):
            waiting = self._waiting.get(name)
            if waiting is None:
                waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
            await shielded(waiting)

    def confirmed(self, name: str, highest: int, chunk: Chunk | None) -> None:
        """Note that an entry of a producer is durable."""
        self.core.confirmed(name, highest, self._ledger.stamp.now_ms(), chunk)
        if self._ledger.chain.end - self._log.mark >= self.snapshot_entries:
            self._take_snapshot()
        if self._waiting and self.core.is_settled(name):
            waiting = self._waiting.pop(name, None)
            if waiting is not None:
                waiting.set_result(None)

    def housekeep(self) -> None:
        """Forget producers that were inactive for too long; take a snapshot if there are new entries and the last one
        is old."""
        now, seconds = self._ledger.ages.now_ms(), self._ledger.policies.deduplication_seconds
        if seconds >= 0:
            self.core.expire(now - seconds * 1000)
        early, self.core.forgotten_early = self.core.forgotten_early, 0
        if early:
            log.warning(
                "%s: %d producers are forgotten early, as %d others left later: repeats of their messages are stored",
                self._ledger.name, early, self.core.producers_max,
            )  # fmt: skip
        news = self._ledger.chain.end - self._log.mark
        if news >= self.snapshot_entries or (news and now - self._snapshot_ms >= self._snapshot_ms_max()):
            self._take_snapshot()

    def due_ms(self, now_ms: int) -> int:
        """Return when ``housekeep`` has something to do, if nothing happens until then, by the clock of ages. Ledgers
        that a snapshot frees are trimmed after it was written, so that one is waited for."""
        seconds, oldest_ms = self._ledger.policies.deduplication_seconds, self.core.oldest_idle_ms
        due = NEVER_MS if seconds < 0 or oldest_ms is None else oldest_ms + 1_000 * seconds
        news = self._ledger.chain.end - self._log.mark
        if self._log.is_writing or news >= self.snapshot_entries:
            return now_ms
        return min(due, self._snapshot_ms + self._snapshot_ms_max()) if news else due

    def _snapshot_ms_max(self) -> int:
        return self._ledger.policies.deduplication_snapshot_seconds * 1000

    async def close(self) -> None:
        """Write a last snapshot, so that the next owner has nothing to read again."""
        self._fail_waiting()
        await self._log.settled()
        if self._ledger.chain.end > self._log.mark:
            self._log.write(self.core.snapshot())
        await self._log.close()

    async def delete(self) -> None:
        """Delete the stored state, for good."""
        self._is_stopped = True
        self._fail_waiting()
        await self._log.delete()

    def abandon(self) -> None:
        """Write nothing from now on: another broker owns the topic (I13)."""
        self._is_stopped = True
        self._fail_waiting()
        self._log.abandon()

    def _take_snapshot(self) -> None:
        if not self._log.is_writing and not self._is_stopped:
            self._snapshot_ms = self._ledger.ages.now_ms()
            self._log.write(self.core.snapshot())

    def _answer(self, request: PublishRequest, highest: int, chunks: Chunks | None, number: int) -> None:
        is_stored = self.core.last(request.producer.name) >= highest or (
            chunks is not None and chunks.persisted >= number
        )
        if self._ledger.state is WriteState.CLOSED or not is_stored:
            request.failed(ServiceNotReadyError("the topic was lost before the entry was stored"))  # I13
            request.producer.channel.close_producer(request.producer)
        else:
            request.confirmed(NOWHERE)

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(ServiceNotReadyError("the topic is closed here"))
            future.exception()


class DeduplicatedRequest(Publication):
    """A publish request whose outcome is told to deduplication first, then to its producer."""

    __slots__ = ("_chunk", "_dedup", "_highest", "_request")

    def __init__(self, dedup: TopicDeduplication, request: PublishRequest, highest: int, chunk: Chunk | None) -> None:
        self._dedup = dedup
        self._request = request
        self._highest = highest
        self._chunk = chunk

    @override
    def confirmed(self, position: Position) -> None:
        self._dedup.confirmed(self._request.producer.name, self._highest, self._chunk)
        self._request.confirmed(position)

    @override
    def failed(self, error: HeliographError) -> None:
        self._request.failed(error)

    @override
    def delayed(self, error: HeliographError) -> None:
        self._request.delayed(error)


async def start_deduplication(
    place: CursorPlace,
    ledger: ManagedLedger,
    producers: Mapping[str, TopicProducer],
    store: MetadataStore,
    ledgers: LedgersPort,
) -> TopicDeduplication:
    """Start deduplication of a topic that had none. Earlier messages are not known."""
    log = await create_dedup(place, ledger.chain, store, ledgers)
    core = Deduplication()
    for name in producers:
        core.connected(name)
    return TopicDeduplication(core, log, ledger, ledger.policies.deduplication_snapshot_entries)


async def recover_deduplication(
    place: CursorPlace, ledger: ManagedLedger, reader: EntryReader, store: MetadataStore, ledgers: LedgersPort
) -> TopicDeduplication:
    """Recover deduplication as the previous owner left it: its last snapshot, and every entry after that."""
    log, snapshot = await recover_dedup(place, ledger.chain, store, ledgers)
    core = Deduplication()
    core.restore(snapshot)
    await _replay(core, log.mark, ledger.chain, reader)
    return TopicDeduplication(core, log, ledger, ledger.policies.deduplication_snapshot_entries)


def _chunk_of(metadata: pb.MessageMetadata) -> Chunk:
    """Return which chunk an entry is. Stock clients make the uuid of a message of producer and sequence id, so a
    message that is sent again by another process and cut differently is told apart by its sizes."""
    number, chunks = metadata.chunk_id, metadata.num_chunks_from_msg
    name = f"{metadata.sequence_id} {chunks} {metadata.total_chunk_msg_size} {metadata.uuid}"
    message = hashlib.blake2b(name.encode(), digest_size=MESSAGE_BYTES).digest()
    return Chunk(message, number, is_last=number == chunks - 1)


def _sequence_ids(entry: TopicEntry, first: int, highest: int, pushed: int = NOTHING) -> tuple[list[int] | None, int]:
    """Return the sequence ids of an entry's messages, if they were read, and the highest of them.

    They are read if the client does not name the highest (it is 0 then), as ids that a user chooses have gaps, and if
    the entry begins with repeats of what was ``pushed`` and goes on after that. Sequence ids grow, so without reading
    them the highest is at least the first one plus the number of the other messages.
    """
    least = max(highest, first + entry.messages - 1)
    if entry.messages == 1 or (highest and not first <= pushed < highest):
        return None, least
    ids = codec.sequence_ids(entry.payload, first)
    return ids, least if highest or ids is None else max(first, *ids)


def _drop_repeats(entry: TopicEntry, ids: Sequence[int], pushed: int) -> None:
    """Remove the messages at the head of a batch that were pushed before, unless all were."""
    repeats = next((place for place, number in enumerate(ids) if number > pushed), 0)
    if repeats:
        entry.payload = codec.without_first(entry.payload, repeats, ids[repeats])
        entry.messages -= repeats


async def _replay(core: Deduplication, mark: int, chain: Chain, reader: EntryReader) -> None:
    at = max(mark, chain.first)
    while at < chain.end:
        for index, entry in await reader.read(at, REPLAY_ENTRIES_MAX, REPLAY_BYTES_MAX):
            metadata = codec.metadata_of(entry.payload)
            ids, highest = _sequence_ids(entry, metadata.sequence_id, metadata.highest_sequence_id)
            if ids:
                await asyncio.sleep(0)  # reading them takes up to 20 ms of the loop
            chunk = None if entry.chunk_uuid is None else _chunk_of(metadata)
            core.replay(metadata.producer_name, highest, entry.stored_by(reader.closed_ms(index)), chunk)
            at = index + 1
