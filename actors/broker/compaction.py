"""Compacting a topic: its latest message of each key goes to a ledger of its own, which the topic's record then names.

Two passes over the topic (``compaction_plan.py``), each reading what the last compaction kept and everything published
since. Nothing is visible before the record names the new ledger (I9), and the old one is deleted after that. The
subscription ``__compaction`` says that no ledger is to be trimmed that was not compacted (I14).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from actors.broker.chain import Chain
from actors.broker.compacted_chain import Positions
from actors.broker.compacted_reader import CompactedReader, open_compacted
from actors.broker.compacted_record import encode_index, encode_kept
from actors.broker.compaction_plan import CompactionPlan
from actors.broker.ledgers import Ledgers, LedgerWriter, give_up
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.position import EARLIEST, Position
from actors.broker.subscription import OWN_PROPERTIES, Subscription
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from actors.broker.topic_record import WHOLE, create_topic_ledger, now_ms, with_compacted
from actors.errors import EntryDamagedError, NoSuchLedgerError
from heliograph.errors import CompactedLostError, ConflictError, HeliographError
from metadata.model import CompactedLedger

RETRY_SECONDS = 5.0  # after the compacted ledger could not be opened: whoever asks meanwhile is told the same
READ_COMPACTED = OWN_PROPERTIES + "readCompacted"  # property of a durable subscription that reads the compacted form
READ_ENTRIES_MAX = 500  # of one read
READ_BYTES_MAX = 4 << 20
ADDS_IN_FLIGHT_MAX = 200  # entries of the new ledger that are not confirmed
ADD_BYTES_IN_FLIGHT_MAX = 8 << 20

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class CompactionStatus:
    """Pulsar's words: NOT_RUN, RUNNING, SUCCESS or ERROR."""

    status: str = "NOT_RUN"
    last_error: str = ""


