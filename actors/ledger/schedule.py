"""The positions of an ensemble that hold an entry, and the conclusions from a set of positions.

The write set of entry n is the positions (n + i) mod E, i in 0..Qw-1. A set of positions is a bit mask: bit p stands
for position p.

A position may be vacant: it had no bookie when the ledger was created. No entry is sent there, so it acknowledges
nothing, stores nothing, and cannot be a member of an ack quorum.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable

from heliograph.metadata.model import VACANCY, check_quorum


class WriteSchedule:
    """The striping and the quorum rules of one (E, Qw, Qa)."""

    __slots__ = ("ack_quorum", "ensemble_size", "full_mask", "masks", "negatives_needed", "sets", "write_quorum")

    def __init__(self, ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
        """Raise InvalidQuorumError unless E >= Qw >= Qa >= 1."""
        check_quorum(ensemble_size, write_quorum, ack_quorum)
        self.ensemble_size = ensemble_size
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.negatives_needed = write_quorum - ack_quorum + 1  # I7: with so many, no ack quorum is possible
        self.full_mask = (1 << ensemble_size) - 1
        self.sets = tuple(
            tuple((start + i) % ensemble_size for i in range(write_quorum)) for start in range(ensemble_size)
        )
        self.masks = tuple(mask_of(positions) for positions in self.sets)

    def positions(self, entry_id: int) -> tuple[int, ...]:
        """Return the write set of an entry, in order."""
        return self.sets[entry_id % self.ensemble_size]

    def mask(self, entry_id: int) -> int:
        return self.masks[entry_id % self.ensemble_size]

    def is_broken(self, entry_id: int, failed: int) -> bool:
        """Whether an entry cannot reach its ack quorum while the positions in ``failed`` do not answer."""
        return (self.mask(entry_id) & failed).bit_count() > self.write_quorum - self.ack_quorum

    def covers(self, usable: int) -> bool:
        """Whether every possible ack quorum of every entry has a member in ``usable``.

        Fencing reads that reached such a set keep every new entry from its ack quorum. Plain LAC reads that reached it
        have seen every confirmed entry.
        """
        return all((mask & usable).bit_count() >= self.negatives_needed for mask in self.masks)

    def last_of_run(self, position: int, first_entry_id: int, last_entry_id: int) -> int:
        """Return the end of the run of entries from ``first_entry_id`` on that are all striped to ``position``."""
        assert self.mask(first_entry_id) >> position & 1, "the first entry is striped to the position"
        if self.write_quorum == self.ensemble_size:
            return last_entry_id
        offset = (position - first_entry_id) % self.ensemble_size
        return min(last_entry_id, first_entry_id + offset)

    def entries_at(self, position: int, first_entry_id: int, last_entry_id: int) -> Iterable[int]:
        """Return the entries of a range that are striped to ``position``, in order."""
        span = range(first_entry_id, last_entry_id + 1)
        if self.write_quorum == self.ensemble_size:
            return span
        return (entry_id for entry_id in span if self.mask(entry_id) >> position & 1)


@functools.lru_cache(maxsize=256)  # I15
def schedule_of(ensemble_size: int, write_quorum: int, ack_quorum: int) -> WriteSchedule:
    """Return the schedule of (E, Qw, Qa), which ledgers share. Raise as the class does."""
    return WriteSchedule(ensemble_size, write_quorum, ack_quorum)


def mask_of(positions: Iterable[int]) -> int:
    mask = 0
    for position in positions:
        mask |= 1 << position
    return mask


def vacancy_at(position: int) -> str:
    return f"{VACANCY}{position}"


def is_vacancy(bookie_id: str) -> bool:
    """Whether a name in a segment stands for no bookie: no entry of the segment was ever sent there."""
    return bookie_id.startswith(VACANCY)


def occupied(places: Iterable[tuple[int, str]]) -> tuple[tuple[int, str], ...]:
    """Return the pairs of position and bookie without vacancies: nothing is ever sent to a vacancy."""
    return tuple(place for place in places if not is_vacancy(place[1]))


def vacancies_of(bookies: Iterable[str]) -> int:
    return mask_of(position for position, bookie_id in enumerate(bookies) if is_vacancy(bookie_id))


def positions_of(mask: int) -> list[int]:
    """Return the positions in a mask, in order."""
    return [position for position in range(mask.bit_length()) if mask >> position & 1]
