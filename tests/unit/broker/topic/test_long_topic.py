"""A topic with a million ledgers: what it reads and writes is counted, in nodes and bytes (I23, I24)."""

from __future__ import annotations

import asyncio
import functools
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from typing_extensions import override

from heliograph.actors.broker.admin.read_access import _checked_record
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.records import topic_chain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_chain import PIECE_LEDGERS, PIECE_REFS, fold, ledger_count
from heliograph.actors.broker.records.topic_record import DELETING
from heliograph.actors.broker.topic.components import delete_components
from heliograph.actors.broker.topic.stats import internal_stats, ledger_rows, storage_size
from heliograph.base.errors import HeliographError
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.chain_records import ChainPiece
from heliograph.metadata.errors import RecordTooLargeError
from heliograph.metadata.model import LedgerInfo, LedgerMetadata, LedgerState, Segment, TopicRecord
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import Create, Set
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.batch import encode_single, full_head
from heliograph.protocol.entry import encode_broker_metadata
from tests.unit.broker.fake_ledgers import FakeLedger
from tests.unit.broker.topic_world import topic_on
from tests.unit.broker.world import Outcomes, World, turns

pytestmark = pytest.mark.slow

LEDGERS = 1_000_000
ENTRIES = 3  # of each ledger
FIRST_ID = 10**9
RECORD_BYTES_MAX = 160_000


@functools.lru_cache(maxsize=1)
def long_chain(count: int = LEDGERS) -> tuple[TopicRecord, dict[int, bytes], list[int], list[int]]:
    """Return a record, its pieces by number, and what each fold wrote: the nodes, and the bytes of the record."""
    record, pieces = TopicRecord("persistent://public/default/orders"), dict[int, bytes]()
    nodes, sizes, number = list[int](), list[int](), 0
    while number < count:
        more = [info_of(number + one) for one in range(min(PIECE_LEDGERS, count - number))]
        number += len(more)
        record, created = fold(replace(record, ledgers=(*record.ledgers, *more)))
        pieces |= {one: codec.encode(piece) for one, piece in created.items()}
        nodes.append(len(created))
        sizes.append(len(codec.encode(record)) if len(nodes) % 10 == 0 or len(created) > 1 else 0)
    return record, pieces, nodes, sizes


def info_of(number: int) -> LedgerInfo:
    return LedgerInfo(FIRST_ID + number, ENTRIES, 1_000, 1_700_000_000_000 + number)


class AnyLedger(dict[int, FakeLedger]):
    """Ledgers that are made when they are asked for. The publish time of an entry is its index in the topic."""

    def __missing__(self, ledger_id: int) -> FakeLedger:
        times = range((ledger_id - FIRST_ID) * ENTRIES, (ledger_id - FIRST_ID + 1) * ENTRIES)
        closed_ms = info_of(ledger_id - FIRST_ID).closed_ms
        entries = [
            encode_broker_metadata(pb.BrokerEntryMetadata(broker_timestamp=closed_ms, latest_published=at + 1))
            + encode_single(_metadata(at), full_head(1, None, None, None), b"x")
            for at in times
        ]
        record = LedgerMetadata(
            ledger_id, 1, 1, 1, (Segment(0, ("b1",)),), LedgerState.CLOSED, ENTRIES - 1, 1_000, creator_token="t"
        )
        made = self[ledger_id] = FakeLedger(record, entries, ENTRIES - 1)
        return made


def _metadata(time_ms: int) -> pb.MessageMetadata:
    return pb.MessageMetadata(producer_name="p", sequence_id=time_ms, publish_time=time_ms + 1)


@dataclass
class Counts:
    reads: list[str] = field(default_factory=list)
    writes: list[int] = field(default_factory=list)  # bytes of each

    @property
    def pieces(self) -> int:
        return sum("@piece" in path for path in self.reads)

    def clear(self) -> None:
        self.reads.clear()
        self.writes.clear()


class CountingStore(MemoryStore):
    """A session that counts what passes it."""

    counts: Counts

    @override
    async def get(self, path: str, watcher: Any = None) -> Any:
        self.counts.reads.append(path)
        return await super().get(path, watcher)

    @override
    async def multi(self, operations: Any) -> Any:
        self.counts.writes.append(sum(len(one.value or b"") for one in operations if isinstance(one, Create | Set)))
        return await super().multi(operations)


async def counts_of_a_long_topic(world: World, store: MemoryStore, record: Any = None) -> Counts:
    """Make the world's topic a long one. Return what counts the calls to the store."""
    found, pieces, _, _ = record or long_chain()
    await Catalog(store).ensure(world.topic)
    path = Catalog.topic_path(world.topic)
    await store.set(path, codec.encode(found, has_limit=False))
    for number, value in pieces.items():
        await store.create(paths.chain_piece(path, number), value)
    world.ledgers.ledgers = AnyLedger()
    world.ledgers._ids = itertools.count(FIRST_ID + 2 * LEDGERS)
    world.policies = replace(world.policies, retention_seconds=0, retention_bytes=0)
    store.__class__ = CountingStore
    counts = store.counts = Counts()  # type: ignore[attr-defined]
    return counts


