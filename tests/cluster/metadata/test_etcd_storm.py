"""Many sessions on etcd at once, their networks cut and stalled at random, history compacted under them.

Afterwards every watcher has the tree as it is, each compare-and-set that was answered happened once, and the numbers of
children are right.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from heliograph.metadata.backends.etcd.client import EtcdStore
from heliograph.metadata.errors import ConnectionLossError, MetadataError, SessionExpiredError
from heliograph.metadata.store import Create, Delete, MetadataStore, SessionState
from tests.cluster.metadata.etcd_world import Shadowed, cut_off, etcd, fresh_prefix, session
from tests.cluster.support.stalling_proxy import StallingProxy
from tests.contracts.metadata.etcd_server import EtcdServer
from tests.waits import until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SESSIONS = 3
CALLERS = 3  # of each session
BLOWS = 14
TIMEOUT_MS = 60_000
PATHS = ["/a", "/b", "/a/a", "/a/b", "/b/c", "/a/a/x", "/a/a/y"]


class Storm:
    """The state that all callers share."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.is_over = False
        self.wins = 0
        self.unknown = 0

    async def call(self, store: MetadataStore) -> None:
        """Make calls without end. Only a broken promise ends them."""
        dice = random.Random(self.dice.random())
        while not self.is_over:
            try:
                await dice.choice(CALLS)(self, store, dice)
            except SessionExpiredError:
                raise
            except ConnectionLossError:
                self.unknown += 1
            except MetadataError:
                pass  # nothing has changed, as the node was not as hoped

    async def strike(self, server: EtcdServer, observer: MetadataStore, proxies: list[StallingProxy]) -> None:
        for _ in range(BLOWS):
            await asyncio.sleep(self.dice.uniform(0, 0.4))
            proxy = self.dice.choice(proxies)
            proxy.cut() if self.dice.random() < 0.7 else proxy.stall()
            await asyncio.sleep(self.dice.uniform(0, 0.3))
            if self.dice.random() < 0.4:
                stat = await observer.set("/compacted", b"")
                await asyncio.to_thread(server.ctl, "compact", str(stat.mzxid))
            proxy.flow()
        self.is_over = True


async def create(storm: Storm, store: MetadataStore, dice: random.Random) -> None:
    await store.create(dice.choice(PATHS), ephemeral=dice.random() < 0.3)


async def change(storm: Storm, store: MetadataStore, dice: random.Random) -> None:
    await store.set(dice.choice(PATHS), b"x")


async def delete(storm: Storm, store: MetadataStore, dice: random.Random) -> None:
    await store.delete(dice.choice(PATHS))


async def several(storm: Storm, store: MetadataStore, dice: random.Random) -> None:
    await store.multi([Create("/b"), Create("/b/c")])
    await store.multi([Delete("/b/c"), Delete("/b"), Create("/b")])


async def count(storm: Storm, store: MetadataStore, dice: random.Random) -> None:
    _, stat = await store.get("/counter")
    await store.set("/counter", b"", stat.version)
    storm.wins += 1


async def number(storm: Storm, store: MetadataStore, dice: random.Random) -> None:
    await asyncio.gather(*(store.create("/a/n-", sequence=True) for _ in range(5)))


async def sweep(storm: Storm, store: MetadataStore, dice: random.Random) -> None:
    for name in await store.children("/a"):
        if name.startswith("n-"):
            await store.delete(f"/a/{name}")


CALLS: list[Callable[[Storm, MetadataStore, random.Random], Awaitable[None]]] = [
    create, create, change, delete, several, count, count, number, sweep,
]  # fmt: skip


async def tree_of(store: MetadataStore, path: str) -> set[str]:
    """Return every path at and below a node; check that each node counts its children right."""
    names = await store.children(path)
    stat = await store.exists(path)
    assert stat is not None
    assert stat.num_children == len(names)
    found = {path}
    for name in names:
        found |= await tree_of(store, f"{path.rstrip('/')}/{name}")
    return found


@pytest.mark.parametrize("seed", [1, 2])
async def test_a_storm_costs_nothing_that_was_promised(tmp_path: Path, seed: int) -> None:
    storm, prefix = Storm(seed), fresh_prefix()
    with etcd(tmp_path) as server:
        async with AsyncExitStack() as stack:
            observer = await stack.enter_async_context(session(f"etcd://{server.address}{prefix}", TIMEOUT_MS))
            for path in ("/counter", "/compacted"):
                await observer.create(path)
            proxies: list[StallingProxy] = []
            stores: list[EtcdStore] = []
            watchers = [Shadowed({"/", "/counter", "/compacted"}) for _ in range(SESSIONS)]
            for watcher in watchers:
                proxy, store = await stack.enter_async_context(cut_off(server, prefix, TIMEOUT_MS))
                proxies.append(proxy)
                stores.append(store)
                await store.watch("/", watcher)
            calls = [storm.call(store) for store in stores for _ in range(CALLERS)]
            await asyncio.gather(storm.strike(server, observer, proxies), *calls)
            for store in stores:
                await until(lambda store=store: store.state is SessionState.CONNECTED)  # type: ignore[misc]
                await store.sync()
            expected = await tree_of(observer, "/")
            assert [watcher.paths for watcher in watchers] == [expected] * SESSIONS
            _, stat = await observer.get("/counter")
            assert storm.wins <= stat.version <= storm.wins + storm.unknown
