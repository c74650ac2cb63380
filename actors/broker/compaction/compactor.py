"""Compaction of a topic: the latest message of each key goes to a ledger of its own, which the topic's record then
names.

Compaction passes over the topic twice (``actors/broker/compaction/plan.py``), and reads what the last compaction kept
and everything published since. Nothing is visible before the record names the new ledger (I9), and the old ledger is
deleted after that. The subscription ``__compaction`` keeps ledgers that were not compacted from being trimmed (I14).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from operator import itemgetter
from typing import TypeVar

from heliograph.actors.broker.compaction.chain import Positions
from heliograph.actors.broker.compaction.deletions import PastCompaction, forgotten_up_to, with_compaction
from heliograph.actors.broker.compaction.plan import CompactionPlan
from heliograph.actors.broker.compaction.reader import open_compacted
from heliograph.actors.broker.compaction.record import encode_history, encode_index, encode_kept
from heliograph.actors.broker.limits.unpacking import unpacked
from heliograph.actors.broker.managed_ledger.backlog_size import backlog_bytes, sizes_of
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.records.broker_log import BrokerLog, mark_seen
from heliograph.actors.broker.records.ledgers import LedgersPort, LedgerWriterPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.records.topic_record import NEVER_TRIMMED, create_topic_ledger, with_compacted
from heliograph.actors.broker.subscription.setting import ConsumerSetting
from heliograph.actors.broker.subscription.subscription import OWN_PROPERTIES, Subscription
from heliograph.actors.errors import EntryDamagedError, NoSuchLedgerError
from heliograph.base.clock import wall_ms
from heliograph.base.completion import shielded
from heliograph.base.errors import CompactedLostError, ConflictError, HeliographError
from heliograph.metadata.model import CompactedLedger, CursorRecord
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

RETRY_SECONDS = 5.0  # after the compacted ledger could not be opened; until then callers get the same error
READ_COMPACTED = OWN_PROPERTIES + "readCompacted"  # property of a durable subscription that reads the compacted form
READ_ENTRIES_MAX = 500  # of one read
READ_BYTES_MAX = 4 << 20
ADDS_IN_FLIGHT_MAX = 200  # entries of the new ledger that are not confirmed
ADD_BYTES_IN_FLIGHT_MAX = 8 << 20

R = TypeVar("R")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """The status in Pulsar's words: NOT_RUN, RUNNING, SUCCESS or ERROR."""

    status: str = "NOT_RUN"
    last_error: str = ""


