"""The form of effects, results and records in a trace: one short line each."""

from __future__ import annotations

from typing import Any

from heliograph.actors.ledger.effects import (
    AddsConfirmed,
    AddsFailed,
    CheckFinished,
    CloseFailed,
    CopiesMissing,
    CopyDamaged,
    Deleted,
    DeleteMetadata,
    Effect,
    Failed,
    LacFound,
    LedgerEntry,
    ListEntries,
    ReadBatch,
    ReadEntry,
    ReadFinished,
    ReadLac,
    ReadMetadata,
    RecoveryFinished,
    RepairFinished,
    Reply,
    SendAdd,
    SendCopy,
    SendLac,
    Target,
    WriteMetadata,
    WriterClosed,
    WriterFailed,
)
from heliograph.metadata.model import LedgerMetadata, LedgerState, Versioned


def describe(effect: Effect) -> str:
    """Return the line of an effect, after the name of its core."""
    match effect:
        case SendAdd():
            flag = " recovery" if effect.recovery else ""
            tags = f"lac={effect.last_add_confirmed} epoch={effect.epoch}{flag}"
            return f"sends {effect.entry_id} {tags} to {_names(effect.targets)}"
        case SendLac():
            return f"tells lac={effect.last_add_confirmed} to {' '.join(effect.bookies)}"
        case SendCopy():
            return f"copies {effect.entry.entry_id} to {effect.bookie_id}"
        case WriteMetadata():
            return f"writes over v{effect.version}: {describe_record(effect.record)}"
        case ReadMetadata():
            return "reads the record"
        case DeleteMetadata():
            return "deletes the record"
        case ReadLac():
            return f"{'fences' if effect.fence else 'asks for the lac of'} {_names(effect.targets)}"
        case ReadEntry():
            return f"reads {effect.entry_id}{' fencing' if effect.fence else ''} from {_names(effect.targets)}"
        case ReadBatch():
            return f"reads {effect.first_entry_id}-{effect.last_entry_id} from {effect.bookie_id}"
        case ListEntries():
            return f"asks {effect.bookie_id} what it stores"
        case _:
            return _report(effect)


def _report(effect: Effect) -> str:
    match effect:
        case AddsConfirmed():
            return f"CONFIRMED up to {effect.last_entry_id}"
        case AddsFailed():
            return f"FAILED {effect.first_entry_id}-{effect.last_entry_id}: {type(effect.error).__name__}"
        case WriterFailed():
            return f"ENDED: {type(effect.error).__name__}"
        case WriterClosed():
            return f"CLOSED: {describe_record(effect.metadata)}"
        case CloseFailed():
            return f"NOT CLOSED: {type(effect.error).__name__}"
        case CopiesMissing():
            return f"reports copies missing on {effect.bookie_id} from {effect.first_entry_id} on"
        case CopyDamaged():
            return f"reports a bad copy of {effect.entry_id} on {effect.bookie_id}"
        case ReadFinished():
            return f"READ {effect.entries[0].entry_id}-{effect.entries[-1].entry_id}"
        case LacFound():
            return f"FOUND lac={effect.last_add_confirmed}"
        case RecoveryFinished():
            return f"RECOVERED: {describe_record(effect.metadata)}"
        case RepairFinished():
            done = "REPAIRED" if effect.complete else f"NOT REPAIRED ({effect.reason})"
            return f"{done}: {effect.copied_entries} copies"
        case CheckFinished():
            return f"CHECKED: {' '.join(f'{name} lacks {count}' for name, count in effect.lacking) or 'all there'}"
        case Deleted():
            return "DELETED"
        case Failed():
            return f"GAVE UP: {type(effect.error).__name__}: {effect.error}"
        case _:
            raise AssertionError(f"no words for {effect!r}")


def describe_record(record: LedgerMetadata) -> str:
    """Return state, end and segments of a record."""
    segments = " ".join(f"{s.first_entry_id}:{','.join(s.bookies)}" for s in record.segments)
    end = f" last={record.last_entry_id} length={record.length}" if record.state is LedgerState.CLOSED else ""
    return f"{record.state.value}{end} {segments}"


def describe_result(result: Any) -> str:
    """Return the line of a result."""
    match result:
        case Reply():
            return result.value
        case (Reply() as reply, int(lac), None | LedgerEntry() as entry):
            last = "" if entry is None else f" last={entry.entry_id}"
            return f"{reply.value} lac={lac}{last}" if reply is Reply.OK else reply.value
        case (Reply() as reply, *_):
            return reply.value
        case ("read", Versioned() as versioned):
            return f"v{versioned.version} {describe_record(versioned.record)}"
        case ("written", version):
            return f"written v{version}"
        case (str(event), *_):
            return event
        case _:
            raise AssertionError(f"no words for {result!r}")


def _names(targets: tuple[Target, ...]) -> str:
    return " ".join(bookie_id for _, bookie_id in targets) or "nobody"
