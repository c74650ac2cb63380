"""Bookies, brokers and metadata in one process, without Ray, served to clients over real sockets.

The servers run on a loop in a thread of its own, so that the blocking stock client can be used from the test.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import pulsar

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.cluster.ports import pick_free
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.model import NamespacePolicies
from heliograph.metadata.recipes.cluster_init import initialise

T = TypeVar("T")

CALL_SECONDS_MAX = 120.0
WAIT_SECONDS_MAX = 60.0


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while not condition():
        assert time.monotonic() < deadline, f"gave up waiting for {what}"
        time.sleep(0.02)


@dataclass
class RunningBroker:
    broker: Broker
    store: MemoryStore
    ledgers: LedgerClient
    is_gone: bool = False


class BrokerCluster:
    """Made by ``broker_cluster``. ``options`` are settings of the brokers that are started from now on."""

    def __init__(self, directory: Path, options: dict[str, Any] | None = None) -> None:
        self.directory = directory
        self.options = options or {}
        self.metadata = MemoryServer()
        self.bookies: list[Bookie] = []
        self.brokers: list[RunningBroker] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cluster", daemon=True)
        self._thread.start()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop that all servers run on."""
        return self._loop

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run something on the servers' loop."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(CALL_SECONDS_MAX)

    def start(self, bookies: int, brokers: int, policies: NamespacePolicies) -> None:
        self.run(self._start(bookies, policies))
        for number in range(brokers):
            self.start_broker(f"broker-{number}")

    async def _start(self, bookies: int, policies: NamespacePolicies) -> None:
        store = self.metadata.open_session()
        await initialise(store)
        await store.set(paths.namespace("public", "default"), codec.encode(policies))
        for number in range(bookies):
            folder = self.directory / f"bookie-{number}"
            config = BookieConfig(f"bookie-{number}", (folder / "journal",), (folder / "data",))
            bookie = Bookie(config, self.metadata.open_session())
            await bookie.start()
            self.bookies.append(bookie)

    def start_broker(self, name: str, **options: Any) -> RunningBroker:
        """A broker of that id; a second of the same id is its next incarnation."""
        # The brokers are one process and report its processor time: that is no reason to move bundles. Tests count
        # ledgers, and a probe has some.
        quiet = {"balance_seconds": 0.0, "housekeeping_seconds": 0.2, "probe_seconds": 0.0}
        settings = {"actor_name": name, "port": pick_free(), **quiet, **self.options, **options}
        running = self.run(self._start_broker(BrokerConfig(name, **settings)))
        self.brokers.append(running)
        return running

    async def _start_broker(self, config: BrokerConfig) -> RunningBroker:
        store = self.metadata.open_session()
        ledgers = await LedgerClient.start(store, config.ledgers)
        broker = Broker(config, store, ledgers, self.admin_of)
        await broker.start()
        return RunningBroker(broker, store, ledgers)

    def admin_of(self, actor_name: str) -> AdminService:
        """How brokers reach each other."""
        return next(
            running.broker.admin for running in reversed(self.brokers) if running.broker.config.actor_name == actor_name
        )

    @property
    def admin(self) -> AdminService:
        """The admin interface of any live broker."""
        return next(running.broker.admin for running in self.brokers if not running.is_gone)

    @property
    def service_url(self) -> str:
        """All live brokers."""
        hosts = [r.broker.service_url.removeprefix("pulsar://") for r in self.brokers if not r.is_gone]
        return "pulsar://" + ",".join(hosts)

    def owner_of(self, topic: str) -> RunningBroker:
        """The broker that serves a topic now."""
        url = self.run(self.admin.lookup(topic))["service_url"]
        return next(r for r in self.brokers if not r.is_gone and r.broker.service_url == url)

    def crash(self, running: RunningBroker) -> None:
        """End a broker as a SIGKILL and its session timeout would: nothing is finished, nothing is written."""
        running.is_gone = True
        self.run(self._crash(running))

    async def _crash(self, running: RunningBroker) -> None:
        await running.ledgers.close()
        for connection in list(running.broker._server._connections):
            assert connection._transport is not None
            connection._transport.abort()
        assert running.broker._server._server is not None
        running.broker._server._server.close()
        self.metadata.expire_session(running.store.session_id)
        await running.broker.stop()

    def crash_and_restart(self, running: RunningBroker) -> RunningBroker:
        """``crash``, then the next incarnation on the same port: clients that know only that address find it."""
        port = int(running.broker.service_url.rpartition(":")[2])
        self.crash(running)
        return self.start_broker(running.broker.config.broker_id, port=port)

    def stop_broker(self, running: RunningBroker) -> None:
        """Stop a broker in good order."""
        running.is_gone = True
        self.run(self._stop_broker(running))

    async def _stop_broker(self, running: RunningBroker) -> None:
        await running.broker.stop()
        await running.ledgers.close()
        await running.store.close()

    def stop(self) -> None:
        for running in self.brokers:
            if not running.is_gone:
                self.stop_broker(running)
        for bookie in self.bookies:
            self.run(bookie.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @contextmanager
    def client(self) -> Iterator[pulsar.Client]:
        """A stock client."""
        client = pulsar.Client(
            self.service_url, operation_timeout_seconds=60, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        )
        try:
            yield client
        finally:
            client.close()


@contextmanager
def broker_cluster(
    directory: Path, *, bookies: int = 3, brokers: int = 1, options: dict[str, Any] | None = None, **policies: Any
) -> Iterator[BrokerCluster]:
    """A running cluster; ``options`` are settings of its brokers, ``policies`` override those of the default
    namespace."""
    cluster = BrokerCluster(directory, options)
    try:
        cluster.start(bookies, brokers, replace(NamespacePolicies(), **policies))
        yield cluster
    finally:
        cluster.stop()
