"""The bytes of a topic after an index, computed from the sizes of its ledgers alone (pure). No entry is read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LedgerSize(NamedTuple):
    """One ledger of a topic: the index of its first entry, the number of its entries, and their bytes."""

    first: int
    entries: int
    size: int

    def bytes_from(self, index: int) -> int:
        """Return the bytes of the ledger's entries from ``index`` on, as if all entries had the same size."""
        missing = min(max(index - self.first, 0), self.entries)
        return self.size - self.size * missing // self.entries if self.entries else 0


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
