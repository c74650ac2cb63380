"""The records that bookies keep of their disks and starts, and replication workers of their tasks and progress."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cookie:
    """The identity of a bookie, in metadata, and of one of its directories, in that directory.

    In layout 1 a directory's id was its path, and all copies were equal. In layout 2 the id is random, so that a
    directory may be moved, and each start of the bookie writes a new cookie, so that an old copy of a directory is
    recognised.
    """

    bookie_id: str
    instance_id: str
    journal_directories: tuple[str, ...]  # ids; a journal's place in the marks is its place here
    data_directories: tuple[str, ...]  # ids; a ledger's data directory follows from the places here and from `routes`
    layout_version: int = 1
    directory: str = ""  # id of the directory that holds this copy; empty in metadata
    start: int = 0  # starts of the bookie so far
    token: str = ""  # random, of this start
    routes: tuple[tuple[int, int], ...] = ()  # of ledgers from an id on: how many data directories they are spread over


@dataclass(frozen=True, slots=True)
class BookieReplacement:
    """The permission for a bookie to start once on empty directories; it ends with the first start after ``start``."""

    bookie_id: str
    start: int


@dataclass(frozen=True, slots=True)
class LedgerRisks:
    """How many ledgers stop if a machine is lost, by the hosts of bookies' addresses, as of the latest audit."""

    machines: dict[str, int]


@dataclass(frozen=True, slots=True)
class BookieStartFailure:
    """Why the latest start of a bookie failed; ``failures`` starts in a row did."""

    bookie_id: str
    error: str  # name of the error's class
    reason: str
    failures: int = 1
    failed_ms: int = 0
    way_out: str = ""  # of a bookie that is alone with its reason; it may give data up

    def explain(self, failures: Iterable[BookieStartFailure]) -> str:
        """Return the reason and the remedy, in view of the failures of all bookies.

        If other bookies fail for the same reason, no advice gives data up: it may be the last copy.
        """
        others = sorted({f.bookie_id for f in failures if f.error == self.error} - {self.bookie_id})
        if others:
            return (
                f"{self.reason}. {', '.join(others)} did not start for the same reason ({self.error}), so its cause is "
                "not one disk: give up no data of any of them, keep all directories as they are, and see "
                '"Several bookies do not start" in docs/operations/disaster-recovery.md'
            )
        return f"{self.reason}. {self.way_out}" if self.way_out else self.reason


@dataclass(frozen=True, slots=True)
class RepairProgress:
    """The counts of one replication worker since its session began. Its node is ephemeral: it goes with the worker.

    ``ledgers_without_place`` is the present number of ledgers whose copies no bookie can take. ``waiting_seconds`` is
    the longest time until another ledger is tried, such as one whose writer may replace the bookie first.
    """

    worker: str
    ledgers_repaired: int = 0
    ledgers_damaged: int = 0
    entries_repaired: int = 0
    bytes_repaired: int = 0
    repair_seconds: float = 0.0
    last_failure: str = ""
    ledgers_without_place: int = 0
    waiting_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class UnderReplicatedLedger:
    """A task for replication workers: this ledger misses copies on these bookies.

    ``is_abandoned``: a live bookie lost its entries of the last segment, which it has fenced, and no writer continued
    the ledger. A worker recovers the ledger if it is not closed and the segment still names one of the bookies.
    ``damaged_bookies``: the ``missing_bookies`` that have copies with a wrong checksum: all their copies are read.
    ``lost_entries``: entries of which the latest attempt found no good copy on any bookie.
    """

    ledger_id: int
    missing_bookies: tuple[str, ...]
    marked_ms: int = 0
    is_abandoned: bool = False
    damaged_bookies: tuple[str, ...] = ()
    lost_entries: int = 0
