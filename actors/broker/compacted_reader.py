"""The read side of a topic's compacted form: the compacted ledger first, then the topic itself."""

from __future__ import annotations

from dataclasses import replace

from actors.broker.chain import Chain
from actors.broker.compacted_chain import CompactedChain, Positions
from actors.broker.compacted_record import decode_index, decode_kept, index_blocks
from actors.broker.compaction_plan import live_bits
from actors.broker.ledgers import LedgerReader, Ledgers
from actors.broker.position import Position
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from actors.errors import EntryDamagedError
from metadata.model import CompactedLedger

INDEX_READ_BYTES_MAX = 4 << 20  # of one read of the index


class CompactedReader(TopicReader):
    """Reads by the indexes of a ``CompactedChain``; what stands behind the horizon is the topic's own reader's."""

    def __init__(self, chain: CompactedChain, base: TopicReader, ledger: LedgerReader) -> None:
        self._compacted = chain
        self._base = base
        self._ledger = ledger

    def cached(self, index: int) -> TopicEntry | None:
        """See ``TopicReader``."""
        chain = self._compacted
        return None if chain.is_kept(index) else self._base.cached(chain.to_base(index))

    async def read(self, first: int, entries_max: int, bytes_max: int) -> list[tuple[int, TopicEntry]]:
        """See ``TopicReader``."""
        chain = self._compacted
        if not chain.is_kept(first):
            shift = chain.to_base(first) - first
            found = await self._base.read(first + shift, entries_max, bytes_max)
            return [(index - shift, entry) for index, entry in found]
        last = min(first + entries_max, len(chain.kept)) - 1
        kept = await self._ledger.read(first, last, bytes_max)
        return [(entry.entry_id, _entry(entry.payload, chain.kept[entry.entry_id])) for entry in kept]

    async def close(self) -> None:
        """Let go of the compacted ledger."""
        await self._ledger.close()


async def open_compacted(
    compacted: CompactedLedger, base: Chain, reader: TopicReader, ledgers: Ledgers
) -> tuple[CompactedChain, CompactedReader]:
    """The compacted form of a topic, as its record names it.

    Raises:
        QuorumLostError, BookieError: not now; try again.
        EntryDamagedError: the ledger does not hold what the record says.
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
    except BaseException:
        await ledger.close()
        raise
    chain = CompactedChain(base, positions, Position(*compacted.horizon))
    return chain, CompactedReader(chain, reader, ledger)


def _entry(data: bytes | memoryview, expected: Position) -> TopicEntry:
    position, section = decode_kept(data)
    if position != expected:
        raise EntryDamagedError(f"a compacted ledger holds {position} where its index says {expected}")
    return replace(TopicEntry.read(section, check=True), live=live_bits(section))
