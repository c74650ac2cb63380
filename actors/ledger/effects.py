"""What the cores ask of the world, and how the world's answers are classed. Nothing here does anything.

A core is a plain object. Its ``on_<event>`` methods (and ``start``, ``add``, ``close``, ``tick``) take what happened
and ``now``, in milliseconds of any clock that never goes back, and return the effects to run, in order. Each effect
names the method that takes its answer. Answers may be late, repeated or in any order: a core drops those that it no
longer waits for. An effect without an answer method is a report to the core's owner.

Every request to a bookie is answered in the end: whoever runs the effects turns a lost connection and a timeout into
``Reply.UNKNOWN``. The same holds for metadata requests and ``on_metadata_unknown``.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from heliograph.errors import HeliographError
from metadata.model import LedgerMetadata

Target = tuple[int, str]  # position in the ensemble, bookie id


class Reply(enum.Enum):
    """What a bookie's answer, or its silence, allows to be concluded."""

    OK = "ok"
    ABSENT = "absent"  # explicit negative: the bookie never acknowledged it (I6)
    FENCED = "fenced"
    READ_ONLY = "read_only"
    UNAUTHORIZED = "unauthorized"
    DAMAGED = "damaged"  # a copy is there and fails its checksum or identity; for verdicts the same as UNKNOWN
    UNKNOWN = "unknown"  # error, timeout, lost connection, limbo: nothing may be concluded


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """An entry whose copy was checked. ``length``: payload bytes of the ledger up to and with it."""

    entry_id: int
    payload: bytes
    length: int
    last_add_confirmed: int = -1


# Adding


@dataclass(slots=True)  # a value like all effects; ``frozen`` would cost a microsecond for every entry
class SendAdd:
    """Send one entry to each target. Answers: ``on_add_answer(entry_id, position, epoch, reply, now)``.

    ``recovery``: bookies take it on a fenced ledger and when read-only.
    """

    ledger_id: int
    entry_id: int
    epoch: int
    last_add_confirmed: int
    length: int
    payload: bytes | memoryview
    targets: tuple[Target, ...]
    recovery: bool = False


@dataclass(frozen=True, slots=True)
class SendLac:
    """Tell these bookies the LAC explicitly. No answer is waited for."""

    ledger_id: int
    last_add_confirmed: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AddsConfirmed:
    """Every accepted add up to and with ``last_entry_id`` that has no outcome yet succeeded (I2)."""

    last_entry_id: int


@dataclass(frozen=True, slots=True)
class AddsFailed:
    """These accepted adds will not be confirmed by this writer. After a fence or a lost quorum they may survive."""

    first_entry_id: int
    last_entry_id: int
    error: HeliographError


@dataclass(frozen=True, slots=True)
class WriterFailed:
    """The writer takes no more adds. Comes once, after the AddsFailed that goes with it."""

    error: HeliographError


@dataclass(frozen=True, slots=True)
class WriterClosed:
    """The writer's ``close`` is done: the ledger is CLOSED at the writer's LAC."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class CloseFailed:
    """The writer's ``close`` could not close the ledger. The writer stays unusable; ``close`` may be called again."""

    error: HeliographError


@dataclass(frozen=True, slots=True)
class CopiesMissing:
    """Confirmed entries from ``first_entry_id`` on lack a copy on this bookie: a task for repair."""

    ledger_id: int
    bookie_id: str
    first_entry_id: int


