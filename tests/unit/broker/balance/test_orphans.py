"""The orphan sweep: ledgers that no record names are fenced, checked again and deleted; all others stay (I14)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.balance.orphan_sweep import COMPACTION_GRACES, OrphanSweep, is_suspect, names
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.topic_chain import PIECE_LEDGERS
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.model import CursorRecord, LedgerInfo, LedgerMetadata, LedgerState, Segment, TopicRecord
from heliograph.metadata.operator_records import RestoredMark
from heliograph.metadata.recipes.restored_mark import accept
from heliograph.metadata.recipes.update_loop import read, update
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.world import World

TOPIC = TopicName.parse("orders")
NOW_MS = 10_000_000
LEDGER = LedgerMetadata(
    500,
    1,
    1,
    1,
    (Segment(0, ("b",)),),
    LedgerState.CLOSED,
    created_ms=1,
    properties={"use": "topic", "topic": str(TOPIC)},
)


class Ledgers:
    """Deletes records as the driver does, and notes which ledgers were fenced before."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.recovered: list[int] = []
        self.on_recover: Callable[[], Awaitable[None]] | None = None

    async def recover(self, ledger_id: int) -> None:
        self.recovered.append(ledger_id)
        if self.on_recover is not None:
            await self.on_recover()

    async def delete(self, ledger_id: int) -> None:
        await self._store.delete(paths.ledger(ledger_id))


async def sweep(store: MemoryStore, ledgers: Ledgers) -> int:
    return await OrphanSweep(store, ledgers, grace_seconds=60.0).sweep()  # type: ignore[arg-type]


async def keep(store: MemoryStore, *ledgers: LedgerMetadata) -> None:
    for ledger in ledgers:
        await store.create(paths.ledger(ledger.ledger_id), codec.encode(ledger), parents=True)


async def remaining(store: MemoryStore, *ids: int) -> list[int]:
    return [ledger_id for ledger_id in ids if await store.exists(paths.ledger(ledger_id)) is not None]


async def test_only_what_no_record_of_its_topic_names_is_deleted() -> None:
    store = await World().session()
    catalog = Catalog(store)
    await catalog.create(TOPIC)
    path = catalog.topic_path(TOPIC)
    await update(
        store,
        path,
        TopicRecord,
        lambda record: replace(record, ledgers=(LedgerInfo(501),), properties={"deletable": "502,503"}),
    )
    await store.create(
        paths.cursor(path, "s"), codec.encode(CursorRecord("s", (501, 3), 504, {"heliograph.delayed": "505"}))
    )
    kept = [replace(LEDGER, ledger_id=number) for number in range(501, 506)]
    others = [
        replace(LEDGER, ledger_id=600, properties={}),
        replace(LEDGER, ledger_id=601, properties={"use": "a user's own", "topic": str(TOPIC)}),
        replace(LEDGER, ledger_id=602, properties={"use": "topic"}),
        replace(LEDGER, ledger_id=603, created_ms=0),
        replace(LEDGER, ledger_id=604, created_ms=1 << 50),  # young
    ]
    gone = [
        LEDGER,
        replace(LEDGER, ledger_id=700, properties={"use": "cursor", "topic": str(TOPIC), "subscription": "s"}),
        replace(LEDGER, ledger_id=701, properties={"use": "topic", "topic": "persistent://public/default/never"}),
        replace(LEDGER, ledger_id=702, state=LedgerState.OPEN),
    ]
    await keep(store, *kept, *others, *gone)
    ledgers = Ledgers(store)
    assert await sweep(store, ledgers) == len(gone)
    ids = [ledger.ledger_id for ledger in (*kept, *others)]
    assert await remaining(store, *ids, 500, 700, 701, 702) == ids  # I14
    assert ledgers.recovered == [702]  # it could still have had a writer
    assert await sweep(store, ledgers) == 0


async def test_nothing_is_deleted_while_a_restored_backup_is_not_accepted() -> None:  # I14
    store = await World().session()
    await keep(store, LEDGER)
    await store.create(paths.RESTORED, codec.encode(RestoredMark(1, 2)), parents=True)
    ledgers = Ledgers(store)
    assert await sweep(store, ledgers) == 0
    assert await remaining(store, 500) == [500]
    assert await accept(store)
    assert await sweep(store, ledgers) == 1


