"""The etcd backend under faults: killed servers, moved leaders, cut and stalled networks, compaction, limits."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError, ValueTooLargeError
from heliograph.metadata.session.clock import now
from heliograph.metadata.store import (
    VALUE_BYTES_MAX,
    Create,
    Delete,
    EventType,
    MetadataStore,
    SessionState,
    Set,
    WatchEvent,
)
from tests.cluster.metadata.etcd_world import Shadowed, States, cut_off, etcd, fresh_prefix, session, three_members
from tests.contracts.metadata.etcd_server import EtcdServer
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

CONNECTED, SUSPENDED, LOST = SessionState.CONNECTED, SessionState.SUSPENDED, SessionState.LOST
CREATED, DELETED, CHANGED, CHILD = EventType.CREATED, EventType.DELETED, EventType.CHANGED, EventType.CHILD
TIMEOUT_MS = 3_000
LONG_TIMEOUT_MS = 30_000  # survives whatever a busy machine does to it
ELECTIONS_TIMEOUT_MS = 180_000  # survives several of them on such a machine


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with etcd(tmp_path_factory.mktemp("etcd")) as started:
        yield started


class Writers:
    """Endless writes, and their answers, with which the store is compared."""

    def __init__(self, store: MetadataStore, told: Shadowed) -> None:
        self._store = store
        self._told = told
        self._task = asyncio.create_task(self._write())
        self.made: set[str] = set()
        self.unknown = 0
        self.counter = 0  # what /counter must hold

    async def stop(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])
        self.unknown += 1  # the call that was cancelled

    async def wait_for(self, count: int) -> None:
        """Wait until that many more nodes were created."""
        wanted = len(self.made) + count
        await until(lambda: len(self.made) >= wanted or self._task.done())
        assert not self._task.done(), self._task.exception()

    async def check(self, observer: MetadataStore) -> None:
        """Check that no node is lost or unasked for, that each set happened once, and that all changes were told."""
        await observer.sync()
        names = {f"/work/{name}" for name in await observer.children("/work")}
        assert self.made <= names
        assert len(names - self.made) <= self.unknown
        assert self._told.paths == {"/work", *names}
        _, stat = await observer.get("/counter")
        assert self.counter <= stat.version <= self.counter + self.unknown
        parent = await observer.exists("/work")
        assert parent is not None
        assert parent.num_children == len(names) == parent.cversion

    async def _write(self) -> None:
        while True:
            try:
                made = await self._store.create("/work/n-", sequence=True)
                assert made not in self.made
                self.made.add(made)
                await self._store.set("/counter", b"")
                self.counter += 1
            except ConnectionLossError:
                self.unknown += 1


@asynccontextmanager
async def writing(store: MetadataStore, observer: MetadataStore) -> AsyncIterator[Writers]:
    await store.create("/work")
    await store.create("/counter")
    told = Shadowed({"/work"})
    await observer.watch("/work", told)
    writers = Writers(store, told)
    try:
        yield writers
    finally:
        await writers.stop()


async def test_etcd_is_killed_and_restarted(tmp_path: Path) -> None:
    with etcd(tmp_path) as server:
        url = f"etcd://{server.address}/p"
        async with (
            session(url) as store,
            session(url) as observer,
            writing(store, observer) as writers,
        ):
            states = States(store)
            await store.create("/e", ephemeral=True)
            for _ in range(3):
                await writers.wait_for(20)
                server.kill()
                await until(lambda: store.state is SUSPENDED)
                await asyncio.to_thread(server.start)
                await until(lambda: store.state is CONNECTED)
                await writers.wait_for(5)
            await writers.stop()
            assert await observer.exists("/e") is not None
            assert LOST not in states.seen
            await writers.check(observer)


async def test_a_write_happens_once_however_often_the_network_breaks(server: EtcdServer) -> None:
    prefix, dice = fresh_prefix(), random.Random(7)
    async with (
        session(f"etcd://{server.address}{prefix}") as observer,
        cut_off(server, prefix, LONG_TIMEOUT_MS) as (proxy, store),
        writing(store, observer) as writers,
    ):
        for _ in range(25):
            await writers.wait_for(dice.randrange(1, 10))
            await asyncio.sleep(dice.uniform(0, 0.003))
            proxy.cut()
            await until(lambda: store.state is SUSPENDED)
            proxy.flow()
            await until(lambda: store.state is CONNECTED)
        await writers.stop()
        await writers.check(observer)


@pytest.mark.parametrize("stalls", [False, True])
async def test_a_short_cut_costs_neither_the_session_nor_an_event(server: EtcdServer, stalls: bool) -> None:
    prefix = fresh_prefix()
    async with (
        session(f"etcd://{server.address}{prefix}") as observer,
        cut_off(server, prefix, 3 * TIMEOUT_MS) as (proxy, store),
    ):
        states, told, gone = States(store), Shadowed(), list[WatchEvent]()
        await store.create("/e", ephemeral=True)
        await store.create("/a")
        await store.watch("/", told)
        await observer.exists("/e", gone.append)
        once: list[WatchEvent] = []
        await store.get("/a", once.append)
        await store.children("/a", once.append)
        proxy.stall() if stalls else proxy.cut()
        await observer.create("/a/b")
        await observer.set("/a", b"x")
        await observer.create("/a/b/c")
        await observer.multi([Delete("/a/b/c"), Create("/a/b/d")])
        await until(lambda: states.now is SUSPENDED)
        proxy.flow()
        await until(lambda: states.now is CONNECTED)
        await store.sync()
        assert [(event.type, event.path) for event in told.events] == [
            (CREATED, "/a/b"), (CHANGED, "/a"), (CREATED, "/a/b/c"), (DELETED, "/a/b/c"), (CREATED, "/a/b/d"),
        ]  # fmt: skip
        assert once == [WatchEvent(CHILD, "/a"), WatchEvent(CHANGED, "/a")]
        assert gone == []
        assert states.seen == [SUSPENDED, CONNECTED]


@pytest.mark.parametrize("stalls", [False, True])
async def test_a_long_cut_ends_the_session_before_its_ephemerals_and_them_soon(
    server: EtcdServer, stalls: bool
) -> None:
    prefix = fresh_prefix()
    async with (
        session(f"etcd://{server.address}{prefix}") as observer,
        cut_off(server, prefix, TIMEOUT_MS) as (proxy, store),
    ):
        order: list[object] = []
        gone_at: list[float] = []
        await store.create("/p")
        await store.create("/p/e", ephemeral=True)
        store.add_session_listener(order.append)

        def gone(event: WatchEvent) -> None:
            order.append(event)
            gone_at.append(now())

        await observer.exists("/p/e", gone)
        proxy.stall() if stalls else proxy.cut()
        clock = store._session.clock
        await until(lambda: store.is_in_doubt)
        assert not gone_at  # I13: the owner was in doubt first
        await until(lambda: gone_at)
        # etcd kept the node for the whole of its timeout, and its silence proves nothing.
        assert order == [SUSPENDED, WatchEvent(DELETED, "/p/e")]
        assert gone_at[0] - clock.confirmed_at >= TIMEOUT_MS / 1000
        proxy.flow()
        await until(lambda: store.state is LOST)
        with pytest.raises(SessionExpiredError):
            await store.create("/late")
        stat = await observer.exists("/p")
        assert stat is not None
        assert (stat.num_children, stat.cversion) == (0, 2)


async def test_calls_of_a_cut_off_session_fail_in_time_and_say_what_is_known(
    server: EtcdServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.metadata.backends.etcd.session.CALL_WAIT_SECONDS_MAX", 0.5)
    monkeypatch.setattr("heliograph.metadata.backends.etcd.watching.watch_feed.CALL_WAIT_SECONDS_MAX", 0.5)
    async with cut_off(server, fresh_prefix(), LONG_TIMEOUT_MS) as (proxy, store):
        await store.create("/a")
        proxy.cut()
        calls = [store.create("/b"), store.get("/a"), store.watch("/", lambda _: None), store.sync()]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            assert isinstance(outcome, ConnectionLossError), outcome
        proxy.flow()
        await until(lambda: store.state is CONNECTED)
        assert await store.exists("/a") is not None


async def test_a_write_whose_caller_has_left_costs_nobody_the_session(server: EtcdServer) -> None:
    async with session(f"etcd://{server.address}{fresh_prefix()}") as store:
        states = States(store)
        left = asyncio.create_task(store.create("/left"))
        await asyncio.sleep(0)  # it waits to be sent, alone
        left.cancel()
        await asyncio.wait([left])
        assert left.cancelled()
        await store.create("/stays")
        assert await store.children("/") == ["stays"]
        assert states.seen == []


async def test_a_busy_event_loop_keeps_its_session(server: EtcdServer) -> None:
    async with session(f"etcd://{server.address}{fresh_prefix()}", 5_000) as store:
        states = States(store)
        await store.create("/e", ephemeral=True)
        time.sleep(5.5)  # noqa: ASYNC251 - what a loop must not do, and may do anyway
        assert await store.exists("/e") is not None
        assert states.seen in ([], [SUSPENDED, CONNECTED])


async def test_another_endpoint_takes_over_and_a_moved_leader_harms_nothing(tmp_path: Path) -> None:
    with three_members(tmp_path) as members:
        hosts = ",".join(member.address for member in members)
        url = f"etcd://{hosts}/p"
        async with (
            # Without a leader etcd drops requests, and says so seven seconds later: that may happen often.
            session(url, ELECTIONS_TIMEOUT_MS) as store,
            session(url, ELECTIONS_TIMEOUT_MS) as observer,
            writing(store, observer) as writers,
        ):
            states = States(store)
            await store.create("/e", ephemeral=True)
            for _ in range(3):
                await writers.wait_for(10)
                await asyncio.to_thread(move_leader, members)
            for member in members:  # one after the other, the leader among them
                await writers.wait_for(10)
                member.kill()
                await writers.wait_for(10)
                await asyncio.to_thread(member.start)
            await writers.wait_for(10)
            await writers.stop()
            assert LOST not in states.seen
            assert await observer.exists("/e") is not None
            await writers.check(observer)


def move_leader(members: list[EtcdServer]) -> None:
    """Make another member the leader."""
    answers = {member.name: json.loads(member.ctl("endpoint", "status", "-w", "json")) for member in members}
    status = {name: answer[0]["Status"] for name, answer in answers.items()}
    leading = next(name for name, told in status.items() if told["leader"] == told["header"]["member_id"])
    to = next(told["header"]["member_id"] for name, told in status.items() if name != leading)
    leader = next(member for member in members if member.name == leading)
    leader.ctl("move-leader", f"{to:x}")


async def test_a_member_without_its_cluster_is_left(tmp_path: Path) -> None:
    with three_members(tmp_path) as members:
        url = "etcd://" + ",".join(member.address for member in members) + "/p"
        async with session(url, 20_000) as store:
            await store.create("/a")
            for member in members[1:]:
                member.pause()
            await until(lambda: store.state is SUSPENDED)  # the member that answers can decide nothing
            for member in members[1:]:
                member.resume()
            await until(lambda: store.state is CONNECTED)
            await store.create("/b")


async def test_history_that_was_compacted_away_is_made_up_for(server: EtcdServer) -> None:
    prefix = fresh_prefix()
    async with (
        session(f"etcd://{server.address}{prefix}") as observer,
        session(f"etcd://{server.address}{prefix}") as fleeting,
        cut_off(server, prefix, LONG_TIMEOUT_MS) as (proxy, store),
    ):
        for path in ("/a", "/a/gone", "/a/again", "/a/set", "/a/same", "/p", "/q"):
            await observer.create(path)
        await fleeting.create("/p/e", ephemeral=True)
        told = Shadowed({"/a/gone", "/a/again", "/a/set", "/a/same", "/a"})
        once: list[WatchEvent] = []
        await store.watch("/a", told)
        for path in ("/a/gone", "/a/again", "/a/set", "/a/same"):
            await store.get(path, once.append)
        await store.exists("/new", once.append)
        await store.exists("/never", once.append)
        for path in ("/a", "/p", "/q"):
            await store.children(path, once.append)
        proxy.cut()
        await observer.multi([Delete("/a/gone"), Delete("/a/again"), Set("/a/set", b"x")])
        await observer.create("/a/again")
        await observer.create("/a/more/deep", parents=True)
        await observer.create("/new")
        await fleeting.close()
        stat = await observer.set("/a/more", b"")
        await asyncio.to_thread(server.ctl, "compact", str(stat.mzxid))
        await until(lambda: store.state is SUSPENDED)
        proxy.flow()
        await until(lambda: store.state is CONNECTED)
        await store.sync()
        assert same(told.events, (DELETED, "/a/gone"), (DELETED, "/a/again"), (CREATED, "/a/again"),
                    (CHANGED, "/a/set"), (CREATED, "/a/more"), (CREATED, "/a/more/deep"))  # fmt: skip
        assert same(once, (DELETED, "/a/gone"), (DELETED, "/a/again"), (CHANGED, "/a/set"), (CREATED, "/new"),
                    (CHILD, "/a"), (CHILD, "/p"))  # fmt: skip
        await observer.set("/a/same", b"")
        await observer.create("/q/x")
        await store.sync()
        assert [WatchEvent(CHANGED, "/a/same"), WatchEvent(CHILD, "/q")] == once[-2:]
        assert told.events[-1] == WatchEvent(CHANGED, "/a/same")


async def test_what_is_too_much_for_etcd_is_refused_and_harms_nobody(server: EtcdServer) -> None:
    async with session(f"etcd://{server.address}{fresh_prefix()}") as store:
        many = [Create(f"/n{number}") for number in range(200)]
        large = [Create(f"/n{number}", bytes(VALUE_BYTES_MAX)) for number in range(9)]
        fine = [store.create(f"/fine-{number}") for number in range(3)]
        outcomes = await asyncio.gather(
            *fine[:1], store.multi(many), *fine[1:2], store.multi(large), *fine[2:], return_exceptions=True
        )
        assert [type(outcome) for outcome in outcomes] == [str, ValueTooLargeError, str, ValueTooLargeError, str]
        assert await store.children("/") == ["fine-0", "fine-1", "fine-2"]


async def test_events_with_large_values_come_in_pieces_and_whole(server: EtcdServer) -> None:
    prefix = fresh_prefix()
    async with (
        session(f"etcd://{server.address}{prefix}") as observer,
        cut_off(server, prefix, LONG_TIMEOUT_MS) as (proxy, store),
    ):
        told = Shadowed()
        await store.watch("/", told)
        proxy.cut()
        for first in range(0, 12, 4):
            await observer.multi([Create(f"/n{first + n:02}", bytes(VALUE_BYTES_MAX)) for n in range(4)])
        await until(lambda: store.state is SUSPENDED)
        proxy.flow()
        await until(lambda: store.state is CONNECTED)
        await store.sync()
        assert told.events == [WatchEvent(CREATED, f"/n{number:02}") for number in range(12)]


def same(told: list[WatchEvent], *expected: tuple[EventType, str]) -> bool:
    """Return whether exactly these events were told, siblings in any order.

    The watcher checks that parents come first.
    """
    return sorted(map(repr, told)) == sorted(repr(WatchEvent(*event)) for event in expected)
