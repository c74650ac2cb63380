"""What a search for deleted ledgers asks of the store, by the ledgers that are here and those that are not."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from heliograph.actors.bookie.store.ledgers import LedgerTable
from heliograph.actors.bookie.upkeep import deletions
from heliograph.actors.bookie.upkeep.deletions import READS_PER_BATCH, DeletionSearch
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.store import MetadataStore, Stat


class CountingStore(MemoryStore):
    """A store that counts its reads, and the names in pages of children."""

    def __init__(self) -> None:
        server = MemoryServer()
        super().__init__(server, server.open_session().session_id)
        self.calls: Counter[str] = Counter()
        self.tells_changes = True

    async def exists(self, path: str, watcher: object = None) -> Stat | None:
        self.calls["exists"] += path.startswith(paths.LEDGERS)
        found = await super().exists(path)
        if found is not None and not self.tells_changes:
            return Stat(found.czxid, found.mzxid, 0, 0, 0, 0, found.num_children)
        return found

    async def children_from(self, path: str, start: str = "", limit: int = 1_000) -> list[str]:
        names = await super().children_from(path, start, limit)
        self.calls["pages"] += 1
        self.calls["names"] += len(names)
        return names


async def _know(store: MetadataStore) -> None:
    pass


async def made(store: MemoryStore, ledger_ids: range | list[int]) -> None:
    for ledger_id in ledger_ids:
        await store.create(paths.ledger(ledger_id), parents=True)


def table_of(ledger_ids: range | list[int]) -> LedgerTable:
    table = LedgerTable()
    for ledger_id in ledger_ids:
        table.make(ledger_id)
    return table


async def found_in(search: DeletionSearch, store: MemoryStore) -> list[int]:
    return [ledger_id async for gone in search.round(store) for ledger_id in gone]


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the pauses, which take no time."""
    taken: list[float] = []
    sleep = asyncio.sleep

    async def note(seconds: float) -> None:
        if seconds:
            taken.append(seconds)
        await sleep(0)

    monkeypatch.setattr("heliograph.actors.bookie.upkeep.deletions.asyncio.sleep", note)
    return taken


@pytest.mark.parametrize("ledgers_elsewhere", [1_000, 9_000])
async def test_a_round_asks_for_no_ledger_of_others(ledgers_elsewhere: int) -> None:
    store = CountingStore()
    here = list(range(0, 10_000, 1_000))
    await made(store, here)
    await made(store, range(10_000, 10_000 + ledgers_elsewhere))
    search = DeletionSearch(table_of(here), 60_000, _know)
    assert await found_in(search, store) == []
    assert store.calls == {"exists": 1, "pages": 1, "names": 10}
    store.calls.clear()
    assert await found_in(search, store) == []
    assert store.calls == {"exists": 1}  # nothing has changed since


async def test_few_ledgers_of_a_full_directory_are_looked_up_one_by_one() -> None:
    store = CountingStore()
    await made(store, range(2_000))
    search = DeletionSearch(table_of([3, 5, 7_000]), 60_000, _know)
    assert await found_in(search, store) == [7_000]
    assert store.calls == {"exists": 4}


async def test_only_directories_that_changed_are_looked_at_again() -> None:
    store = CountingStore()
    here = [number * 10_000 + one for number in range(20) for one in range(3)]
    await made(store, here)
    table = table_of(here)
    search = DeletionSearch(table, 60_000, _know)
    assert await found_in(search, store) == []
    await store.delete(paths.ledger(50_001))
    store.calls.clear()
    assert await found_in(search, store) == [50_001]
    assert store.calls == {"exists": 20, "pages": 1, "names": 2}


async def test_a_ledger_that_comes_after_its_deletion_is_found() -> None:
    store = CountingStore()
    await made(store, [1, 2])
    table = table_of([1])
    search = DeletionSearch(table, 60_000, _know)
    assert await found_in(search, store) == []
    table.make(3)  # a late copy of a ledger that was deleted before the directory was looked at
    assert await found_in(search, store) == [3]


async def test_where_a_backend_tells_no_changes_each_ledger_is_looked_up() -> None:
    store = CountingStore()
    store.tells_changes = False
    await made(store, [1, 2, 3])
    table = table_of([1, 2, 3])
    search = DeletionSearch(table, 60_000, _know)
    for _ in range(2):
        assert await found_in(search, store) == []
    await store.delete(paths.ledger(2))
    assert await found_in(search, store) == [2]


async def test_a_round_is_bounded_and_the_next_one_goes_on(pauses: list[float]) -> None:
    store = CountingStore()
    here = [number * 10_000 for number in range(700)]
    await made(store, here)
    for number in range(100):
        await store.create(paths.bookie_cookie(f"b{number}"), parents=True)
    search = DeletionSearch(table_of(here), 10_000, _know)  # 30 reads a second for 10 seconds
    await store.delete(paths.ledger(here[-1]))
    found: list[int] = []
    rounds = 0
    while not found:
        before = search.reads
        found, rounds = await found_in(search, store), rounds + 1
        assert search.reads - before <= 300 + READS_PER_BATCH
    assert (found, rounds) == ([here[-1]], 5)  # two reads and a name for each
    assert set(pauses) == {READS_PER_BATCH / 30}
    assert sum(pauses) >= (search.reads - rounds * READS_PER_BATCH) / 30


async def test_many_deletions_are_confirmed_in_parts(pauses: list[float]) -> None:
    store = CountingStore()
    table = table_of(range(1_000))
    search = DeletionSearch(table, 6_000, _know)
    found: list[int] = []
    rounds = 0
    while len(table):
        rounds += 1
        async for gone in search.round(store):
            assert len(gone) <= deletions.SUSPECTS_AT_ONCE
            found += gone
            for ledger_id in gone:
                table.drop(ledger_id)
    assert found == list(range(1_000))
    assert rounds == 2


async def test_nodes_of_others_beside_ledgers_do_not_end_a_round(pauses: list[float]) -> None:
    store = CountingStore()
    await made(store, [1, 2])
    for name in ("L0000-note", "note"):
        await store.create(f"{paths.ledger_directory(0)}/{name}")
    assert await found_in(DeletionSearch(table_of([0, 1, 3]), 60_000, _know), store) == [0, 3]
