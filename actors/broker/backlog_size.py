"""How many bytes of a topic lie behind a place, from the sizes of its ledgers alone (pure): no entry is looked at."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LedgerSize(NamedTuple):
    """One ledger of a topic: the index of its first entry, how many entries it holds, and their bytes."""

    first: int
    entries: int
    size: int

    def bytes_from(self, index: int) -> int:
        """Bytes of its entries from ``index`` on, as if all were of the same size."""
        missing = min(max(index - self.first, 0), self.entries)
        return self.size - self.size * missing // self.entries if self.entries else 0


def backlog_bytes(newest_first: Iterable[LedgerSize], mark: int) -> int:
    """Bytes of the entries from ``mark`` on; only ledgers that hold some of them are looked at."""
    total = 0
    for ledger in newest_first:
        total += ledger.bytes_from(mark)
        if ledger.first <= mark:
            break
    return total


def mark_within(newest_first: Iterable[LedgerSize], bytes_max: int) -> int:
    """The lowest place behind which at most ``bytes_max`` lie."""
    left, mark = bytes_max, 0
    for ledger in newest_first:
        mark = ledger.first
        if ledger.size > left:
            return mark + ledger.entries - ledger.entries * left // ledger.size
        left -= ledger.size
    return mark
