"""Records, addresses and grants by which programs outside of the cluster read a topic's ledgers from bookies."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.namespaces.session_guard import needs_session
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.owned_topic import read_piece
from heliograph.actors.broker.records.topic_chain import ledgers_among
from heliograph.actors.broker.records.topic_record import trimmed_ledgers
from heliograph.actors.errors import NoSuchLedgerError
from heliograph.actors.wire.grant import make_grants
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, NotFoundError, TopicNotFoundError
from heliograph.base.guard.handshake import secrets_of
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.metadata import codec, paths
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BookieRegistration, LedgerMetadata, TopicRecord
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.operations.table import READ_LEDGERS_MAX
from heliograph.protocol.topic_name import TopicName

READS_AT_ONCE_MAX = 64  # of records (I15)

Json = dict[str, Any]
T = TypeVar("T")
R = TypeVar("R")


async def read_access(store: MetadataStore, topic: TopicName, ledger_ids: Sequence[int], bookies: Bookies) -> Json:
    """Return the answer of ``TopicOperations.read_access`` for a topic without partitions."""
    wanted = _checked(ledger_ids)
    with needs_session():
        topic_record = await _checked_record(store, topic, wanted)
        # Read after the entries were acknowledged: the records name the segments that hold them. # I8
        records = await _all(wanted, lambda ledger_id: _ledger(store, topic, ledger_id))
    return await bookies.access(topic_record, records)


@dataclass(frozen=True)
class Bookies:
    """The bookies as programs outside of the cluster reach them.

    Args:
        registered: by id, as watches tell them.
        secret: with which grants are made; None where bookies are open.
        tls: the files of TLS; None: bookies do not speak it.
        grant_seconds: how long a grant lasts.
    """

    registered: Mapping[str, BookieRegistration]
    secret: str | None = field(repr=False)
    tls: PeerTlsFiles | None
    grant_seconds: int

    async def access(self, topic_record: TopicRecord, records: Sequence[LedgerMetadata]) -> Json:
        names = sorted({bookie for record in records for segment in record.segments for bookie in segment.bookies})
        found = [self.registered[name] for name in names if name in self.registered]
        kept, expires_ms = topic_record.compacted, wall_ms() + self.grant_seconds * 1000
        ids = [record.ledger_id for record in records]
        grants = make_grants(secrets_of(self.secret)[0], ids, expires_ms) if self.secret is not None else []
        return {
            "ledgers": [_described(record) for record in records],
            "addresses": {one.bookie_id: one.address for one in found},
            "racks": {one.bookie_id: one.rack for one in found},
            "grants": [{"ledger_ids": sorted(grant.ledger_ids), "grant": grant.text} for grant in grants],
            "expires_ms": expires_ms,
            "trimmed": [list(pair) for pair in trimmed_ledgers(topic_record)],
            "compacted": kept and {"ledger_id": kept.ledger_id, "entries": kept.entries, "horizon": list(kept.horizon)},
            "authority": "" if self.tls is None else await asyncio.to_thread(Path(self.tls.ca).read_text),
        }


async def read_plan(
    ledger: ManagedLedger, ledgers: LedgersPort, rows: Json, last: int | None, bookies: Bookies
) -> Json:
    """Return one row of the answer that ``TopicOperations.read_plan`` describes.

    Args:
        rows: the page of ledgers, as ``topic_ledgers`` describes it.
        last: the id of the last ledger that is wanted; None: all are.
    """
    filled = [row["ledger_id"] for row in rows["ledgers"] if row["entries"]]
    wanted = filled if last is None else [ledger_id for ledger_id in filled if ledger_id <= last]

    async def record_of(ledger_id: int) -> LedgerMetadata:
        known = ledger.writer.metadata
        if ledger_id == known.ledger_id and not known.is_closed and len(known.segments) == 1:
            return known  # as new as what its writer has acknowledged; nobody repairs the last segment of an open one
        try:
            return (await ledgers.metadata(ledger_id)).record
        except NoSuchLedgerError:
            raise _gone(ledger.name, ledger_id) from None

    # Read after the entries were acknowledged: the records name the segments that hold them. # I8
    with needs_session():
        records = await _all(wanted, record_of)
    return {"topic": str(ledger.name), "rows": rows, "access": await bookies.access(ledger.record, records)}


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


async def _all(items: Sequence[T], one: Callable[[T], Awaitable[R]]) -> list[R]:
    room = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def bounded(item: T) -> R:
        async with room:
            return await one(item)

    return list(await asyncio.gather(*map(bounded, items)))


def _gone(topic: object, ledger_id: int) -> NotFoundError:
    return NotFoundError(f"ledger {ledger_id} is none of {topic}, or no longer", field="ledger_ids")


def _described(record: LedgerMetadata) -> Json:
    return {
        "ledger_id": record.ledger_id,
        "write_quorum": record.write_quorum,
        "ack_quorum": record.ack_quorum,
        "segments": [[segment.first_entry_id, list(segment.bookies)] for segment in record.segments],
    }
