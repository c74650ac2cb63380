"""The progress and the findings of the scrubs of all bookies, by the bookies' own statistics."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from heliograph.base.clock import iso_time
from heliograph.cli.options import Target
from heliograph.client import discovery
from heliograph.cluster.naming import sort_key

ANSWER_TIMEOUT_SECONDS = 5.0
COLUMNS = ("bookie", "last full pass", "place", "entries/s", "damaged entries", "ledgers marked", "mended")


@dataclass(frozen=True, slots=True)
class ScrubStatus:
    """The scrub of one bookie; counts are of all its passes. ``note`` says why nothing else is known, or is empty.

    Attributes:
        last_pass_ms: when the latest complete pass ended, in milliseconds since the epoch; 0: there was none.
        next_ledger: the running pass has read the ledgers below it; -1: none is under way.
    """

    bookie: str
    last_pass_ms: int = 0
    next_ledger: int = -1
    ledgers_left: int = 0
    entries_per_second: float = 0.0
    passes: int = 0
    damaged_entries: int = 0
    incomplete_ledgers: int = 0
    ledgers_marked: int = 0
    ledgers_mended: int = 0
    note: str = ""

    @property
    def row(self) -> tuple[str, ...]:
        """The cells of a table with COLUMNS."""
        if self.note:
            return self.bookie, self.note, *[""] * (len(COLUMNS) - 2)
        place = f"ledger {self.next_ledger}, {self.ledgers_left} left" if self.next_ledger >= 0 else "no pass runs"
        return (
            self.bookie,
            iso_time(self.last_pass_ms) if self.last_pass_ms else "never",
            place,
            f"{self.entries_per_second:.0f}",
            str(self.damaged_entries),
            str(self.ledgers_marked),
            str(self.ledgers_mended),
        )


def scrubs_of(target: Target) -> list[ScrubStatus]:
    """Ask all bookies of a cluster.

    Raises:
        ClusterNotFoundError: there is no cluster.
        HeliographError: the caller is refused.
    """
    parts = target.parts()
    names = [name for name in parts.names() if name.startswith(discovery.BOOKIE_PREFIX)]
    answers, failed = parts.ask("statistics", dict.fromkeys(names, ()), ANSWER_TIMEOUT_SECONDS)
    found = [status_of(*answer) for answer in answers.items()]
    found += [ScrubStatus(name, note=str(error)) for name, error in failed.items()]
    return sorted(found, key=lambda one: sort_key(one.bookie))


def status_of(bookie: str, statistics: dict[str, Any]) -> ScrubStatus:
    """Return the part of a bookie's statistics that is about its scrub."""
    if not statistics:
        return ScrubStatus(bookie, note="it has not started yet")
    same = {item.name: statistics[key] for item in fields(ScrubStatus) if (key := f"scrub_{item.name}") in statistics}
    return ScrubStatus(bookie, statistics["scrub_ended_ms"], **same)
