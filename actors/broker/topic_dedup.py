"""Deduplication of one topic: the core's verdicts on what producers send, and its snapshots.

A duplicate is answered without a position, in the order in which its producer sent it. The verdict on an entry whose
twin is in flight is given when that twin has its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from actors.broker.chain import Chain
from actors.broker.cursor_log import CursorPlace
from actors.broker.dedup import Deduplication, Verdict
from actors.broker.dedup_log import DedupLog, create_dedup, recover_dedup
from actors.broker.ledgers import Ledgers
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.position import NOWHERE, Position
from actors.broker.producer import Producer, Send
from actors.broker.publication import WriteState
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from actors.broker.topic_record import now_ms
from heliograph.errors import HeliographError, ServiceNotReadyError
from heliograph.protocol import entry as codec
from metadata.store import MetadataStore

REPLAY_ENTRIES_MAX = 500  # of one read while entries behind the snapshot are replayed
REPLAY_BYTES_MAX = 4 << 20


class TopicDeduplication:
    """All calls on one event loop. Made by ``begin`` or ``take_over``.

    Attributes:
        core: what is known of producers.
        duplicates: entries that were refused.
        snapshot_entries: entries between two snapshots.
    """

    def __init__(self, core: Deduplication, log: DedupLog, ledger: ManagedLedger, snapshot_entries: int) -> None:
        self.core = core
        self.duplicates = 0
        self.snapshot_entries = snapshot_entries
        self._log = log
        self._ledger = ledger
        self._snapshot_ms = now_ms()
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._is_over = False  # entries under way are confirmed after its end
        log.on_lost = ledger.lose

    @property
    def mark(self) -> int:
        """The first entry that a takeover would have to read again (I14)."""
        return self._log.mark

    def admit(self, entry: TopicEntry, send: Send) -> RecordedSend | None:
        """What to publish the entry as, or None when it was sent before; ``send`` is then told in its turn."""
        name, highest = send.producer.name, _highest(entry, send.sequence_id, send.highest)
        is_whole = entry.chunk_uuid is None or entry.is_last_chunk
        if self.core.judge(name, highest, is_whole=is_whole) is Verdict.ACCEPT:
            return RecordedSend(self, send, highest, is_whole)
        self.duplicates += 1
        send.producer.in_turn(send, lambda: self._answer(send, highest))
        return None

    async def settled(self, name: str) -> None:
        """Wait until everything that was pushed under this name has its verdict.

        Raises:
            ServiceNotReadyError: the topic was lost meanwhile.
        """
        while not self.core.is_settled(name):
            waiting = self._waiting.get(name)
            if waiting is None:
                waiting = self._waiting[name] = asyncio.get_running_loop().create_future()
            await asyncio.shield(waiting)

    def confirmed(self, name: str, highest: int, is_whole: bool) -> None:
        """An entry of a producer is durable."""
        self.core.confirmed(name, highest, now_ms(), is_whole=is_whole)
        if self._ledger.chain.end - self._log.mark >= self.snapshot_entries:
            self._take_snapshot()
        if self._waiting and self.core.is_settled(name):
            waiting = self._waiting.pop(name, None)
            if waiting is not None:
                waiting.set_result(None)

    def housekeep(self) -> None:
        """Forget who was away for too long; take a snapshot if there is news and the last one is old."""
        now = now_ms()
        self.core.expire(now)
        news = self._ledger.chain.end - self._log.mark
        if news >= self.snapshot_entries or (news and now - self._snapshot_ms >= self._snapshot_ms_max()):
            self._take_snapshot()

    def _snapshot_ms_max(self) -> int:
        return self._ledger.policies.deduplication_snapshot_seconds * 1000

    async def close(self) -> None:
        """A last snapshot, so that the next owner has nothing to read again."""
        self._fail_waiting()
        await self._log.settled()
        if self._ledger.chain.end > self._log.mark:
            self._log.write(self.core.snapshot())
        await self._log.close()

    async def delete(self) -> None:
        """Forget everything for good."""
        self._is_over = True
        self._fail_waiting()
        await self._log.delete()

    def abandon(self) -> None:
        """The topic is another's (I13)."""
        self._is_over = True
        self._fail_waiting()
        self._log.abandon()

    def _take_snapshot(self) -> None:
        if not self._log.is_writing and not self._is_over:
            self._snapshot_ms = now_ms()
            self._log.write(self.core.snapshot())

    def _answer(self, send: Send, highest: int) -> None:
        if self._ledger.state is WriteState.CLOSED or self.core.last(send.producer.name) < highest:
            send.failed(ServiceNotReadyError("the topic was lost before the entry's twin was stored"))  # I13
            send.producer.channel.close_producer(send.producer)
        else:
            send.confirmed(NOWHERE)

    def _fail_waiting(self) -> None:
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            future.set_exception(ServiceNotReadyError("the topic is closed here"))
            future.exception()


class RecordedSend:
    """A Publication that tells deduplication of its fate before its producer hears of it."""

    __slots__ = ("_dedup", "_highest", "_is_whole", "_send")

    def __init__(self, dedup: TopicDeduplication, send: Send, highest: int, is_whole: bool) -> None:
        self._dedup = dedup
        self._send = send
        self._highest = highest
        self._is_whole = is_whole

    def confirmed(self, position: Position) -> None:
        """See Publication."""
        self._dedup.confirmed(self._send.producer.name, self._highest, self._is_whole)
        self._send.confirmed(position)

    def failed(self, error: HeliographError) -> None:
        """See Publication."""
        self._send.failed(error)


async def begin(
    place: CursorPlace,
    ledger: ManagedLedger,
    producers: Mapping[str, Producer],
    store: MetadataStore,
    ledgers: Ledgers,
) -> TopicDeduplication:
    """Deduplication of a topic that had none: what was published before is not known."""
    log = await create_dedup(place, ledger.chain, store, ledgers)
    core = Deduplication()
    for name in producers:
        core.connected(name)
    return TopicDeduplication(core, log, ledger, ledger.policies.deduplication_snapshot_entries)


async def take_over(
    place: CursorPlace, ledger: ManagedLedger, reader: TopicReader, store: MetadataStore, ledgers: Ledgers
) -> TopicDeduplication:
    """Deduplication as the previous owner left it: its last snapshot, and every entry behind that."""
    log, snapshot = await recover_dedup(place, ledger.chain, store, ledgers)
    core = Deduplication()
    core.restore(snapshot)
    await _replay(core, log.mark, ledger.chain, reader)
    return TopicDeduplication(core, log, ledger, ledger.policies.deduplication_snapshot_entries)


def _highest(entry: TopicEntry, first: int, highest: int) -> int:
    """The sequence id of an entry's last message. Not every client tells it of a batch; its ids grow, so it cannot be
    less than this."""
    return max(highest, first + entry.messages - 1)


async def _replay(core: Deduplication, mark: int, chain: Chain, reader: TopicReader) -> None:
    at = max(mark, chain.first)
    while at < chain.end:
        for index, entry in await reader.read(at, REPLAY_ENTRIES_MAX, REPLAY_BYTES_MAX):
            metadata = codec.metadata_of(entry.payload)
            highest = _highest(entry, metadata.sequence_id, metadata.highest_sequence_id)
            is_whole = entry.chunk_uuid is None or entry.is_last_chunk
            core.replay(metadata.producer_name, highest, metadata.publish_time, is_whole=is_whole)
            at = index + 1