def test_the_size_of_a_record_does_not_grow_with_the_chain() -> None:
    record, pieces, nodes, sizes = long_chain()
    assert ledger_count(record) == LEDGERS
    assert max(nodes) <= 3
    assert max(map(len, pieces.values())) < 30_000 < codec.bytes_max(ChainPiece) // 2
    assert max(sizes) < RECORD_BYTES_MAX < codec.bytes_max(TopicRecord) // 2
    assert max(sizes[len(sizes) // 2 :]) < 1.3 * max(sizes[: len(sizes) // 2])
    assert len(record.pieces) < 5 * PIECE_REFS


async def test_opening_and_rollover_touch_one_record(world: World, store: MemoryStore) -> None:
    counts = await counts_of_a_long_topic(world, store)
    topic = await topic_on(world, store)
    ledger, outcomes = topic.ledger, Outcomes()
    assert counts.reads.count(topic.path) == 2  # to look whether it exists, and to open it
    assert counts.pieces == 0
    assert sum(counts.writes) < RECORD_BYTES_MAX
    assert (ledger.chain.first, ledger.chain.end) == (0, LEDGERS * ENTRIES)
    counts.clear()
    outcomes.publish(ledger, "a")
    await turns(lambda: len(outcomes.confirmed) == 1)
    await ledger.roll()
    assert counts.pieces == 0
    assert len(counts.writes) == 3
    assert sum(counts.writes) < 3 * RECORD_BYTES_MAX
    assert storage_size(topic) == LEDGERS * 1_000 + ledger.record.ledgers[-2].size
    counts.clear()
    assert topic.admission.quota.bytes_from(0) >= LEDGERS * 1_000
    assert len((await internal_stats(topic, world.ledgers))["ledgers"]) <= 1_000
    assert not counts.reads


async def test_a_subscription_loads_the_chain_from_its_mark_on(world: World, store: MemoryStore) -> None:
    counts = await counts_of_a_long_topic(world, store)
    topic = await topic_on(world, store)
    await topic.subscribe("late", start=None)
    assert counts.pieces == 0
    await topic.subscribe("middle", start=topic.ledger.chain.end - 50 * PIECE_LEDGERS * ENTRIES)
    assert counts.pieces <= 50
    counts.clear()
    again = await topic_on(world, store)  # the next owner
    assert counts.pieces <= 50
    assert again.subscriptions["middle"].cursor.mark == topic.subscriptions["middle"].cursor.mark
    again.subscriptions["middle"].acknowledge_cumulative(Position(FIRST_ID + 7, 1))  # before the mark: ignored
    assert again.subscriptions["middle"].cursor.mark == topic.subscriptions["middle"].cursor.mark


async def test_a_search_by_time_goes_over_pieces_first(world: World, store: MemoryStore) -> None:
    counts = await counts_of_a_long_topic(world, store)
    ledger = await world.open(store)
    reader = TopicReader(ledger.chain, TailCache(1 << 20), world.ledgers)
    wanted = ledger.chain.end - 100 * PIECE_LEDGERS * ENTRIES - 1_234
    counts.clear()
    assert await reader.index_at_time(wanted + 1) == wanted
    assert counts.pieces <= 110  # those from there on
    assert len(world.ledgers.ledgers) < 80, "the ledgers that were read"
    assert await reader.index_at_time(0) == 0
    assert await reader.index_at_time(1 << 50) == ledger.chain.end
    in_ledger = wanted // ENTRIES
    assert await reader.index_at_time(info_of(in_ledger).closed_ms, stored=True) == in_ledger * ENTRIES


async def test_trimming_is_in_batches_and_frees_the_record_between_them(world: World, store: MemoryStore) -> None:
    counts = await counts_of_a_long_topic(world, store)
    ledger = await world.open(store)
    gone = 10_000
    meanwhile: list[int] = []
    deleted = len(world.ledgers.deleted)

    async def other_change() -> None:
        while len(world.ledgers.deleted) - deleted < gone:
            await ledger.store_property("user.n", str(len(meanwhile)))
            meanwhile.append(len(world.ledgers.deleted) - deleted)
            await asyncio.sleep(0)

    counts.clear()
    change = asyncio.create_task(other_change())
    assert await ledger.trim(lambda: FIRST_ID + gone, 1 << 60) == gone
    await change
    assert len([n for n in meanwhile if 0 < n < gone]) >= gone // 500 - 1, "the record is free between two batches"
    assert max(counts.writes) < RECORD_BYTES_MAX
    assert counts.pieces <= gone // PIECE_LEDGERS + 4
    assert ledger.chain.first == gone * ENTRIES
    assert world.ledgers.deleted[-1] < FIRST_ID + gone
    assert ledger_count(ledger.record) == LEDGERS - gone
    await ledger.chain.load_index(ledger.chain.first)  # also of the piece that trimming took apart
    assert not ledger.chain.older
    assert len(ledger.chain.ledger_ids) == LEDGERS - gone
    assert [row["ledger_id"] async for row in _some(ledger_rows(ledger, -1), 2)] == [
        FIRST_ID + gone,
        FIRST_ID + gone + 1,
    ]


async def _some(rows: Any, count: int) -> Any:
    async for row in rows:
        yield row
        count -= 1
        if not count:
            return


async def test_access_to_ledgers_reads_the_pieces_that_name_them(world: World, store: MemoryStore) -> None:
    counts = await counts_of_a_long_topic(world, store)
    await _checked_record(store, world.topic, [FIRST_ID + 5, FIRST_ID + 777_777])
    assert counts.pieces <= 4
    with pytest.raises(HeliographError, match="none of"):
        await _checked_record(store, world.topic, [FIRST_ID - 1])


async def test_a_deleted_topic_leaves_no_piece_and_no_ledger(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_chain, "PIECE_LEDGERS", 3)
    monkeypatch.setattr(topic_chain, "PIECE_REFS", 2)
    monkeypatch.setattr(topic_chain, "TAIL_LEDGERS_MAX", 6)
    record, created = TopicRecord("t"), dict[int, Any]()
    for number in range(60):
        record, more = fold(replace(record, ledgers=(*record.ledgers, info_of(number))))
        created |= {one: codec.encode(piece) for one, piece in more.items()}

    await counts_of_a_long_topic(world, store, (record, created, [], []))
    topic = await topic_on(world, store)
    await topic.subscribe("s", start=0)
    await topic.ledger.store_property(DELETING, "true")
    await topic.ledger.close()
    last = topic.ledger.record.ledgers[-1].ledger_id
    await delete_components(topic.path, store, world.ledgers)
    assert {FIRST_ID + number for number in range(60)} | {last} <= set(world.ledgers.deleted)
    assert await store.exists(topic.path) is None


async def test_a_record_that_does_not_fit_is_refused_before_a_ledger_is_created(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS", 0.001)
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.failed_ledger.RETRY_MS_MAX", 0.001)
    monkeypatch.setattr("heliograph.actors.broker.managed_ledger.managed_ledger.RETRY_MS_MAX", 0.001)
    ledger, outcomes = await world.open(store), Outcomes()
    outcomes.publish(ledger, "a")
    await turns(lambda: len(outcomes.confirmed) == 1)
    limit = len(codec.encode(ledger.record)) + 40
    monkeypatch.setitem(codec.KIND_BYTES_MAX, TopicRecord, limit)
    before = dict(world.ledgers.ledgers)
    await ledger.roll()
    assert ledger.state is WriteState.WRITING
    outcomes.publish(ledger, "b")  # it goes on in the ledger that it has
    await turns(lambda: outcomes.texts == ["a", "b"])
    with pytest.raises(RecordTooLargeError, match="orders would have") as caught:
        await ledger.store_property("user.x", "y" * 500)
    assert caught.value.limit == f"{limit} bytes"
    await ledger.close()
    # The next owner cannot name a ledger of its own: it serves what there is.
    again, refused = await world.open(store), Outcomes()
    assert world.ledgers.ledgers.keys() == before.keys(), "no ledger is left over"
    assert world.contents(again) == ["a", "b"]
    refused.publish(again, "c")
    await turns(lambda: bool(refused.failed))
    assert isinstance(refused.failed[0][1], RecordTooLargeError)
    assert again.state is WriteState.RECOVERING
    monkeypatch.delitem(codec.KIND_BYTES_MAX, TopicRecord)
    await turns(lambda: again.state is WriteState.WRITING)
    refused.publish(again, "d")
    await turns(lambda: refused.texts == ["d"])


def test_a_large_record_is_named_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "_large", {})
    small, large = TopicRecord("t"), TopicRecord("t", tuple(map(info_of, range(4_000))))
    for record in (small, large, large):
        codec.encode(record, "/topics/t")
    assert len([one for one in caplog.records if "more than half" in one.message]) == 1
    (text,) = codec.large_records()
    assert text.startswith("/topics/t has ")
    codec.encode(small, "/topics/t")
    assert codec.large_records() == []
    with pytest.raises(RecordTooLargeError, match="/topics/t would have"):
        codec.encode(replace(large, ledgers=large.ledgers * 3), "/topics/t")


async def test_a_stored_record_above_its_limit_may_become_smaller(world: World, store: MemoryStore) -> None:
    ledger = await world.open(store)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(codec.KIND_BYTES_MAX, TopicRecord, 10)
        await ledger.change_record(lambda record: replace(record, created_ms=0))
        with pytest.raises(RecordTooLargeError):
            await ledger.store_property("user.x", "y" * 500)
    stored = (await read(store, Catalog.topic_path(world.topic), TopicRecord)).record
    assert stored.created_ms == 0
