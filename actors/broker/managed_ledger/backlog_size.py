"""The bytes of a topic after an index, computed from the sizes of its ledgers alone (pure). No entry is read.

The ledgers of a piece of the chain count as one: the record has their sums.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.records.ledgers import LedgerWriterPort
from heliograph.metadata.model import TopicRecord


class LedgerSize(NamedTuple):
    """One ledger of a topic, or adjacent ones: the index of the first entry, the number of entries, and their bytes."""

    first: int
    entries: int
    size: int

    def bytes_from(self, index: int) -> int:
        """Return the bytes of the ledger's entries from ``index`` on, as if all entries had the same size."""
        missing = min(max(index - self.first, 0), self.entries)
        return self.size - self.size * missing // self.entries if self.entries else 0


def sizes_of(record: TopicRecord, chain: LedgerChain, writer: LedgerWriterPort) -> Iterator[LedgerSize]:
    """Yield the sizes of a topic's ledgers, newest first; the ledgers of a piece count as one."""
    index = chain.end
    for info in reversed(record.ledgers):
        if info.ledger_id > chain.last_ledger_id:
            continue  # the next ledger, not used yet
        entries = chain.entries_in(info.ledger_id)
        index -= entries
        is_open = info.ledger_id == writer.ledger_id and not info.closed_ms
        yield LedgerSize(index, entries, writer.length if is_open else info.size)
    for ref in reversed(record.pieces):
        index -= ref.entries
        yield LedgerSize(index, ref.entries, ref.size)


def backlog_bytes(newest_first: Iterable[LedgerSize], mark: int) -> int:
    """Return the bytes of the entries from ``mark`` on. Ledgers that end before ``mark`` are not looked at."""
    total = 0
    for ledger in newest_first:
        total += ledger.bytes_from(mark)
        if ledger.first <= mark:
            break
    return total


def mark_within(newest_first: Iterable[LedgerSize], bytes_max: int) -> int:
    """Return the lowest index that has at most ``bytes_max`` bytes after it."""
    left, mark = bytes_max, 0
    for ledger in newest_first:
        mark = ledger.first
        if ledger.size > left:
            return mark + ledger.entries - ledger.entries * left // ledger.size
        left -= ledger.size
    return mark
