"""What the auditor reads of metadata: by what changes, and not by what there is."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from heliograph.actors.auditor.placements import following
from heliograph.actors.auditor.placements.following import LedgerFollower
from heliograph.actors.auditor.placements.index import LedgerPlacement, placement_of
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.codec import encode
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import LedgerState
from heliograph.metadata.recipes.cluster_init import initialise
from tests.unit.auditor.world import ledger
from tests.waits import until


class CountingStore(MemoryStore):
    """A store that counts its reads, and can fail at one of them."""

    def __init__(self, server: MemoryServer) -> None:
        super().__init__(server, server.open_session().session_id)
        server._stores[self.session_id] = self
        self.calls: Counter[str] = Counter()
        self.failing: set[str] = set()

    async def get(self, path: str, watcher: object = None):  # type: ignore[no-untyped-def]
        self.calls["get"] += 1
        if path in self.failing:
            raise ConnectionLossError("not now")
        return await super().get(path)

    async def children_from(self, path: str, start: str = "", limit: int = 1_000) -> list[str]:
        self.calls["pages"] += 1
        return await super().children_from(path, start, limit)

    async def children(self, path: str, watcher: object = None) -> list[str]:
        self.calls["children"] += 1
        return await super().children(path)


class Scene:
    """A store with ledgers, and a follower whose changes are noted."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.store = CountingStore(self.server)
        self.writer = self.server.open_session()
        self.seen: dict[int, LedgerPlacement] = {}
        self.follower = LedgerFollower(self.store, 16, self.note)

    def note(self, before: LedgerPlacement | None, now: LedgerPlacement | None) -> None:
        known = before or now
        assert known is not None, "one of them is there"
        assert self.seen.get(known.ledger_id) == before
        self.seen.pop(known.ledger_id, None)
        if now is not None:
            self.seen[now.ledger_id] = now

    async def make(self, *ledger_ids: int, bookies: str = "b1 b2 b3") -> None:
        for ledger_id in ledger_ids:
            await self.writer.create(paths.ledger(ledger_id), encode(ledger(ledger_id, bookies)), parents=True)

    async def catch_up(self, records_max: int | None = None, tour_records: int = 0) -> Counter[str]:
        self.store.calls.clear()
        await self.follower.catch_up(records_max, tour_records=tour_records)
        return self.store.calls

    @property
    def ids(self) -> list[int]:
        found = self.follower.index.ids_from(0, 1 << 60)
        assert sorted(self.seen) == found
        return found


@pytest.fixture
async def scene() -> Scene:
    made = Scene()
    await initialise(made.writer)
    return made