async def test_a_ledger_named_at_the_last_moment_stays() -> None:
    store = await World().session()
    catalog = Catalog(store)
    await catalog.create(TOPIC)
    await keep(store, replace(LEDGER, state=LedgerState.OPEN))
    ledgers = Ledgers(store)

    async def name_it() -> None:
        await update(
            store,
            catalog.topic_path(TOPIC),
            TopicRecord,
            lambda record: replace(record, ledgers=(LedgerInfo(LEDGER.ledger_id),)),
        )

    ledgers.on_recover = name_it
    assert await sweep(store, ledgers) == 0  # I14
    assert await remaining(store, LEDGER.ledger_id) == [LEDGER.ledger_id]


@settings(deadline=None)
@given(st.lists(st.integers(0, 1 << 40), max_size=5), st.lists(st.integers(0, 1 << 40), max_size=5), st.integers(0, 9))
def test_every_number_in_a_record_is_seen(chain: list[int], listed: list[int], cursor: int) -> None:
    record = TopicRecord("t", tuple(map(LedgerInfo, chain)), properties={"deletable": ",".join(map(str, listed))})
    value = codec.encode(record)
    assert all(names(value, number) for number in (*chain, *listed))
    assert names(codec.encode(CursorRecord("s", (cursor, 0))), cursor)


@given(st.lists(st.integers(0, 99_999), max_size=30), st.integers(0, 99_999))
def test_a_part_of_a_number_is_no_number(chain: list[int], other: int) -> None:
    record = TopicRecord("t", tuple(LedgerInfo(one, 7, 7, 7) for one in chain))
    assert names(codec.encode(record), other) is (other in {*chain, 7, record.created_ms, record.next_piece})


async def test_a_sweep_over_a_long_chain_reads_each_piece_once() -> None:  # I14, I24
    store = await World().session()
    catalog = Catalog(store)
    await catalog.create(TOPIC)
    path = catalog.topic_path(TOPIC)
    owned = OwnedTopicRecord(store, path, await read(store, path, TopicRecord))
    count = 3 * PIECE_LEDGERS
    chain = tuple(LedgerInfo(1_000 + number, 1, 1, 1) for number in range(count))
    await owned.replace(replace(owned.record, ledgers=chain))
    assert len(owned.record.pieces) == 1
    orphan = replace(LEDGER, ledger_id=999)
    await keep(store, orphan, *(replace(LEDGER, ledger_id=info.ledger_id) for info in chain))
    ledgers, reads = Ledgers(store), Counter[str]()
    swept = OrphanSweep(store, ledgers, grace_seconds=60.0)  # type: ignore[arg-type]
    get = store.get

    async def counted(path: str, *rest: Any) -> Any:
        reads[path] += 1
        return await get(path, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "get", counted)
        patch.setattr("heliograph.actors.broker.balance.orphan_sweep.READS_PER_SECOND_MAX", 1e9)
        assert await swept.sweep() == 1
    assert await remaining(store, 999) == []
    assert reads[path] <= 3  # once for all that are named, and twice past the values kept, for the orphan
    assert reads[paths.chain_piece(path, 0)] <= 3


@pytest.mark.parametrize(("age_ms", "suspect"), [(59_999, False), (60_000, True), (NOW_MS, False)])
def test_age(age_ms: int, suspect: bool) -> None:
    assert is_suspect(replace(LEDGER, created_ms=NOW_MS - age_ms), NOW_MS, 60_000) is suspect


def test_a_compaction_may_take_long_before_its_ledger_is_named() -> None:
    compacting = replace(LEDGER, properties={**LEDGER.properties, "use": "compaction"})
    assert is_suspect(LEDGER, NOW_MS, NOW_MS - 1)
    assert not is_suspect(compacting, NOW_MS, NOW_MS - 1)
    assert is_suspect(compacting, COMPACTION_GRACES * NOW_MS, NOW_MS - 1)
