"""Requests and reports of the cores, and the kinds of answers to them. Plain values.

A core is a plain object. Its ``on_<event>`` methods (and ``start``, ``add``, ``close``, ``tick``) take an event and
``now``, in milliseconds of a clock that never goes back. They return the effects to run, in order. Each effect names
the method that takes its answer. Answers may be late, repeated or in any order: a core ignores those that it no longer
waits for. An effect without an answer method is a report to the core's owner.

Every request to a bookie is answered in the end: the effect runner turns a lost connection and a timeout into
``Reply.UNKNOWN``. The same holds for metadata requests and ``on_metadata_unknown``.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from heliograph.base.errors import HeliographError
from heliograph.metadata.model import LedgerMetadata

Target = tuple[int, str]  # position in the ensemble, bookie id


class Reply(enum.Enum):
    """The conclusion from the answer of a bookie, or from a missing answer."""

    OK = "ok"
    ABSENT = "absent"  # explicit negative: the bookie never acknowledged it (I6)
    FENCED = "fenced"
    READ_ONLY = "read_only"
    UNAUTHORIZED = "unauthorized"
    DAMAGED = "damaged"  # a copy is there and fails its checksum or identity; for verdicts the same as UNKNOWN
    UNKNOWN = "unknown"  # error, timeout, lost connection, limbo: nothing may be concluded


@dataclass(slots=True)  # ``frozen`` would cost half a microsecond for every entry; nobody changes one
class LedgerEntry:
    """An entry whose copy was checked. ``length``: payload bytes of the ledger up to and including it."""

    entry_id: int
    payload: bytes | memoryview  # a view of the bookie's answer if it is large, or ``BookieContext`` copies no entries
    length: int
    last_add_confirmed: int = -1


# -- adds


# Of one entry to its bookies, one value for all of them: entry id, epoch, position of each of these bookies
AddRequest = tuple[int, int, Mapping[str, int]]


@dataclass(slots=True)  # ``frozen`` would cost a microsecond for every entry
class SendAdd:
    """Send one entry to each target. Answers: ``on_add_answer(entry_id, position, epoch, reply, now)``, or for several
    entries of a writer that are durable on one bookie ``on_adds_stored(bookie_id, requests)``.

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


@dataclass(slots=True)  # as SendAdd
class SendLac:
    """Send the LAC to these bookies, without an entry. The answers are ignored."""

    ledger_id: int
    last_add_confirmed: int
    bookies: tuple[str, ...]


@dataclass(slots=True)  # as SendAdd
class AddsConfirmed:
    """Report that every add up to and including ``last_entry_id`` without an outcome succeeded (I2)."""

    last_entry_id: int


@dataclass(frozen=True, slots=True)
class AddsFailed:
    """Report adds that this writer will not confirm. After a fence or a lost quorum they may survive."""

    first_entry_id: int
    last_entry_id: int
    error: HeliographError


@dataclass(frozen=True, slots=True)
class WriterFailed:
    """Report that the writer takes no more adds. It comes once, after the AddsFailed of the same cause."""

    error: HeliographError


@dataclass(frozen=True, slots=True)
class WriterClosed:
    """Report that ``close`` is done: the ledger is CLOSED at the writer's LAC."""

    metadata: LedgerMetadata


@dataclass(frozen=True, slots=True)
class CloseFailed:
    """Report that ``close`` failed. The writer stays unusable; ``close`` may be called again."""

    error: HeliographError


@dataclass(frozen=True, slots=True)
class CopiesMissing:
    """Report that confirmed entries from ``first_entry_id`` on lack a copy on this bookie: a task for repair."""

    ledger_id: int
    bookie_id: str
    first_entry_id: int


# -- metadata


@dataclass(frozen=True, slots=True)
class WriteMetadata:
    """Write the ledger's record if it has ``version`` (I9).

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
    ``on_metadata_refused(request, error, now)`` (as above, or the record is damaged or of a newer version),
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


# -- reads and recovery


@dataclass(frozen=True, slots=True)
class ReadLac:
    """Ask each target for its LAC and for the stored entry with the greatest id.

    Answers: ``on_lac_answer(position, reply, last_add_confirmed, entry, now)``; ``last_add_confirmed`` is the greater
    one of the answer's and the entry's; ``entry`` may be None. ``fence``: the bookie fences the ledger durably first.
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
    """Ask one bookie for consecutive entries: at least one, at most ``max_bytes``. With ``heads`` their payloads may be
    cut after HEAD_BYTES.

    Answers: ``on_batch_answer(request, reply, entries, now)``: with Reply.OK, ``entries`` start at ``first_entry_id``,
    have no gaps and may end early; a damaged entry after the first ends them, a damaged first one is Reply.DAMAGED.
    """

    request: int
    ledger_id: int
    bookie_id: str
    first_entry_id: int
    last_entry_id: int
    max_bytes: int
    heads: bool = False


@dataclass(frozen=True, slots=True)
class CopyDamaged:
    """Report a bookie that returned a damaged copy, or none of an expected one: a task for repair."""

    ledger_id: int
    entry_id: int
    bookie_id: str
    is_missing: bool = False  # there is no copy


@dataclass(frozen=True, slots=True)
class ReadFinished:
    """Report the result of a read: consecutive entries from the first one requested, at least one."""

    entries: tuple[LedgerEntry, ...]


@dataclass(frozen=True, slots=True)
class LacFound:
    """Report the highest LAC that a covering set of bookies knows."""

    last_add_confirmed: int


@dataclass(frozen=True, slots=True)
class RecoveryFinished:
    """Report that the ledger is CLOSED, by this recovery or by another. ``last``: its last entry, if that was read."""

    metadata: LedgerMetadata
    version: int
    last: LedgerEntry | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """Report that a read, recovery, deletion or repair ended without its result."""

    error: HeliographError


@dataclass(frozen=True, slots=True)
class Deleted:
    """Report that the ledger's record is gone. Bookies find out by themselves."""


# -- repair


@dataclass(frozen=True, slots=True)
class ListEntries:
    """Ask a bookie for the ids of the entries that it stores of the ledger.

    Answers: ``on_entries_listed(bookie_id, reply, runs, now)``; ``runs`` are sorted, disjoint pairs (first, last).
    """

    ledger_id: int
    bookie_id: str


@dataclass(frozen=True, slots=True)
class SendCopy:
    """Store a copy of an entry on a bookie, as a recovery add.

    Answers: ``on_copy_answer(entry_id, bookie_id, reply, now)``.
    """

    ledger_id: int
    bookie_id: str
    entry: LedgerEntry


@dataclass(frozen=True, slots=True)
class RepairFinished:
    """Report the end of a repair. ``complete``: every entry that it may copy has Qw copies where metadata says so."""

    complete: bool
    copied_entries: int
    copied_bytes: int
    reason: str = ""
    lost_entries: int = 0  # every replica said that its copy is missing or damaged
    needs_bookies: bool = False  # nothing more can be copied before another bookie takes entries


@dataclass(frozen=True, slots=True)
class CheckFinished:
    """Report how many entries each bookie lacks that metadata says it has. Bookies that lack none are left out.

    ``silent``: bookies that did not answer; empty unless a partial answer was requested.
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