class Compaction:
    """The compacted form of one topic: made on request, read by whoever asks for it. All calls on one event loop.

    Args:
        mark: gives the ``__compaction`` subscription, made at the oldest entry when it is missing.
        on_switched: called when the record names another compacted ledger, before the old one goes: whoever reads
            the old one starts anew.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        reader: TopicReader,
        ledgers: Ledgers,
        mark: Callable[[], Awaitable[Subscription]],
        on_switched: Callable[[], Awaitable[None]],
    ) -> None:
        self.status = CompactionStatus()
        self._ledger = ledger
        self._reader = reader
        self._ledgers = ledgers
        self._mark = mark
        self._on_switched = on_switched
        self._task: asyncio.Task[None] | None = None
        self._view: tuple[Chain, TopicReader] | None = None
        self._opening = asyncio.Lock()
        self._refusal: HeliographError | None = None  # why the compacted ledger could not be opened
        self._retry_at = 0.0

    @property
    def is_running(self) -> bool:
        """Whether a compaction is under way."""
        return self._task is not None

    @property
    def compacted(self) -> CompactedLedger | None:
        """What the topic's record names."""
        return self._ledger.record.compacted

    @property
    def bytes_since(self) -> int:
        """Bytes published behind the horizon, about: a part of the horizon's own ledger, all of those after it."""
        chain, record = self._ledger.chain, self._ledger.record
        horizon = Position(*record.compacted.horizon) if record.compacted is not None else EARLIEST
        total = sum(info.size for info in record.ledgers if info.ledger_id >= horizon.ledger_id)
        total += self._ledger.writer.length
        entries = chain.end - chain.at_or_after(Position(horizon.ledger_id, 0))
        return total * (chain.end - chain.after(horizon)) // entries if entries else 0

    def needed_from(self, *, is_kept: bool) -> int | None:
        """The first entry of the topic that readers of the compacted form, or the next compaction, need (I14).

        Args:
            is_kept: whether there is the subscription ``__compaction``. Where its cursor stands means nothing: somebody
                may have moved it.
        """
        if self.compacted is not None:
            return self._ledger.chain.after(Position(*self.compacted.horizon))
        return self._ledger.chain.first if is_kept else None

    async def view(self) -> tuple[Chain, TopicReader]:
        """Chain and reader of the compacted form; those of the topic itself while it was never compacted.

        Raises:
            QuorumLostError, BookieError: not now; try again.
            CompactedLostError: the compacted ledger is gone, and so is some of what it was made of.
        """
        async with self._opening:
            if self.compacted is None:
                return self._ledger.chain, self._reader
            if self._view is None:
                self._view = await self._open(self.compacted)
            return self._view

    async def _open(self, compacted: CompactedLedger) -> tuple[Chain, TopicReader]:
        loop = asyncio.get_running_loop()
        if self._refusal is not None and loop.time() < self._retry_at:
            raise self._refusal
        try:
            return await open_compacted(compacted, self._ledger.chain, self._reader, self._ledgers)
        except (NoSuchLedgerError, EntryDamagedError) as error:
            text = f"the compacted form of {self._ledger.name}, ledger {compacted.ledger_id}, is lost: {error}"
            log.error("%s", text)
            self.status = CompactionStatus("ERROR", text)
            if WHOLE in self._ledger.record.properties:  # what it was made of is there: read, and compact, that again
                await self.forget()
                return self._ledger.chain, self._reader
            self._refusal = CompactedLostError(text)
        except HeliographError as error:
            self._refusal = error
        self._retry_at = loop.time() + RETRY_SECONDS
        raise self._refusal

    async def forget(self) -> None:
        """Have no compacted form from now on. Who reads it still has to start anew.

        Raises:
            ServiceNotReadyError: the topic is another's.
        """
        await self._ledger.change_record(lambda record: with_compacted(record, None))
        await self._let_go()

    def start(self) -> None:
        """Begin in the background; ``status`` tells how it goes.

        Raises:
            ConflictError: a compaction of this topic is under way.
        """
        if self._task is not None:
            raise ConflictError(f"{self._ledger.name} is being compacted", field="topic")
        self.status = CompactionStatus("RUNNING")
        self._task = asyncio.get_running_loop().create_task(self._run())

    def abandon(self) -> None:
        """The topic is another's: give up what is under way."""
        if self._task is not None:
            self._task.cancel()

    def start_if_due(self, threshold_bytes: int) -> None:
        """Begin when so much was published since the last time; 0 is never."""
        if 0 < threshold_bytes <= self.bytes_since and self._task is None:
            self.start()

    async def stop(self) -> None:
        """Give up what is under way, and let go of the compacted ledger. Idempotent."""
        task = self._task
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        await self._let_go()

    async def _run(self) -> None:
        try:
            await self._compact()
            self.status = CompactionStatus("SUCCESS")
        except HeliographError as error:
            log.warning("%s: compaction: %s", self._ledger.name, error)
            self.status = CompactionStatus("ERROR", str(error))
        finally:
            self._task = None

    async def _compact(self) -> None:
        mark = await self._mark()
        chain, reader = await self.view()
        base = self._ledger.chain
        base_end, end = base.end, chain.end
        if base_end == base.first:
            return
        horizon = base.position_before(base_end)
        plan = CompactionPlan()
        async for entries in _entries(chain, reader, end):
            await asyncio.to_thread(_observe, plan, entries)
        writer = await create_topic_ledger(self._ledgers, self._ledger.name, self._ledger.policies, "compaction")
        try:
            kept = await self._write(writer, plan, chain, reader, end)
            metadata = await writer.close()
        except BaseException:
            await self._discard(writer)
            raise
        compacted = CompactedLedger(
            writer.ledger_id, len(kept), (horizon.ledger_id, horizon.entry_id), metadata.length, now_ms()
        )  # from here on the record may name it, even if we do not hear of that
        await self._ledger.change_record(lambda record: with_compacted(record, compacted))
        await self._let_go()
        await self._on_switched()  # first: what readers of the old one need goes with the next trim
        done = mark.acknowledge_cumulative(horizon)
        if done is not None:
            await asyncio.shield(done)

    async def _write(
        self, writer: LedgerWriter, plan: CompactionPlan, chain: Chain, reader: TopicReader, end: int
    ) -> Positions:
        """Write what is left of each entry, then the index; returns the positions of what was kept."""
        kept = Positions()
        adds: deque[tuple[asyncio.Future[int], int]] = deque()
        in_flight = 0

        async def add(data: bytes) -> None:
            nonlocal in_flight
            added = writer.add(data)
            added.add_done_callback(_look_at)  # after the first failure nobody waits for the rest
            adds.append((added, len(data)))
            in_flight += len(data)
            while len(adds) > ADDS_IN_FLIGHT_MAX or in_flight > ADD_BYTES_IN_FLIGHT_MAX:
                added, size = adds.popleft()
                in_flight -= size
                await added

        async for entries in _entries(chain, reader, end):
            for index, section in await asyncio.to_thread(_retained, plan, entries):
                position = chain.position_at(index)
                kept.append(position)
                await add(encode_kept(position, section))
        for block in encode_index(kept):
            await add(block)
        for added, _ in adds:
            await added
        return kept

    async def _discard(self, writer: LedgerWriter) -> None:
        """A ledger that no record names. What cannot be deleted now is an orphan, swept later."""
        give_up(writer)
        try:
            await asyncio.shield(self._ledgers.delete(writer.ledger_id))
        except HeliographError as error:
            log.warning("%s: ledger %d is left behind: %s", self._ledger.name, writer.ledger_id, error)

    async def _let_go(self) -> None:
        """The next reader opens the compacted ledger anew."""
        self._refusal = None
        view, self._view = self._view, None
        if view is not None and isinstance(view[1], CompactedReader):
            await view[1].close()


async def _entries(chain: Chain, reader: TopicReader, end: int) -> AsyncIterator[list[tuple[int, TopicEntry]]]:
    """All entries before ``end``, in order, some at a time."""
    index = chain.first
    while index < end:
        found = await reader.read(index, min(READ_ENTRIES_MAX, end - index), READ_BYTES_MAX)
        yield found
        index = found[-1][0] + 1


def _look_at(added: asyncio.Future[int]) -> None:
    if not added.cancelled():
        added.exception()


def _observe(plan: CompactionPlan, entries: list[tuple[int, TopicEntry]]) -> None:
    for index, entry in entries:
        plan.observe(index, entry.payload)


def _retained(plan: CompactionPlan, entries: list[tuple[int, TopicEntry]]) -> list[tuple[int, bytes | memoryview]]:
    left = ((index, plan.retained(index, entry.payload)) for index, entry in entries)
    return [(index, section) for index, section in left if section is not None]