# Metadata


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Compare-and-set of the ledger's record (I9).

    Answers: ``on_metadata_written(request, version, now)``, ``on_metadata_conflict(request, now)`` (nothing was
    written), ``on_metadata_missing(request, now)`` (no such ledger), ``on_metadata_refused(request, error, now)`` (the
    record is too large, or it is not permitted), ``on_metadata_unknown(request, now)``.
    """

    request: int
    record: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class ReadMetadata:
    """Read the ledger's record.

    Answers: ``on_metadata_read(request, versioned, now)``, ``on_metadata_missing(request, now)``,
    ``on_metadata_refused(request, error, now)`` (as above; or the record is damaged, or a newer version wrote it),
    ``on_metadata_unknown(request, now)``.
    """

    request: int
    ledger_id: int


@dataclass(frozen=True, slots=True)
class DeleteMetadata:
    """Delete the ledger's record, whatever its version.

    Answers: ``on_metadata_deleted(request, now)`` (also when there was none),
    ``on_metadata_refused(request, error, now)``, ``on_metadata_unknown(request, now)``.
    """

    request: int
    ledger_id: int


# Reading and recovering


@dataclass(frozen=True, slots=True)
class ReadLac:
    """Ask each target for the LAC that it knows and the stored entry with the greatest id.

    Answers: ``on_lac_answer(position, reply, last_add_confirmed, entry, now)``; ``last_add_confirmed`` is the greater
    of the answer's and the entry's, ``entry`` may be None. ``fence``: the bookie fences the ledger durably first.
    """

    ledger_id: int
    targets: tuple[Target, ...]
    fence: bool


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """Ask each target for one entry.

    Answers: ``on_entry_answer(entry_id, position, reply, entry, now)``, ``entry`` only with Reply.OK.
    """

    ledger_id: int
    entry_id: int
    targets: tuple[Target, ...]
    fence: bool


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """Ask one bookie for consecutive entries, at most ``max_bytes`` of them but at least one.

    Answers: ``on_batch_answer(request, reply, entries, now)``: with Reply.OK, ``entries`` start at ``first_entry_id``,
    have no gaps and may end early; a damaged entry after the first ends them, a damaged first one is Reply.DAMAGED.
    """

    request: int
    ledger_id: int
    bookie_id: str
    first_entry_id: int
    last_entry_id: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class PollLac:
    """Ask one bookie to answer when its LAC is above ``after``, or after ``wait_ms``.

    Answers: ``on_lac_answer(position, reply, last_add_confirmed, None, now)``.
    """

    ledger_id: int
    target: Target
    after: int
    wait_ms: int


@dataclass(frozen=True, slots=True)
class CopyDamaged:
    """A bookie returned a damaged copy, or none where it should have one: a task for repair."""

    ledger_id: int
    entry_id: int
    bookie_id: str


@dataclass(frozen=True, slots=True)
class ReadFinished:
    """Consecutive entries from the first one asked for, at least one."""

    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class LacFound:
    """The highest LAC that a quorum-covering set of bookies knows."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class RecoveryFinished:
    """The ledger is CLOSED, by this recovery or by another."""

    metadata: LedgerMetadata
    version: int


@dataclass(frozen=True, slots=True)
class Failed:
    """A read, recovery, deletion or repair ended without its result."""

    error: HeliographError


@dataclass(frozen=True, slots=True)
class Deleted:
    """The ledger's record is gone; bookies find out by themselves."""


# Repairing


@dataclass(frozen=True, slots=True)
class ListEntries:
    """Ask a bookie which entries of the ledger it stores.

    Answers: ``on_entries_listed(bookie_id, reply, runs, now)``; ``runs`` are sorted, disjoint pairs (first, last).
    """

    ledger_id: int
    bookie_id: str


@dataclass(frozen=True, slots=True)
class SendCopy:
    """Store a copy of an entry on a bookie, as recovery adds are stored.

    Answers: ``on_copy_answer(entry_id, bookie_id, reply, now)``.
    """

    ledger_id: int
    bookie_id: str
    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class RepairFinished:
    """A repair run ended. ``complete``: every entry it may touch has Qw copies on bookies that the metadata names."""

    complete: bool
    copied_entries: int
    copied_bytes: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class CheckFinished:
    """How many entries each bookie lacks that metadata says it has; bookies that lack none are left out.

    ``silent``: bookies that did not say what they have; none unless a partial answer was wanted.
    """

    lacking: tuple[tuple[str, int], ...]
    silent: tuple[str, ...] = ()


Effect = (
    SendAdd
    | SendLac
    | AddsConfirmed
    | AddsFailed
    | WriterFailed
    | WriterClosed
    | CloseFailed
    | CopiesMissing
    | WriteMetadata
    | ReadMetadata
    | DeleteMetadata
    | ReadLac
    | ReadEntry
    | ReadBatch
    | PollLac
    | CopyDamaged
    | ReadFinished
    | LacFound
    | RecoveryFinished
    | Failed
    | Deleted
    | ListEntries
    | SendCopy
    | RepairFinished
    | CheckFinished
)
