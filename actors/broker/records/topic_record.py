"""Changes of a topic's record as functions, and the creation of its ledgers."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace

from heliograph.actors.broker.records.ledgers import LedgersPort, LedgerWriterPort
from heliograph.metadata.model import CompactedLedger, LedgerInfo, LedgerMetadata, Policies, TopicRecord

DELETABLE = "deletable"  # property of the record: ledgers out of the chain whose deletion is not known to be complete
DELETING = "deleting"  # property of the record: the topic is being deleted
TAKEN = "taken"  # property of the record: a random word of the owner that wrote nothing else new when it took the topic
NEVER_TRIMMED = "whole"  # property of the record: nothing of the topic was ever trimmed
TRIMMED = "trimmed"  # property of the record: the newest ledgers that were trimmed, as id:entries, oldest first
TRIMMED_KEPT_MAX = 64  # of these, in one record  # I15
OF_USER = "user."  # before the names of the user's properties in the record


def user_properties(record: TopicRecord) -> dict[str, str]:
    found = record.properties.items()
    return {name.removeprefix(OF_USER): value for name, value in found if name.startswith(OF_USER)}


def with_user_properties(record: TopicRecord, properties: Mapping[str, str]) -> TopicRecord:
    """Return the record with other properties of the user; the broker's own stay."""
    kept = {name: value for name, value in record.properties.items() if not name.startswith(OF_USER)}
    return replace(record, properties={**kept, **{OF_USER + name: value for name, value in properties.items()}})


def with_owner_noted(record: TopicRecord) -> TopicRecord:
    """Return the record as no other owner writes it. One whose reply was lost finds out by the value whether the write
    was its own (I13)."""
    return replace(record, properties={**record.properties, TAKEN: secrets.token_hex(4)})


def without_owner_noted(record: TopicRecord) -> TopicRecord:
    """Return the record of a topic whose owner closes it in good order."""
    return replace(record, properties={name: each for name, each in record.properties.items() if name != TAKEN})


def with_ledger_appended(record: TopicRecord, ledger_id: int) -> TopicRecord:
    """Return the record with a new, open ledger at the end of the chain."""
    assert sum(info.closed_ms == 0 for info in record.ledgers) < 2, "at most two ledgers are not closed"  # I12
    assert not record.ledgers or record.ledgers[-1].ledger_id < ledger_id, "ledger ids of a topic grow"  # I12
    return replace(record, ledgers=(*record.ledgers, LedgerInfo(ledger_id)))


def with_ledger_closed(record: TopicRecord, metadata: LedgerMetadata, closed_ms: int) -> TopicRecord:
    """Return the record with the decided end of one of its ledgers, closed at ``closed_ms`` of the wall clock.

    A ledger that the record has as closed is unchanged.
    """
    assert metadata.is_closed, "the end of the ledger is decided"
    return replace(
        record,
        ledgers=tuple(
            LedgerInfo(info.ledger_id, metadata.last_entry_id + 1, metadata.length, closed_ms)
            if info.ledger_id == metadata.ledger_id and info.closed_ms == 0
            else info
            for info in record.ledgers
        ),
    )


def deletable_ledgers(record: TopicRecord) -> list[int]:
    """Return the ledgers that left the chain and may still exist."""
    return [int(text) for text in record.properties.get(DELETABLE, "").split(",") if text]


def with_deletable(record: TopicRecord, ledger_ids: Sequence[int]) -> TopicRecord:
    """Return the record with another list of ledgers to delete."""
    properties = {name: value for name, value in record.properties.items() if name != DELETABLE}
    if ledger_ids:
        properties[DELETABLE] = ",".join(map(str, ledger_ids))
    return replace(record, properties=properties)


def with_trimmed(record: TopicRecord, gone: Sequence[LedgerInfo]) -> TopicRecord:
    """Return the record with ledgers that leave the chain listed as deletable and as trimmed."""
    trimmed = [*trimmed_ledgers(record), *((one.ledger_id, one.entries) for one in gone if one.entries)]
    kept = {name: value for name, value in record.properties.items() if name not in (NEVER_TRIMMED, TRIMMED)}
    if trimmed:
        kept[TRIMMED] = ",".join(f"{ledger_id}:{entries}" for ledger_id, entries in trimmed[-TRIMMED_KEPT_MAX:])
    record = replace(record, properties=kept)
    return with_deletable(record, [*deletable_ledgers(record), *(one.ledger_id for one in gone)])


def trimmed_ledgers(record: TopicRecord) -> list[tuple[int, int]]:
    """Return the newest ledgers that were trimmed, with their entries, oldest first: at most ``TRIMMED_KEPT_MAX``.

    A reader positioned at one of them can tell whether it missed entries, and how many.
    """
    pairs = (text.split(":") for text in record.properties.get(TRIMMED, "").split(",") if text)
    return [(int(ledger_id), int(entries)) for ledger_id, entries in pairs]


def with_compacted(record: TopicRecord, compacted: CompactedLedger | None) -> TopicRecord:
    """Return the record with another compacted ledger, or none. The previous one is listed as deletable."""
    if record.compacted is not None:
        record = with_deletable(record, [*deletable_ledgers(record), record.compacted.ledger_id])
    return replace(record, compacted=compacted)


def without_empty_ledgers(record: TopicRecord) -> TopicRecord:
    """Return the record without ledgers that were closed empty. Otherwise each opening of the topic would leave one."""
    empty = [info.ledger_id for info in record.ledgers if info.closed_ms and info.entries == 0]
    if not empty:
        return record
    gone = set(empty)
    kept = tuple(info for info in record.ledgers if info.ledger_id not in gone)
    return replace(with_deletable(record, [*deletable_ledgers(record), *empty]), ledgers=kept)


async def create_topic_ledger(
    ledgers: LedgersPort, topic: str, policies: Policies, use: str = "topic", subscription: str = ""
) -> LedgerWriterPort:
    """Create a ledger for a topic's entries, or for what else is stored of the topic. It counts only once a record
    names it.

    Args:
        use: its purpose; ``use`` and ``subscription`` are stored in the ledger's properties.

    Raises:
        TooFewBookiesError: fewer bookies take entries than the ack quorum, or than the policies' minimum of copies.
        InvalidConfigError: the policies name a placement that this broker does not have.
    """
    properties = {"use": use, "topic": topic}
    if subscription:
        properties["subscription"] = subscription
    if policies.placement:
        properties["placement"] = policies.placement
    persistence = policies.persistence
    return await ledgers.create(
        ensemble_size=persistence.ensemble_size,
        write_quorum=persistence.write_quorum,
        ack_quorum=persistence.ack_quorum,
        properties=properties,
        minimum_copies=min(policies.minimum_write_copies, persistence.write_quorum) if use == "topic" else 0,
    )
