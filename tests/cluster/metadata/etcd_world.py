"""Helpers of the fault tests of the etcd backend: servers, sessions behind a proxy, observers."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from heliograph.metadata.backends.etcd.client import EtcdStore
from heliograph.metadata.store import SessionState, WatchEvent
from tests.cluster.support.stalling_proxy import StallingProxy
from tests.contracts.metadata.etcd_server import EtcdServer, free_ports

DEADLINE_SECONDS = 60
# Quick elections, so that leases may be short: etcd grants no less than one and a half election timeouts.
QUICK = {"heartbeat-interval": "50", "election-timeout": "500"}


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run a scenario; an error in a callback fails it too."""

    async def whole() -> None:
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
        async with asyncio.timeout(5 * DEADLINE_SECONDS):
            await scenario
        assert not reported, reported

    asyncio.run(whole())


def fresh_prefix() -> str:
    """Return a prefix that no other test uses."""
    return f"/{uuid.uuid4().hex}"


@contextmanager
def etcd(directory: Path, **settings: Any) -> Iterator[EtcdServer]:
    """Run a cluster of one member."""
    server = EtcdServer(directory, **{"flags": QUICK, **settings})
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextmanager
def three_members(directory: Path) -> Iterator[list[EtcdServer]]:
    """Run a cluster of three members."""
    ports = free_ports(6)
    peers = ",".join(f"m{number}=http://127.0.0.1:{ports[number + 3]}" for number in range(3))
    members = [
        EtcdServer(directory / f"m{number}", f"m{number}", ports[number], ports[number + 3], peers, flags=QUICK)
        for number in range(3)
    ]
    try:
        for member in members:
            member.begin()
        for member in members:
            assert member.wait_serving(), "the members find each other"
        yield members
    finally:
        for member in members:
            member.kill()


@asynccontextmanager
async def session(url: str, timeout_ms: int = 30_000) -> AsyncIterator[EtcdStore]:
    """Open a session for the length of the block."""
    store = await EtcdStore.connect(url, session_timeout_ms=timeout_ms)
    try:
        yield store
    finally:
        await store.close()


@asynccontextmanager
async def cut_off(server: EtcdServer, prefix: str, timeout_ms: int) -> AsyncIterator[tuple[StallingProxy, EtcdStore]]:
    """Open a session behind a proxy; yield the proxy and the session."""
    async with AsyncExitStack() as stack:
        proxy = StallingProxy("127.0.0.1", server.client_port)
        port = await proxy.start()
        stack.push_async_callback(proxy.stop)
        store = await stack.enter_async_context(session(f"etcd://127.0.0.1:{port}{prefix}", timeout_ms))
        yield proxy, store


class States:
    """Every state that a session went through."""

    def __init__(self, store: EtcdStore) -> None:
        self.seen: list[SessionState] = []
        store.add_session_listener(self.seen.append)

    @property
    def now(self) -> SessionState | None:
        return self.seen[-1] if self.seen else None


class Shadowed:
    """The events of a recursive watch, and the nodes that should exist after them."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.events: list[WatchEvent] = []
        self.paths = set(paths)

    def __call__(self, event: WatchEvent) -> None:
        self.events.append(event)
        if event.type.value == "created":
            assert event.path not in self.paths, f"{event.path} was created twice"
            self.paths.add(event.path)
        elif event.type.value == "deleted":
            self.paths.remove(event.path)
