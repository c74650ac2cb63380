"""What programs outside of the cluster need to read ledgers of a topic from bookies: records, addresses and grants."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.owned_topic import read_piece
from heliograph.actors.broker.records.topic_chain import ledgers_among
from heliograph.actors.broker.records.topic_record import trimmed_ledgers
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.actors.wire.grant import make_grants
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, NotFoundError, TopicNotFoundError
from heliograph.base.guard.handshake import secrets_of
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BookieRegistration, CompactedLedger, LedgerMetadata, TopicRecord
from heliograph.metadata.operator_records import BookieRack
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.operations.table import READ_LEDGERS_MAX
from heliograph.protocol.topic_name import TopicName

READS_AT_ONCE_MAX = 64  # of records (I15)

Json = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


async def read_access(
    store: MetadataStore, topic: TopicName, ledger_ids: Sequence[int], ledgers: LedgerClientConfig, grant_seconds: int
) -> Json:
    """Return what ``TopicOperations.read_access`` describes, for a topic without partitions.

    Args:
        ledgers: has the secret with which grants are made, None where bookies are open, and the files of TLS.
        grant_seconds: how long a grant lasts.
    """
    wanted = _checked(ledger_ids)
    with needs_session():
        topic_record = await _checked_record(store, topic, wanted)
        # Read after the entries were acknowledged: the records name the segments that hold them. # I8
        records = await _all(wanted, lambda ledger_id: _ledger(store, topic, ledger_id))
        bookies = sorted({bookie for record in records for segment in record.segments for bookie in segment.bookies})
        found = await _all(bookies, lambda bookie: _registration(store, bookie))
    expires_ms = wall_ms() + grant_seconds * 1000
    secret = ledgers.cluster_secret
    grants = make_grants(secrets_of(secret)[0], wanted, expires_ms) if secret is not None else []
    return {
        "ledgers": [_described(record) for record in records],
        "addresses": {one.bookie_id: one.address for one in found if one is not None},
        "racks": {one.bookie_id: one.rack for one in found if one is not None},
        "grants": [{"ledger_ids": sorted(grant.ledger_ids), "grant": grant.text} for grant in grants],
        "expires_ms": expires_ms,
        "trimmed": [list(pair) for pair in trimmed_ledgers(topic_record)],
        "compacted": _compacted(topic_record.compacted),
        "authority": "" if ledgers.tls is None else await asyncio.to_thread(Path(ledgers.tls.ca).read_text),
    }


def _checked(ledger_ids: Sequence[int]) -> list[int]:
    if len(ledger_ids) > READ_LEDGERS_MAX or not all(type(one) is int and one >= 0 for one in ledger_ids):
        raise BadRequestError("these are no ledger ids", field="ledger_ids", limit=f"{READ_LEDGERS_MAX} ledgers")
    return sorted(set(ledger_ids))


async def _checked_record(store: MetadataStore, topic: TopicName, wanted: Collection[int]) -> TopicRecord:
    """Return the topic's record if it names the ledgers: a caller may read this topic, and no other."""
    try:
        value, _ = await store.get(Catalog.topic_path(topic))
    except NoNodeError:
        raise TopicNotFoundError(f"there is no topic {topic}", field="topic") from None
    record = codec.decode(TopicRecord, value)
    path = Catalog.topic_path(topic)
    theirs = await ledgers_among(wanted, record, lambda number: read_piece(store, path, number))
    if record.compacted is not None:
        theirs.add(record.compacted.ledger_id)
    for ledger_id in wanted:
        if ledger_id not in theirs:
            raise _gone(topic, ledger_id)
    return record


async def _ledger(store: MetadataStore, topic: TopicName, ledger_id: int) -> LedgerMetadata:
    try:
        return (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record
    except NoNodeError:
        raise _gone(topic, ledger_id) from None


async def _registration(store: MetadataStore, bookie_id: str) -> BookieRegistration | None:
    """Return what a bookie registered, writable or read-only, with the rack that an operator set for it, if one was
    set; None if it is not registered."""
    for folder in (paths.BOOKIES_AVAILABLE, paths.BOOKIES_READONLY):
        try:
            found = (await read(store, f"{folder}/{bookie_id}", BookieRegistration)).record
        except NoNodeError:
            continue
        try:
            rack = (await read(store, f"{paths.BOOKIES_RACKS}/{bookie_id}", BookieRack)).record.rack
        except NoNodeError:
            return found
        return replace(found, rack=rack)
    return None


async def _all(items: Sequence[T], one: Callable[[T], Awaitable[R]]) -> list[R]:
    room = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def bounded(item: T) -> R:
        async with room:
            return await one(item)

    return list(await asyncio.gather(*map(bounded, items)))


def _gone(topic: TopicName, ledger_id: int) -> NotFoundError:
    return NotFoundError(f"ledger {ledger_id} is none of {topic}, or no longer", field="ledger_ids")


def _compacted(compacted: CompactedLedger | None) -> Json | None:
    if compacted is None:
        return None
    return {
        "ledger_id": compacted.ledger_id,
        "entries": compacted.entries,
        "horizon": list(compacted.horizon),
    }


def _described(record: LedgerMetadata) -> Json:
    return {
        "ledger_id": record.ledger_id,
        "write_quorum": record.write_quorum,
        "ack_quorum": record.ack_quorum,
        "segments": [[segment.first_entry_id, list(segment.bookies)] for segment in record.segments],
    }
