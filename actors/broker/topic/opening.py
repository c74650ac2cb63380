"""Takeover of a topic: fence every ledger that the previous owner could still write to, then start a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.managed_ledger.closed_writer import ClosedLedgerWriter
from heliograph.actors.broker.managed_ledger.failed_ledger import NO_ROOM
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.entry_stamp import NONE, EntryStamp, begin_stamps
from heliograph.actors.broker.records.ledgers import LedgersPort, LedgerWriterPort
from heliograph.actors.broker.records.message_count import counted_at_end, counted_by_last_entry
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.topic_chain import last_ledger_id
from heliograph.actors.broker.records.topic_record import (
    DELETING,
    create_topic_ledger,
    with_ledger_appended,
    with_ledger_closed,
    without_empty_ledgers,
)
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, ServiceNotReadyError, TopicNotFoundError
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import Policies, TopicRecord
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
) -> ManagedLedger:
    """Open a topic as its only writer.

    The last two ledgers of the chain are recovered, in order, unless the record says that they are closed: a rollover
    names the next ledger before it leaves the current one. Only when the record names our own new ledger may anything
    be published (I12). If the record changes meanwhile, the takeover starts over.

    Args:
        entry_metadata: what clients see of the broker's metadata of entries, one of ``ENTRY_METADATA``.

    Raises:
        TopicNotFoundError: there is no such topic; BeingDeletedError: it is marked as being deleted.
        ServiceNotReadyError: another broker keeps writing the record.
        TooFewBookiesError, RecordTooLargeError: too few bookies take entries for a ledger, or the topic's record has no
            room for one, and the topic has no entries that could be read; or too few answer for its last ledgers.
        LedgerRecoveryError, QuorumLostError, BookieError: it cannot be opened now; nothing was lost, try again.
    """
    orphan: LedgerWriterPort | None = None
    is_taken_over = False
    for _ in range(TAKEOVER_ATTEMPTS_MAX):
        try:
            owned = OwnedTopicRecord(store, path, await read(store, path, TopicRecord))
        except NoNodeError:
            raise TopicNotFoundError(f"there is no topic {name}", field="topic") from None
        if DELETING in owned.record.properties:
            raise BeingDeletedError(f"{name} is being deleted", field="topic")
        is_taken_over |= any(info.closed_ms == 0 for info in owned.record.ledgers)
        if owned.record.terminated_at is not None:
            return await _open_terminated(name, owned, ledgers, cache, policies)
        unclosed = {info.ledger_id for info in owned.record.ledgers[-2:] if info.closed_ms == 0}
        record = without_empty_ledgers(await _recover_tail(owned.record, unclosed, ledgers, policies))
        record, stamp = await begin_stamps(record, unclosed, ledgers, entry_metadata)
        # The ledger of an earlier attempt is useless when a newer one is in the record: ids in the chain grow, also
        # past an empty ledger that just left it, since a cursor's mark may name that one.
        if orphan is not None and orphan.ledger_id <= last_ledger_id(owned.record):
            await ledgers.delete(orphan.ledger_id)
            orphan = None
        writer: LedgerWriterPort
        try:
            if orphan is None:
                await owned.check_room(record)
                orphan = await create_topic_ledger(ledgers, name, policies)
            await owned.replace(with_ledger_appended(record, orphan.ledger_id))
            writer = orphan
        except ServiceNotReadyError:
            continue
        except NO_ROOM:
            if last_ledger_id(record) < 0:  # there is nothing to read
                raise
            try:
                await owned.replace(record)
            except ServiceNotReadyError:
                continue
            # Consumers read on. The first publication asks for a new ledger, as after a writer that failed.
            writer = ClosedLedgerWriter(await ledgers.recover(last_ledger_id(record)))
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
    await owned.replace(owned.record)  # the previous owner's version is void now (I13)
    last = await ledgers.recover(last_ledger_id(owned.record))
    count = counted_at_end(owned.record) or counted_by_last_entry(owned.record, 0)
    stamp = EntryStamp(time_ms=0, latest_ms=0, next_index=None, count=count)
    opened = ManagedLedger(name, owned, _chain_of(owned, stamp), ClosedLedgerWriter(last), ledgers, cache, policies)
    opened.stamp = stamp
    return opened


async def _recover_tail(
    record: TopicRecord, unclosed: Collection[int], ledgers: LedgersPort, policies: Policies
) -> TopicRecord:
    assert all(info.closed_ms for info in record.ledgers[:-2]), "only the last two can be open"  # I12
    try:
        recovered = await asyncio.gather(*(ledgers.recover(ledger_id) for ledger_id in sorted(unclosed)))
    except HeliographError as error:
        raise await ledgers.shortage(policies.persistence.ack_quorum) or error from error
    for metadata in recovered:
        record = with_ledger_closed(record, metadata, wall_ms())
    return record


def _chain_of(owned: OwnedTopicRecord, stamp: EntryStamp) -> LedgerChain:
    chain = LedgerChain(owned.record.pieces, owned.piece)
    chain.count = stamp.count
    for info in owned.record.ledgers:
        chain.append(info.ledger_id, info.entries, info.closed_ms)
    return chain
