"""Planning: asks brokers for acknowledged entries and metadata for their bookies. Runs on the driver, inside Ray."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

from heliograph.base.errors import ClusterNotFoundError
from heliograph.client import discovery
from heliograph.client.admin.admin import Admin
from heliograph.metadata import paths
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.model import BookieRegistration, LedgerMetadata
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import MetadataStore
from heliograph.pipelines.planning.ranges import LedgerRange, Position, cut, range_of
from heliograph.protocol.topic_name import TopicName

R = TypeVar("R")

LEDGER_READS_MAX = 64  # records read concurrently (I15)
PLAN_ATTEMPTS_MAX = 5  # a ledger that is trimmed during an attempt makes it fail

_Span = tuple[str, int, int, int, int]  # topic, partition, ledger id, first and last entry id


def plan_topic(
    topic: str,
    *,
    start: Mapping[int, Position] | None = None,
    end: Mapping[int, Position] | None = None,
    namespace: str | None = None,
) -> list[LedgerRange]:
    """Return all entries of a topic that are acknowledged now, from ``start`` (included) to ``end`` (excluded).

    Args:
        topic: a topic or partitioned topic.
        start, end: positions (ledger id, entry id) per partition, -1 for a topic without partitions.
        namespace: the cluster's Ray namespace; None: the one that ``heliograph.connect`` uses.

    Raises:
        TopicNotFoundError, ClusterNotFoundError: there is no such topic or cluster.
        NoNodeError: the topic names a ledger that has no record.
    """
    named = _attached(namespace)
    return _run(_plan(topic, start, end, named, _metadata_url(named)))


def refresh_addresses(ranges: Sequence[LedgerRange], *, namespace: str | None = None) -> list[LedgerRange]:
    """Return the same ranges with the present bookies and addresses of their ledgers, for plans that were stored.

    Raises:
        ClusterNotFoundError: there is no such cluster.
        NoNodeError: a ledger was deleted since the plan was made.
    """
    if not ranges:
        return []
    return _run(_refresh(ranges, _metadata_url(_attached(namespace))))


def _attached(namespace: str | None) -> str:
    named = discovery.namespace_or_noted(namespace)
    discovery.attach(named)
    return named


async def _plan(
    topic: str,
    start: Mapping[int, Position] | None,
    end: Mapping[int, Position] | None,
    namespace: str,
    metadata_url: str,
) -> list[LedgerRange]:
    admin = Admin(namespace)
    name = TopicName.parse(topic)
    names = name.partitions(await admin.partitions(str(name)))
    attempts = PLAN_ATTEMPTS_MAX
    while True:
        spans = [span for span in await _acknowledged(admin, names) if _is_wanted(span, start, end)]
        try:
            return cut(await _ranges(spans, metadata_url), start, end)
        except NoNodeError:  # a ledger was trimmed since its broker answered; the next answer does not name it
            attempts -= 1
            if not attempts:
                raise


async def _acknowledged(admin: Admin, names: Sequence[TopicName]) -> list[_Span]:
    found = await asyncio.gather(*(admin.ledger_ranges(str(name)) for name in names))
    return [
        (str(name), name.partition, span["ledger_id"], span["first_entry_id"], span["last_entry_id"])
        for name, ranges in zip(names, found, strict=True)
        for span in ranges
        if span["first_entry_id"] <= span["last_entry_id"]
    ]


def _is_wanted(span: _Span, start: Mapping[int, Position] | None, end: Mapping[int, Position] | None) -> bool:
    """Return whether a ledger may hold entries between the bounds; the records of others are not read."""
    _, partition, ledger_id, _, _ = span
    is_before = partition in (start or {}) and ledger_id < (start or {})[partition][0]
    is_behind = partition in (end or {}) and ledger_id > (end or {})[partition][0]
    return not is_before and not is_behind


async def _ranges(spans: Sequence[_Span], metadata_url: str) -> list[LedgerRange]:
    store = await connect_store(metadata_url)
    try:
        # Read after the brokers answered: these records name the segments that hold the acknowledged entries. # I8
        records = await _ledgers(store, {span[2] for span in spans})
        addresses = await _addresses(store)
    finally:
        await store.close()
    return [
        range_of(topic_name, partition, records[ledger_id], first, last, addresses)
        for topic_name, partition, ledger_id, first, last in spans
    ]


async def _refresh(ranges: Sequence[LedgerRange], metadata_url: str) -> list[LedgerRange]:
    store = await connect_store(metadata_url)
    try:
        records = await _ledgers(store, {piece.ledger_id for piece in ranges})
        addresses = await _addresses(store)
    finally:
        await store.close()
    fresh = []
    for piece in ranges:
        record = records[piece.ledger_id]
        found = range_of(piece.topic, piece.partition, record, piece.first_entry_id, piece.last_entry_id, addresses)
        assert replace(found, segments=piece.segments, addresses=piece.addresses) == piece, (
            "only bookies and addresses may differ"
        )
        fresh.append(found)
    return fresh


async def _ledgers(store: MetadataStore, ledger_ids: Iterable[int]) -> dict[int, LedgerMetadata]:
    room = asyncio.Semaphore(LEDGER_READS_MAX)

    async def one(ledger_id: int) -> LedgerMetadata:
        async with room:
            return (await read(store, paths.ledger(ledger_id), LedgerMetadata)).record

    wanted = sorted(ledger_ids)
    return dict(zip(wanted, await asyncio.gather(*map(one, wanted)), strict=True))


async def _addresses(store: MetadataStore) -> dict[str, str]:
    """Return the address of every registered bookie, writable or read-only."""
    addresses: dict[str, str] = {}
    for folder in (paths.BOOKIES_READONLY, paths.BOOKIES_AVAILABLE):
        for name in await store.children(folder):
            try:
                bookie = (await read(store, f"{folder}/{name}", BookieRegistration)).record
            except NoNodeError:
                continue  # deleted since it was listed
            addresses[bookie.bookie_id] = bookie.address
    return addresses


def _metadata_url(namespace: str) -> str:
    try:
        address = _ask(discovery.actor(discovery.METADATA, namespace).address)
        return f"embedded://{address}"
    except ClusterNotFoundError:
        state = discovery.noted_state(namespace)  # the store is not an actor of the cluster
        if state is None or not state.metadata_url:
            raise
        return state.metadata_url


def _ask(method: Any) -> Any:
    import ray

    return ray.get(method.remote(), timeout=discovery.CALL_TIMEOUT_SECONDS)


def _run(coroutine: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine to its end, also where an event loop already runs, as in a notebook."""
    with ThreadPoolExecutor(1, thread_name_prefix="planning") as thread:
        return thread.submit(asyncio.run, coroutine).result()
