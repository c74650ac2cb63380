"""The embedded metadata server SIGKILLed a hundred times in the middle of writes: what it answered stays true."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest

from heliograph.metadata.errors import ConnectionLossError, NoNodeError
from heliograph.metadata.store import Check, Create, Delete, MetadataStore, SessionState, Set
from tests.cluster.metadata.embedded_servers import session
from tests.cluster.metadata.forked_metadata import ForkedMetadata
from tests.cluster.support.stalling_proxy import StallingProxy

KILLS = 100
WRITERS = 3
KEYS = 6  # nodes of each writer
LIFE_SECONDS_MAX = 0.04  # of a server, under load
TIMEOUT_MS = 20_000  # of the sessions that are to live on
SHORT_TIMEOUT_MS = 3_000  # of those that are left to expire
DEADLINE_SECONDS = 60
T = TypeVar("T")


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def patiently(call: Callable[[], Awaitable[T]]) -> T:
    """Repeat a read while the connection is lost."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            with contextlib.suppress(ConnectionLossError):
                return await call()


class Writer:
    """A writer of nodes of its own. It knows what each must hold, or what it may hold after a lost reply."""

    def __init__(self, store: MetadataStore, name: str) -> None:
        self.store = store
        self.name = name
        self.random = random.Random(name)
        self.known: dict[str, bytes | None] = {f"/{name}-{key}": None for key in range(KEYS)}
        self.is_stopping = False
        self.acknowledged = 0
        self.lost = 0

    async def run(self) -> None:
        number = 0
        while not self.is_stopping:
            number += 1
            await self.write(self.random.choice(list(self.known)), b"%d" % number)

    async def write(self, path: str, value: bytes) -> None:
        before = self.known[path]
        after: bytes | None = value
        try:
            if before is None:
                await self.store.create(path, value)
            elif self.random.random() < 0.3:
                after = None
                await self.store.multi([Check(path), Delete(path), Create(f"{path}-gone"), Delete(f"{path}-gone")])
            else:
                await self.store.multi([Set(path, b"never seen"), Set(path, value)])
            self.acknowledged += 1
        except ConnectionLossError:
            self.lost += 1
            found = await self.value(path)
            assert found in (before, after), f"{path} holds {found!r}, neither {before!r} nor {after!r}"
            after = found
        self.known[path] = after

    async def value(self, path: str) -> bytes | None:
        try:
            return (await patiently(lambda: self.store.get(path)))[0]
        except NoNodeError:
            return None


class Follower:
    """A reader that follows a node by one-shot watches only and must not miss a change for good."""

    def __init__(self, store: MetadataStore, path: str) -> None:
        self.store = store
        self.path = path
        self.seen: bytes | None = None
        self.events = 0

    async def run(self) -> None:
        while True:
            fired = asyncio.Event()
            await patiently(partial(self.store.exists, self.path, lambda _, fired=fired: fired.set()))  # type: ignore[misc]
            try:
                self.seen, _ = await patiently(partial(self.store.get, self.path))
            except NoNodeError:
                self.seen = None
            await fired.wait()
            self.events += 1


@pytest.mark.timeout(600)
def test_a_hundred_kills_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    async def scenario(server: ForkedMetadata) -> None:
        async with contextlib.AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(session(server.address, TIMEOUT_MS)) for _ in range(WRITERS + 1)]
            observer, ids = stores[-1], [store.session_id for store in stores]
            for number, store in enumerate(stores):
                await store.create(f"/e-{number}", b"%d" % number, ephemeral=True)
            writers = [Writer(store, f"w{number}") for number, store in enumerate(stores[:WRITERS])]
            followers = [Follower(observer, f"/w{number}-0") for number in range(WRITERS)]
            tasks = [asyncio.create_task(run()) for run in (*(w.run for w in writers), *(f.run for f in followers))]
            for _ in range(KILLS):
                done = sum(writer.acknowledged for writer in writers)

                async def moved(done: int = done) -> bool:
                    return sum(writer.acknowledged for writer in writers) > done

                await eventually(moved)
                await asyncio.sleep(random.uniform(0, LIFE_SECONDS_MAX))
                server.kill()
                server.start()
            for task in tasks:
                assert not task.done(), task.exception()
            for writer in writers:
                writer.is_stopping = True
            await asyncio.wait_for(asyncio.gather(*tasks[:WRITERS]), DEADLINE_SECONDS)
            expected = {path: value for writer in writers for path, value in writer.known.items() if value is not None}
            await patiently(observer.sync)
            for path, value in expected.items():
                assert (await observer.get(path))[0] == value
            ephemerals = {f"/e-{number}": number for number in range(len(stores))}
            found = {f"/{name}" for name in await observer.children("/")}
            assert found == set(expected) | set(ephemerals)  # nothing lost, no phantom, no ephemeral gone early
            for path, number in ephemerals.items():
                assert (await observer.get(path))[1].ephemeral_owner == ids[number]
            assert [store.session_id for store in stores] == ids
            assert all(store.state is SessionState.CONNECTED for store in stores)

            async def caught_up() -> bool:
                return all(follower.seen == expected.get(follower.path) for follower in followers)

            await eventually(caught_up)  # no missed watch
            assert all(follower.events for follower in followers)
            assert sum(writer.lost for writer in writers) >= KILLS // 4, "the kills hit writes under way"
            for task in tasks[WRITERS:]:
                task.cancel()
            await asyncio.wait(tasks[WRITERS:])

    with ForkedMetadata(tmp_path / "m") as server:
        asyncio.run(scenario(server))


def test_an_ephemeral_goes_with_its_session_although_the_server_was_killed(tmp_path: Path) -> None:
    """The session gets its full timeout at each start of the server and expires after that, neither early nor never."""

    async def scenario(server: ForkedMetadata) -> None:
        host, port = server.address.split(":")
        proxy = StallingProxy(host, int(port))
        address = f"127.0.0.1:{await proxy.start()}"
        async with session(server.address, TIMEOUT_MS) as observer, session(address, SHORT_TIMEOUT_MS) as dying:
            await dying.create("/dying", ephemeral=True)
            proxy.cut()
            gone = asyncio.Event()
            await observer.exists("/dying", lambda _: gone.set())
            for _ in range(3):
                await asyncio.sleep(SHORT_TIMEOUT_MS / 1000 / 3)
                killed = time.monotonic()
                server.kill()
                server.start()
            await patiently(observer.sync)
            async with asyncio.timeout(DEADLINE_SECONDS):
                await gone.wait()
            assert time.monotonic() - killed > SHORT_TIMEOUT_MS / 1000  # not before its time
            assert await observer.exists("/dying") is None
        await proxy.stop()

    with ForkedMetadata(tmp_path / "m") as server:
        asyncio.run(scenario(server))
