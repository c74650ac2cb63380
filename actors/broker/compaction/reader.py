"""The read side of a topic's compacted form: the compacted ledger first, then the topic itself."""

from __future__ import annotations

from dataclasses import replace

from typing_extensions import override

from heliograph.actors.broker.compaction.chain import CompactedChain, Positions
from heliograph.actors.broker.compaction.deletions import PastCompaction
from heliograph.actors.broker.compaction.plan import live_bits
from heliograph.actors.broker.compaction.record import decode_history, decode_index, decode_kept, index_blocks
from heliograph.actors.broker.limits.unpacking import unpacked
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.records.ledgers import LedgerReaderPort, LedgersPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.errors import EntryDamagedError
from heliograph.metadata.model import CompactedLedger
from heliograph.protocol.entry import verify

INDEX_READ_BYTES_MAX = 4 << 20  # of one read of the index


class CompactedReader(EntryReader):
    """Reads what compaction kept from the compacted ledger, and everything after the horizon from the topic itself.

    Args:
        base: the topic's own reader.
        ledger: the compacted ledger.
        history: of the compactions up to the ledger's own; empty if an older release made it.
        tenant: of the topic.
    """

    def __init__(
        self,
        chain: CompactedChain,
        base: EntryReader,
        ledger: LedgerReaderPort,
        history: tuple[PastCompaction, ...],
        tenant: str,
    ) -> None:
        super().__init__(chain, base.budget)
        self.history = history
        self._compacted = chain
        self._base = base
        self._ledger = ledger
        self._tenant = tenant

    @override
    def cached(self, index: int) -> TopicEntry | None:
        chain = self._compacted
        return None if chain.is_kept(index) else self._base.cached(chain.to_base(index))

    @override
    async def read(self, first: int, entries_max: int, bytes_max: int) -> list[tuple[int, TopicEntry]]:
        chain = self._compacted
        if not chain.is_kept(first):
            shift = chain.to_base(first) - first
            found = await self._base.read(first + shift, entries_max, bytes_max)
            return [(index - shift, entry) for index, entry in found]
        last = min(first + entries_max, len(chain.kept)) - 1
        kept = await self._ledger.read(first, last, bytes_max)
        # On a thread: batches are decompressed to see what compaction left of them, at 5 to 30 ms for 5 MiB.
        entries = await unpacked(
            self._tenant,
            kept,
            lambda entry: decode_kept(entry.payload)[1],
            lambda entry: _entry(entry.payload, chain.kept[entry.entry_id]),
        )
        return [(each.entry_id, entry) for each, entry in zip(kept, entries, strict=True)]

    @override
    def closed_ms(self, index: int) -> int:
        chain = self._compacted
        return 0 if chain.is_kept(index) else self._base.closed_ms(chain.to_base(index))

    @override
    async def index_at_time(self, time_ms: int, *, stored: bool = False) -> int:
        return self._compacted.from_base(await self._base.index_at_time(time_ms, stored=stored))

    @override
    async def close(self) -> None:
        await self._ledger.close()


async def open_compacted(
    compacted: CompactedLedger, base: Chain, reader: EntryReader, ledgers: LedgersPort, tenant: str
) -> tuple[CompactedChain, CompactedReader]:
    """Open the compacted ledger that the topic's record names.

    Args:
        base: the topic's own chain.
        reader: the topic's own reader.
        tenant: of the topic.

    Raises:
        QuorumLostError, BookieError: the ledger cannot be read now; try again.
        EntryDamagedError: the ledger differs from the record.
    """
    ledger = await ledgers.open(compacted.ledger_id)
    try:
        positions = Positions()
        entry_id = compacted.entries
        stop = entry_id + index_blocks(compacted.entries)
        while entry_id < stop:
            for block in await ledger.read(entry_id, stop - 1, INDEX_READ_BYTES_MAX):
                decode_index(block.payload, positions)
                entry_id = block.entry_id + 1
        if len(positions) != compacted.entries:
            raise EntryDamagedError(f"the index of ledger {compacted.ledger_id} names {len(positions)} entries")
        await base.load(Position(*compacted.horizon))
        history: tuple[PastCompaction, ...] = ()
        if ledger.last_add_confirmed >= stop:
            history = decode_history((await ledger.read(stop, stop))[0].payload)
    except BaseException:
        await ledger.close()
        raise
    chain = CompactedChain(base, positions, Position(*compacted.horizon))
    return chain, CompactedReader(chain, reader, ledger, history, tenant)


def _entry(data: bytes | memoryview, expected: Position) -> TopicEntry:
    position, section = decode_kept(data)
    if position != expected:
        raise EntryDamagedError(f"a compacted ledger holds {position} where its index says {expected}")
    verify(section)
    return replace(TopicEntry.read(section, check=False, copies=True), live=live_bits(section))
