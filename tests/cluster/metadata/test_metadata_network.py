"""Networks that are cut and stalled between a session and its store, for shorter and for longer than its timeout."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.errors import ConnectionLossError, SessionExpiredError
from heliograph.metadata.store import EventType, MetadataStore, SessionState, WatchEvent
from tests.cluster.support.stalling_proxy import StallingProxy
from tests.contracts.metadata.zookeeper_server import missing as missing_zookeeper
from tests.contracts.metadata.zookeeper_server import shared_server
from tests.waits import until

LONG_TIMEOUT_MS = 60_000  # survives whatever a busy machine does to it
SHORT_TIMEOUT_MS = 2_000
DEADLINE_SECONDS = 60


@dataclass(frozen=True)
class Served:
    """A store behind a proxy: ``near`` sees it directly, ``far`` through the proxy."""

    proxy: StallingProxy
    near: str
    far: str


@asynccontextmanager
async def embedded(directory: Path) -> AsyncIterator[tuple[str, str]]:
    server = EmbeddedServer(directory, "127.0.0.1", limits=ServerLimits(session_timeout_ms_min=100))
    await server.start()
    try:
        yield server.address, "embedded://{}"
    finally:
        await server.stop()


@asynccontextmanager
async def zookeeper(_: Path) -> AsyncIterator[tuple[str, str]]:
    yield shared_server().address, f"zk://{{}}/{uuid.uuid4().hex}"


STORES = {"embedded": embedded, "zookeeper": zookeeper}
Scenario = Callable[[Served], Awaitable[None]]
Run = Callable[[Scenario], None]


@pytest.fixture(
    params=[
        "embedded",
        pytest.param("zookeeper", marks=pytest.mark.skipif(bool(missing_zookeeper()), reason=missing_zookeeper())),
    ]
)
async def served(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Served]:
    async with STORES[request.param](tmp_path) as (address, url):
        host, port = address.split(":")
        proxy = StallingProxy(host, int(port))
        far = f"127.0.0.1:{await proxy.start()}"
        yield Served(proxy, url.format(address), url.format(far))
        await proxy.stop()


@asynccontextmanager
async def session(url: str, timeout_ms: int = LONG_TIMEOUT_MS) -> AsyncIterator[MetadataStore]:
    store = await connect_store(url, session_timeout_ms=timeout_ms)
    try:
        yield store
    finally:
        await store.close()


async def test_a_short_cut_keeps_the_session_and_tells_what_was_missed(served: Served) -> None:
    async with session(served.near) as writer, session(served.far) as store:
        states: list[object] = []
        store.add_session_listener(states.append)
        session_id = store.session_id
        await store.create("/e", ephemeral=True)
        events: dict[str, list[EventType]] = {}

        def noted(name: str) -> Callable[[WatchEvent], None]:
            told = events.setdefault(name, [])

            def note(event: WatchEvent) -> None:
                states.append(name)
                told.append(event.type)

            return note

        for name in ("changed", "deleted", "remade", "same", "parent", "quiet"):
            await writer.create(f"/{name}")
            await store.get(f"/{name}", noted(name))
        await store.exists("/new", noted("new"))
        await store.exists("/never", noted("never"))
        await store.children("/parent", noted("children"))
        await store.children("/quiet", noted("quiet children"))
        await store.children("/deleted", noted("deleted children"))
        standing = await store.watch("/", noted("all"))
        served.proxy.cut()
        await until(lambda: store.state is SessionState.SUSPENDED)
        await writer.set("/changed", b"")
        await writer.delete("/deleted")
        await writer.delete("/remade")
        await writer.create("/remade")
        await writer.create("/new")
        await writer.create("/parent/child")
        assert await writer.exists("/e") is not None
        served.proxy.flow()
        await until(lambda: store.state is SessionState.CONNECTED)
        await store.sync()
        assert events == {
            "changed": [EventType.CHANGED],
            "deleted": [EventType.DELETED],
            "remade": [EventType.DELETED],
            "same": [],
            "parent": [],
            "quiet": [],
            "new": [EventType.CREATED],
            "never": [],
            "children": [EventType.CHILD],
            "quiet children": [],
            "deleted children": [EventType.DELETED],
            "all": [],
        }
        # What was missed comes before the news that the connection is back.
        assert states[0] is SessionState.SUSPENDED
        assert states[-1] is SessionState.CONNECTED
        await writer.set("/same", b"")
        await writer.create("/never")
        await writer.create("/quiet/child")
        await store.sync()
        assert events["same"] == [EventType.CHANGED]
        assert events["never"] == [EventType.CREATED]
        assert events["quiet children"] == [EventType.CHILD]
        assert events["all"] == [EventType.CHANGED, EventType.CREATED, EventType.CREATED]
        standing.cancel()
        await writer.set("/same", b"")
        await store.sync()
        assert len(events["all"]) == 3
        stat = await store.exists("/e")
        assert stat is not None
        assert stat.ephemeral_owner == store.session_id == session_id


async def test_a_short_stall_loses_nothing(served: Served) -> None:
    async with session(served.near) as observer, session(served.far, LONG_TIMEOUT_MS) as store:
        gone: list[WatchEvent] = []
        await store.create("/e", ephemeral=True)
        await observer.exists("/e", gone.append)
        served.proxy.stall()
        slow = asyncio.create_task(store.create("/slow"))
        await asyncio.sleep(1)
        assert not slow.done()
        served.proxy.flow()
        assert await slow == "/slow"
        await observer.sync()
        assert gone == []
        assert store.state is SessionState.CONNECTED


async def test_an_owner_is_in_doubt_before_its_ephemerals_go_and_lost_when_the_store_says_so(served: Served) -> None:
    """I13: on a network that swallows everything, the owner is in doubt before another session can take over."""
    # A machine that is held up for as long as a short session lasts shows nothing; then a longer one will.
    for timeout_ms in (SHORT_TIMEOUT_MS, 4 * SHORT_TIMEOUT_MS, 16 * SHORT_TIMEOUT_MS):
        if await stalled_for_long(served, timeout_ms):
            return
    raise AssertionError("pings keep no session alive")


async def stalled_for_long(served: Served, timeout_ms: int) -> bool:
    """Return whether the session stood until the network was stalled; check what follows."""
    async with session(served.near) as observer, session(served.far, timeout_ms) as owner:
        path = f"/e{timeout_ms}"
        times: dict[str, float] = {}

        def note(what: str) -> None:
            times.setdefault(what, time.monotonic())

        owner.add_session_listener(lambda state: note(state.value))
        try:
            await owner.create(path, ephemeral=True)
            await observer.exists(path, lambda _: note("gone"))
            await asyncio.sleep(timeout_ms / 1000 * 1.2)  # pings keep it alive
            heard = time.monotonic()  # by the server, at the earliest
            await owner.sync()
        except (ConnectionLossError, SessionExpiredError):
            return False
        if times:
            return False
        served.proxy.stall()
        torn = asyncio.create_task(owner.create("/torn"))
        await until(lambda: owner.is_in_doubt)
        note("in doubt")
        await until(lambda: "gone" in times)
        assert times["in doubt"] < times["gone"]  # I13
        assert "lost" not in times
        assert times["gone"] - heard > timeout_ms / 1000  # never before the timeout
        with pytest.raises(ConnectionLossError):
            await torn
        assert owner.state is SessionState.SUSPENDED
        served.proxy.flow()
        await until(lambda: owner.state is SessionState.LOST)
        with pytest.raises(SessionExpiredError):
            await owner.create("/e2")
        return True


async def test_a_loop_that_was_held_up_finds_its_session_in_doubt_at_once(served: Served) -> None:
    async with session(served.near, SHORT_TIMEOUT_MS) as store:
        time.sleep(SHORT_TIMEOUT_MS / 1000 * 0.8)  # noqa: ASYNC251 - no timer can run meanwhile
        assert store.is_in_doubt  # I13
        assert store.silent_seconds > SHORT_TIMEOUT_MS / 1000 * 0.7
        assert store.state is SessionState.CONNECTED
