"""Takeover of a topic: fence every ledger that the previous owner could still write to. The first entry published gets
a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.managed_ledger.closed_writer import ClosedLedgerWriter
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.entry_stamp import NONE, EntryStamp, begin_stamps
from heliograph.actors.broker.records.ledgers import LedgersPort, LedgerWriterPort
from heliograph.actors.broker.records.message_count import counted_at_end, counted_by_last_entry
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.topic_chain import last_ledger_id
from heliograph.actors.broker.records.topic_record import (
    DELETING,
    TAKEN,
    create_topic_ledger,
    deletable_ledgers,
    with_deletable,
    with_ledger_appended,
    with_ledger_closed,
    with_owner_noted,
    without_empty_ledgers,
)
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, ServiceNotReadyError, TopicNotFoundError
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import LedgerMetadata, Policies, TopicRecord, Versioned
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore

TAKEOVER_ATTEMPTS_MAX = 5  # while the previous owner is still writing the record


class BeingDeletedError(TopicNotFoundError):
    """The topic is marked as being deleted. Its deletion may have stopped half-way; any broker can complete it."""


async def open_managed_ledger(
    name: str,
    path: str,
    store: MetadataStore,
    ledgers: LedgersPort,
    cache: TailCache,
    policies: Policies,
    entry_metadata: str = NONE,
    found: Versioned[TopicRecord] | None = None,
) -> ManagedLedger:
    """Open a topic as its only writer.

    The last two ledgers of the chain are recovered, in order, unless the record says that they are closed: a rollover
    names the next ledger before it leaves the current one. Then the record is written: from there on no earlier owner
    can name a ledger (I13), and the first entry that is published gets a new one, which the record names before (I12).
    A topic that has no ledger gets one at once, so that there are positions in it. If the record changes meanwhile, the
    takeover starts over.

    Args:
        entry_metadata: what clients see of the broker's metadata of entries, one of ``ENTRY_METADATA``.
        found: the topic's record, if it was just read.

    Raises:
        TopicNotFoundError: there is no such topic; BeingDeletedError: it is marked as being deleted.
        ServiceNotReadyError: another broker keeps writing the record.
        TooFewBookiesError, RecordTooLargeError: the topic has no ledger, and too few bookies take entries for one, or
            its record has no room for it; or too few answer for its last ledgers.
        LedgerRecoveryError, QuorumLostError, BookieError: it cannot be opened now; nothing was lost, try again.
    """
    orphan: LedgerWriterPort | None = None
    is_taken_over = False
    for _ in range(TAKEOVER_ATTEMPTS_MAX):
        try:
            owned = OwnedTopicRecord(store, path, found or await read(store, path, TopicRecord))
        except NoNodeError:
            raise TopicNotFoundError(f"there is no topic {name}", field="topic") from None
        found = None
        if DELETING in owned.record.properties:
            raise BeingDeletedError(f"{name} is being deleted", field="topic")
        is_taken_over |= TAKEN in owned.record.properties or any(not info.closed_ms for info in owned.record.ledgers)
        if owned.record.terminated_at is not None:
            return await _open_terminated(name, owned, ledgers, cache, policies)
        unclosed = {info.ledger_id for info in owned.record.ledgers[-2:] if info.closed_ms == 0}
        recovered, closed = await _recover_tail(owned.record, unclosed, ledgers, policies)
        record, stamp = await begin_stamps(without_empty_ledgers(recovered), closed, ledgers, entry_metadata)
        if last_ledger_id(record) < 0:
            record = _with_last_of(recovered, record)
        if orphan is not None and last_ledger_id(record) >= 0:  # another owner gave the topic its first ledger
            if all(info.ledger_id != orphan.ledger_id for info in record.ledgers):  # else our write had arrived
                await ledgers.delete(orphan.ledger_id)
            orphan = None
        writer: LedgerWriterPort
        try:
            if (last := last_ledger_id(record)) >= 0:
                writer = ClosedLedgerWriter(closed.get(last) or await ledgers.recover(last))
                await owned.replace(with_owner_noted(record))
            else:
                orphan = orphan or await create_topic_ledger(ledgers, name, policies)
                await owned.replace(with_ledger_appended(record, orphan.ledger_id))
                writer = orphan
        except ServiceNotReadyError:
            continue
        opened = ManagedLedger(name, owned, _chain_of(owned, stamp), writer, ledgers, cache, policies)
        opened.stamp, opened.is_taken_over = stamp, is_taken_over
        opened.seeks_by_storage = entry_metadata != NONE
        return opened
    raise ServiceNotReadyError(f"another broker keeps writing {path}")


async def _open_terminated(
    name: str, owned: OwnedTopicRecord, ledgers: LedgersPort, cache: TailCache, policies: Policies
) -> ManagedLedger:
    """Open a topic that takes no more entries: all its ledgers are closed."""
    assert all(info.closed_ms for info in owned.record.ledgers), "a terminated topic has no open ledger"  # I12
    await owned.replace(with_owner_noted(owned.record))  # the previous owner's version is void now (I13)
    last = await ledgers.recover(last_ledger_id(owned.record))
    count = counted_at_end(owned.record) or counted_by_last_entry(owned.record, 0)
    stamp = EntryStamp(time_ms=0, latest_ms=0, next_index=None, count=count)
    opened = ManagedLedger(name, owned, _chain_of(owned, stamp), ClosedLedgerWriter(last), ledgers, cache, policies)
    opened.stamp = stamp
    return opened


async def _recover_tail(
    record: TopicRecord, unclosed: Collection[int], ledgers: LedgersPort, policies: Policies
) -> tuple[TopicRecord, dict[int, LedgerMetadata]]:
    """Recover ledgers. Return the record with their ends, and their metadata by id."""
    assert all(info.closed_ms for info in record.ledgers[:-2]), "only the last two can be open"  # I12
    try:
        recovered = await asyncio.gather(*(ledgers.recover(ledger_id) for ledger_id in sorted(unclosed)))
    except HeliographError as error:
        raise await ledgers.shortage(policies.persistence.ack_quorum) or error from error
    for metadata in recovered:
        record = with_ledger_closed(record, metadata, wall_ms())
    return record, {metadata.ledger_id: metadata for metadata in recovered}


def _with_last_of(recovered: TopicRecord, record: TopicRecord) -> TopicRecord:
    """Return ``record``, which has no ledger, with the last one of ``recovered``, which is empty, if that has one."""
    kept = recovered.ledgers[-1:]
    gone = [each for each in deletable_ledgers(record) if each not in {info.ledger_id for info in kept}]
    return replace(with_deletable(record, gone), ledgers=kept)


def _chain_of(owned: OwnedTopicRecord, stamp: EntryStamp) -> LedgerChain:
    chain = LedgerChain(owned.record.pieces, owned.piece)
    chain.count = stamp.count
    for info in owned.record.ledgers:
        chain.append(info.ledger_id, info.entries, info.closed_ms)
    return chain