@pytest.mark.parametrize("ledgers_of_directory", [2_500, 625], ids=["full", "sparse"])
async def test_a_tour_pauses_once_for_as_many_ledgers_as_a_page_has(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, ledgers_of_directory: int
) -> None:
    """Each pause ends with a wait for a core, which is most of the time of a tour on a busy machine."""
    pauses, sleep = list[float](), asyncio.sleep

    async def counted(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    for number in range(0, 2_500, ledgers_of_directory):
        first = number * paths.LEDGERS_PER_DIRECTORY
        await scene.make(*range(first, first + ledgers_of_directory))
    monkeypatch.setattr(asyncio, "sleep", counted)
    await scene.catch_up()
    assert [seconds for seconds in pauses if seconds] == [following.TOUR_PAUSE_SECONDS] * 2


@pytest.mark.parametrize("ledgers", [1_000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_after_a_tour_only_what_changed_is_read(
    scene: Scene, ledgers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "TOUR_PAUSE_SECONDS", 0)
    await scene.make(*range(0, 2 * ledgers, 2))
    calls = await scene.catch_up()
    assert calls["get"] == ledgers
    assert scene.follower.is_complete
    assert await scene.catch_up() == {}, "nothing has changed"
    await scene.make(1)
    await scene.writer.set(paths.ledger(2), encode(ledger(2, "b7 b8 b9")))
    await scene.writer.delete(paths.ledger(4))
    assert await scene.catch_up() == {"get": 2}
    assert scene.ids[:4] == [0, 1, 2, 6]
    assert scene.follower.index.get(2) == placement_of(ledger(2, "b7 b8 b9"))
    assert (await scene.catch_up(tour_records=1_000))["get"] == 1_000, "the slow tour"


async def test_a_tour_of_an_empty_store_and_of_ids_far_apart(scene: Scene) -> None:
    await scene.catch_up()
    assert scene.follower.is_complete
    scene.server.suspend_session(scene.store.session_id)
    ids = [0, 9_999, 10_000, 123_456_789, 98_765_432_101]
    await scene.make(*ids)
    scene.server.resume_session(scene.store.session_id)
    assert not scene.follower.is_complete
    await scene.catch_up()
    assert scene.ids == ids


async def test_what_was_missed_while_the_connection_was_lost_is_found_by_a_tour(scene: Scene) -> None:
    await scene.make(1, 2, 30_000, 30_001, 5_000_000, 10**9)
    await scene.catch_up()
    scene.server.suspend_session(scene.store.session_id)
    await scene.writer.delete(paths.ledger(2))
    await scene.writer.delete(paths.ledger(5_000_000))
    await scene.writer.delete(paths.ledger(10**9))
    await scene.writer.set(paths.ledger(30_000), encode(ledger(30_000, "b1 b2 b9")))
    await scene.make(3, 70_000)
    scene.server.resume_session(scene.store.session_id)
    await scene.catch_up(2)
    await scene.catch_up()
    assert scene.follower.is_complete
    assert scene.ids == [1, 3, 30_000, 30_001, 70_000]
    assert "b9" in scene.follower.index.named


async def test_a_tour_goes_on_where_it_ended_and_begins_again_if_something_was_missed(scene: Scene) -> None:
    await scene.make(*range(0, 50_000, 10_000))
    assert (await scene.catch_up(2))["get"] == 2
    assert not scene.follower.is_complete
    assert scene.ids == [0, 10_000]
    assert (await scene.catch_up(2))["get"] == 2
    scene.server.suspend_session(scene.store.session_id)
    scene.server.resume_session(scene.store.session_id)
    assert (await scene.catch_up())["get"] == 5
    assert scene.follower.is_complete


async def test_a_failed_read_loses_no_change(scene: Scene) -> None:
    await scene.make(1, 2)
    await scene.catch_up()
    await scene.make(3)
    await scene.writer.delete(paths.ledger(1))
    scene.store.failing = {paths.ledger(3)}
    with pytest.raises(ConnectionLossError):
        await scene.catch_up()
    scene.store.failing = set()
    await scene.catch_up()
    assert scene.ids == [2, 3]


async def test_more_changes_than_are_kept_make_a_tour(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "CHANGED_MAX", 10)
    await scene.catch_up()
    await scene.make(*range(25))
    assert not scene.follower.is_complete
    await scene.catch_up()
    assert scene.ids == list(range(25))


async def test_a_record_that_cannot_be_read_is_left_out_until_it_can(scene: Scene) -> None:
    await scene.make(1, 2)
    await scene.catch_up()
    await scene.writer.set(paths.ledger(1), b"from a newer version")
    await scene.catch_up()
    assert (scene.ids, scene.follower.unreadable) == ([2], {1})
    await scene.writer.set(paths.ledger(1), encode(ledger(1, "b1 b2 b3", LedgerState.OPEN)))
    await scene.catch_up()
    assert (scene.ids, scene.follower.unreadable) == ([1, 2], set())
    await scene.writer.set(paths.ledger(1), b"from a newer version")
    await scene.catch_up()
    await scene.writer.delete(paths.ledger(1))
    await scene.catch_up()
    assert (scene.ids, scene.follower.unreadable) == ([2], set())


async def test_changes_during_a_tour_are_kept(scene: Scene) -> None:
    await scene.make(*range(0, 400, 2))
    caught = asyncio.create_task(scene.catch_up())
    await until(lambda: scene.seen)
    await scene.make(1, 399)
    await scene.writer.delete(paths.ledger(0))
    await scene.writer.delete(paths.ledger(398))
    await caught
    await scene.catch_up()
    assert scene.ids == sorted({*range(2, 398, 2), 1, 399})


FOREIGN = ("L00", "L12345", "Lx", "L\u0661\u0662\u0663\u0664", "notes")  # names that no ledger has


async def test_nodes_of_others_among_the_ledgers_are_passed_over(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(following, "CHILDREN_PAGE_MAX", 2)
    pages = MemoryStore.children_from

    async def page(store: MemoryStore, path: str, start: str = "", limit: int = 2) -> list[str]:
        return await pages(store, path, start, min(limit, 2))

    monkeypatch.setattr(MemoryStore, "children_from", page)
    ids = [1, 2, 9_999, 10_000, 123_456_789]
    await scene.make(*ids)
    directory = paths.ledger_directory(0)
    for place in (directory, directory.rpartition("/")[0], paths.LEDGERS):
        for name in (*FOREIGN, "0000x", "99999", "7"):
            await scene.writer.create(f"{place}/{name}", b"x")
    await scene.writer.create(f"{paths.LEDGERS}/x/0000/L0007", b"x", parents=True)
    await scene.catch_up()
    assert scene.ids == ids
    assert "no ledger's node" in caplog.text
    for name in ("L8888x", "L777"):
        await scene.writer.create(f"{directory}/{name}", b"x")
        await scene.writer.delete(f"{directory}/{name}")
    await scene.make(3)
    await scene.catch_up(tour_records=100)
    assert scene.ids == [1, 2, 3, 9_999, 10_000, 123_456_789]
    assert scene.follower.is_complete
