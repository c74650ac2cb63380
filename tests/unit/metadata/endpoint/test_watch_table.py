"""The events that a client of the endpoint gets: each once, in the right order with the answers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heliograph.metadata.endpoint.limits import EVENTS_HELD_MAX, STANDING_WATCHES_MAX
from heliograph.metadata.endpoint.session.watch_table import EndpointWatchTable
from heliograph.metadata.endpoint.wire.codes import AddWatchMode, WatcherType, WireError
from heliograph.metadata.errors import NoNodeError
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import EventType, Watch, Watcher, WatchEvent

CREATED, DELETED, CHANGED, CHILD = EventType.CREATED, EventType.DELETED, EventType.CHANGED, EventType.CHILD
DATA = WatchKind.DATA


class _Standing:
    def __init__(self, path: str, watcher: Watcher) -> None:
        self.path, self.watcher, self.cancelled = path, watcher, False

    def cancel(self) -> None:
        self.cancelled = True


class World:
    """A watch table, the watches in the store, and what the client gets: events, and answers by name."""

    def __init__(self) -> None:
        self.watches = EndpointWatchTable()
        self.sent: list[object] = []
        self.shots: list[Watcher] = []
        self.streams: list[_Standing] = []
        self.attach()

    def attach(self) -> None:
        self.watches.attach(
            lambda event: self.sent.append((event.type, event.path)), lambda: self.sent.append("cut off")
        )

    async def read(
        self, path: str, answer: str, kind: WatchKind = DATA, during: Callable[[], None] | None = None
    ) -> None:
        """Read with a watch; ``during`` runs after the store has read and before its answer arrives."""

        async def store_read(watcher: Watcher | None) -> None:
            if watcher is not None:
                self.shots.append(watcher)
            nonlocal during
            happening, during = during, None
            if happening is not None:
                happening()

        await self.watches.read(kind, path, store_read)
        self.answer(answer)

    async def stand(self, mode: AddWatchMode, path: str, answer: str, during: Callable[[], None] | None = None) -> None:
        async def watch(path: str, watcher: Watcher) -> Watch:
            self.streams.append(_Standing(path, watcher))
            if during is not None:
                during()
            return self.streams[-1]

        await self.watches.add_standing(mode, path, watch)
        self.answer(answer)

    def answer(self, name: str) -> None:
        self.sent.append(name)
        self.watches.answered()

    def fire(self, number: int, type: EventType, path: str) -> None:
        self.shots[number](WatchEvent(type, path))

    def stream(self, number: int, type: EventType, path: str) -> None:
        self.streams[number].watcher(WatchEvent(type, path))


@pytest.fixture
async def world() -> World:
    return World()


async def test_an_event_of_a_watch_waits_for_the_answer_that_sets_it_and_so_do_those_behind_it(world: World) -> None:
    await world.read("/old", "old")

    def meanwhile() -> None:
        world.fire(0, CHANGED, "/old")
        world.fire(1, CHANGED, "/new")

    await world.read("/new", "new", during=meanwhile)
    assert world.sent == ["old", (CHANGED, "/old"), "new", (CHANGED, "/new")]


async def test_events_keep_their_order_when_the_first_has_to_wait(world: World) -> None:
    await world.read("/old", "old")

    def meanwhile() -> None:
        world.fire(1, CHANGED, "/new")
        world.fire(0, CHANGED, "/old")

    await world.read("/new", "new", during=meanwhile)
    assert world.sent == ["old", "new", (CHANGED, "/new"), (CHANGED, "/old")]


async def test_a_read_that_finds_its_watch_armed_reads_again_when_that_fires_meanwhile(world: World) -> None:
    await world.read("/a", "one")
    await world.read("/a", "two", during=lambda: world.fire(0, CHANGED, "/a"))
    assert len(world.shots) == 2
    assert world.sent == ["one", (CHANGED, "/a"), "two"]
    world.fire(1, CHANGED, "/a")
    assert world.sent[-1] == (CHANGED, "/a")
    assert len(world.sent) == 4


async def test_a_watch_is_set_once_in_the_store_and_told_once(world: World) -> None:
    await world.read("/a", "one")
    await world.read("/a", "two")
    assert len(world.shots) == 1
    world.fire(0, DELETED, "/a")
    world.fire(0, DELETED, "/a")
    assert world.sent == ["one", "two", (DELETED, "/a")]


async def test_a_deletion_is_one_event_for_a_data_and_a_child_watch(world: World) -> None:
    await world.read("/a", "data")
    await world.read("/a", "children", WatchKind.CHILD)
    world.fire(0, DELETED, "/a")
    world.fire(1, DELETED, "/a")
    assert world.sent == ["data", "children", (DELETED, "/a")]


async def test_a_read_that_fails_leaves_no_watch(world: World) -> None:
    async def fail(watcher: Watcher | None) -> None:
        assert watcher is not None
        world.shots.append(watcher)
        raise NoNodeError

    with pytest.raises(NoNodeError):
        await world.watches.read(DATA, "/a", fail)
    world.answer("no node")
    world.fire(0, CREATED, "/a")
    assert world.sent == ["no node"]
    assert not world.watches.has("/a", WatcherType.ANY)


async def test_a_connection_that_ends_takes_what_was_wanted_but_not_what_is_armed(world: World) -> None:
    await world.read("/a", "one")
    await world.stand(AddWatchMode.PERSISTENT, "/b", "two")
    world.watches.detach()
    assert world.streams[0].cancelled
    world.attach()
    assert not world.watches.has("/a", WatcherType.ANY)
    await world.read("/a", "three")
    assert len(world.shots) == 1
    world.fire(0, CHANGED, "/a")
    assert world.sent == ["one", "two", "three", (CHANGED, "/a")]


async def test_where_standing_watches_cover_a_path_one_of_them_speaks_for_all(world: World) -> None:
    await world.stand(AddWatchMode.PERSISTENT_RECURSIVE, "/", "all")
    await world.stand(AddWatchMode.PERSISTENT, "/p", "p")
    await world.read("/p", "data")
    await world.read("/p", "children", WatchKind.CHILD)
    del world.sent[:]
    for number in (0, 1):
        world.stream(number, CREATED, "/p/x")
    world.fire(1, CHILD, "/p")
    assert world.sent == [(CREATED, "/p/x"), (CHILD, "/p")]
    del world.sent[:]
    world.fire(0, DELETED, "/p")
    for number in (1, 0):
        world.stream(number, DELETED, "/p")
    assert world.sent == [(DELETED, "/p")]


async def test_a_persistent_watch_tells_of_its_node_and_children_and_of_nothing_deeper(world: World) -> None:
    await world.stand(AddWatchMode.PERSISTENT, "/p", "p")
    for type, path in ((CREATED, "/p"), (CREATED, "/p/x"), (CHANGED, "/p/x"), (CREATED, "/p/x/y"), (CHANGED, "/p"),
                       (DELETED, "/p/x"), (DELETED, "/p")):  # fmt: skip
        world.stream(0, type, path)
    assert world.sent == [
        "p", (CREATED, "/p"), (CHILD, "/p"), (CHANGED, "/p"), (CHILD, "/p"), (DELETED, "/p"),
    ]  # fmt: skip


async def test_a_standing_watch_is_told_of_nothing_before_its_answer(world: World) -> None:
    await world.stand(AddWatchMode.PERSISTENT_RECURSIVE, "/a", "a", lambda: world.stream(0, CREATED, "/a/x"))
    assert world.sent == ["a", (CREATED, "/a/x")]


@pytest.mark.parametrize("mode", list(AddWatchMode))
async def test_a_persistent_watch_is_removed_by_its_own_kind_or_any(world: World, mode: AddWatchMode) -> None:
    kinds = [WatcherType.PERSISTENT, WatcherType.PERSISTENT_RECURSIVE]
    own, foreign = kinds[mode], kinds[1 - mode]
    await world.stand(mode, "/p", "p")
    for kind in (WatcherType.DATA, WatcherType.CHILDREN, foreign):
        assert not world.watches.has("/p", kind)
        assert not world.watches.remove("/p", kind)
    assert world.watches.has("/p", own)
    assert world.watches.has("/p", WatcherType.ANY)
    assert world.watches.remove("/p", own)
    assert world.streams[0].cancelled
    assert not world.watches.remove("/p", WatcherType.ANY)
    assert len(world.watches) == 0


async def test_standing_watches_are_bounded(world: World) -> None:
    for number in range(STANDING_WATCHES_MAX):
        await world.stand(AddWatchMode.PERSISTENT, f"/{number}", "")
    with pytest.raises(WireError):
        await world.stand(AddWatchMode.PERSISTENT, "/more", "")


async def test_events_that_wait_are_bounded(world: World) -> None:
    def meanwhile() -> None:
        for number in range(EVENTS_HELD_MAX + 1):
            world.stream(0, CREATED, f"/a/{number}")

    await world.stand(AddWatchMode.PERSISTENT_RECURSIVE, "/a", "a", meanwhile)
    assert world.sent[:2] == ["cut off", "a"]
    assert len(world.sent) == 2 + EVENTS_HELD_MAX