class Compaction:
    """The compacted form of one topic, made on request. All calls on one event loop.

    Args:
        mark: returns the ``__compaction`` subscription, and creates it at the oldest entry if it is missing.
        on_switched: called when the record names another compacted ledger, before the old one is deleted, so that its
            readers move to the new one.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        reader: EntryReader,
        ledgers: LedgersPort,
        mark: Callable[[], Awaitable[Subscription]],
        on_switched: Callable[[], Awaitable[None]],
        setting: ConsumerSetting,
    ) -> None:
        self.status = CompactionStatus()
        self._ledger = ledger
        self._tenant = TopicName.parse(ledger.name).tenant
        self._reader = reader
        self._ledgers = ledgers
        self._mark = mark
        self._setting = setting
        self._on_switched = on_switched
        self._task: asyncio.Task[None] | None = None
        self._view: tuple[Chain, EntryReader] | None = None
        self._history: tuple[PastCompaction, ...] = ()  # of the view, if it is open
        self._opening = asyncio.Lock()
        self._refusal: HeliographError | None = None  # why the compacted ledger could not be opened
        self._retry_at = 0.0

    @property
    def is_running(self) -> bool:
        return self._task is not None

    @property
    def compacted(self) -> CompactedLedger | None:
        return self._ledger.record.compacted

    @property
    def bytes_since(self) -> int:
        """Return about how many bytes were published after the horizon."""
        compacted, chain = self.compacted, self._ledger.chain
        mark = chain.first if compacted is None else chain.after_or_before(Position(*compacted.horizon))
        ledger = self._ledger
        return backlog_bytes(sizes_of(ledger.record, ledger.chain, ledger.writer), mark)

    def needed_from(self, *, is_kept: bool) -> int | None:
        """Return the first entry of the topic that readers of the compacted form, or the next compaction, need (I14).

        Args:
            is_kept: whether the subscription ``__compaction`` exists. Its mark does not count: a user may have moved
                it.
        """
        if self.compacted is not None:
            return self._ledger.chain.after_or_before(Position(*self.compacted.horizon))
        return self._ledger.chain.first if is_kept else None

    async def is_read_by(self, path: str, store: MetadataStore) -> bool:
        """Return whether the cursor at ``path`` counts by the compacted form. Raises NoNodeError."""
        if self.compacted is None:
            return False
        return READ_COMPACTED in (await read(store, path, CursorRecord)).record.properties

    async def view(self) -> tuple[Chain, EntryReader]:
        """Return chain and reader of the compacted form, or of the topic itself if it was never compacted.

        Raises:
            QuorumLostError, BookieError: the compacted ledger cannot be read now; try again.
            CompactedLostError: the compacted ledger is lost, and so are some of the entries that it was made of.
        """
        async with self._opening:
            if self.compacted is None:
                return self._ledger.chain, self._reader
            if self._view is None:
                self._view = await self._open(self.compacted)
            return self._view

    async def _open(self, compacted: CompactedLedger) -> tuple[Chain, EntryReader]:
        loop = asyncio.get_running_loop()
        if self._refusal is not None and loop.time() < self._retry_at:
            raise self._refusal
        try:
            chain, reader = await open_compacted(
                compacted, self._ledger.chain, self._reader, self._ledgers, self._tenant
            )
            self._history = reader.history
            return chain, reader
        except (NoSuchLedgerError, EntryDamagedError) as error:
            text = f"the compacted form of {self._ledger.name}, ledger {compacted.ledger_id}, is lost: {error}"
            log.error("%s", text)
            self.status = CompactionStatus("ERROR", text)
            if NEVER_TRIMMED in self._ledger.record.properties:  # all entries are there: read and compact them again
                await self.forget()
                return self._ledger.chain, self._reader
            self._refusal = CompactedLostError(text)
        except HeliographError as error:
            self._refusal = error
        self._retry_at = loop.time() + RETRY_SECONDS
        raise self._refusal

    async def forget(self) -> None:
        """Remove the compacted form from the record. The caller moves its readers.

        Raises:
            ServiceNotReadyError: another broker owns the topic.
        """
        await self._ledger.change_record(lambda record: with_compacted(record, None))
        await self._close_view()

    def start(self) -> None:
        """Start a compaction in the background; ``status`` reports its progress.

        Raises:
            ConflictError: a compaction of this topic is in progress.
        """
        if self._task is not None:
            raise ConflictError(f"{self._ledger.name} is being compacted", field="topic")
        self.status = CompactionStatus("RUNNING")
        self._task = asyncio.get_running_loop().create_task(self._run())

    def abandon(self) -> None:
        """Cancel the compaction in progress: another broker owns the topic."""
        if self._task is not None:
            self._task.cancel()

    def is_due(self, threshold_bytes: int) -> bool:
        """Return whether at least so many bytes were published since the last compaction; 0 means never."""
        return 0 < threshold_bytes <= self.bytes_since and self._task is None

    def start_if_due(self, threshold_bytes: int) -> None:
        """Start a compaction if ``is_due``."""
        if self.is_due(threshold_bytes):
            self.start()

    async def stop(self) -> None:
        """Cancel the compaction in progress, and close the compacted ledger. Idempotent."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._close_view()

    async def _run(self) -> None:
        try:
            async with self._setting.compacting:
                await self._compact()
            self.status = CompactionStatus("SUCCESS")
        except HeliographError as error:
            log.warning("%s: compaction failed: %s", self._ledger.name, error)
            self.status = CompactionStatus("ERROR", str(error))
        finally:
            self._task = None
            self._ledger.activity.note()

    async def _compact(self) -> None:
        mark = await self._mark()
        chain, reader = await self.view()
        await chain.load_index(chain.first)
        base = self._ledger.chain
        base_end, end = base.end, chain.end
        if base_end == base.first:
            return
        horizon = base.position_before(base_end)
        history, ages = self._history, self._ledger.ages  # a step of the wall clock makes no deletion old
        kept_ms = 1_000 * self._setting.deletions_kept_seconds
        plan = CompactionPlan(chain.after(forgotten_up_to(history, ages.now_ms(), kept_ms)) if kept_ms else end)
        async for entries in _entries(chain, reader, end):
            await self._unpacked(entries, plan.observe)
        writer = await create_topic_ledger(self._ledgers, self._ledger.name, self._ledger.policies, "compaction")
        length = 0

        async def fill(writer: LedgerWriterPort) -> int:
            nonlocal length
            history_of_new = with_compaction(history, PastCompaction(horizon, ages.now_ms()), kept_ms)
            kept = await self._write(writer, plan, chain, reader, end, history_of_new)
            length = (await writer.close()).length
            return len(kept)

        made = BrokerLog(self._ledgers, f"compaction of {self._ledger.name}")
        await made.begin(writer, fill, is_deleted=True)
        compacted = CompactedLedger(
            writer.ledger_id, made.writes, (horizon.ledger_id, horizon.entry_id), length, wall_ms()
        )  # from here on the record may name it, even if we do not hear of that
        await self._ledger.change_record(lambda record: with_compacted(record, compacted))
        await self._close_view()
        await self._on_switched()  # first: what readers of the old one need goes with the next trim
        done = mark.acknowledge_cumulative(horizon)
        if done is not None:
            await shielded(done)

    async def _write(
        self,
        writer: LedgerWriterPort,
        plan: CompactionPlan,
        chain: Chain,
        reader: EntryReader,
        end: int,
        history: tuple[PastCompaction, ...],
    ) -> Positions:
        """Write the rest of each entry, the index and the history; return the positions of the kept entries."""
        kept = Positions()
        adds: deque[tuple[asyncio.Future[int], int]] = deque()
        in_flight = 0

        async def add(data: bytes) -> None:
            nonlocal in_flight
            added = writer.add(data)
            added.add_done_callback(mark_seen)  # after the first failure the others are not awaited
            adds.append((added, len(data)))
            in_flight += len(data)
            while len(adds) > ADDS_IN_FLIGHT_MAX or in_flight > ADD_BYTES_IN_FLIGHT_MAX:
                added, size = adds.popleft()
                in_flight -= size
                await added

        async for entries in _entries(chain, reader, end):
            for (index, _), section in zip(entries, await self._unpacked(entries, plan.retained), strict=True):
                if section is not None:
                    position = chain.position_at(index)
                    kept.append(position)
                    await add(encode_kept(position, section))
        for block in (*encode_index(kept), encode_history(history)):
            await add(block)
        for added, _ in adds:
            await added
        return kept

    async def _unpacked(
        self, entries: list[tuple[int, TopicEntry]], work: Callable[[int, bytes | memoryview], R]
    ) -> list[R]:
        items = [(index, entry.payload) for index, entry in entries]
        return await unpacked(self._tenant, items, itemgetter(1), lambda item: work(*item))

    async def _close_view(self) -> None:
        """Close the compacted ledger; the next reader opens the ledger that the record names then."""
        self._refusal, self._history = None, ()
        view, self._view = self._view, None
        if view is not None and view[1] is not self._reader:
            await view[1].close()


async def _entries(chain: Chain, reader: EntryReader, end: int) -> AsyncIterator[list[tuple[int, TopicEntry]]]:
    """Yield all entries before ``end`` in order, some at a time."""
    index = chain.first
    while index < end:
        found = await reader.read(index, min(READ_ENTRIES_MAX, end - index), READ_BYTES_MAX)
        yield found
        index = found[-1][0] + 1
