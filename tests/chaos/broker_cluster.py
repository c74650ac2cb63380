"""Brokers as processes that can be killed and stopped; metadata and bookies run in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.cluster.ports import pick_free
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import NamespacePolicies
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from heliograph.protocol import pulsar_pb2 as pb
from tests.bench.process import Child
from tests.cluster.support.raw_peer import RawPeer

T = TypeVar("T")
BOOKIES, BROKERS = 3, 2
CALL_SECONDS_MAX = 120.0


class BrokerProcess:
    """One broker; it restarts under the same id and port."""

    def __init__(self, metadata_url: str, number: int) -> None:
        port = pick_free()
        self.url = f"pulsar://127.0.0.1:{port}"
        self._child = Child("tests.chaos.broker_host", metadata_url, f"broker-{number}", port)

    def start(self) -> None:
        """Start the broker and wait until it serves."""
        self._child.start()
        assert self._child.said() == self.url

    def kill(self) -> None:
        """Send SIGKILL."""
        self._child.kill()

    def stop(self) -> None:
        """Stop the broker cleanly."""
        self._child.stop()

    def freeze(self) -> None:
        """Send SIGSTOP: its connections stay open, it answers nothing."""
        os.kill(self._child.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Send SIGCONT."""
        os.kill(self._child.pid, signal.SIGCONT)


class ProcessCluster:
    """A cluster that ``process_cluster`` creates."""

    def __init__(self, folder: Path) -> None:
        self.brokers: list[BrokerProcess] = []
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metadata and bookies", daemon=True)
        self._thread.start()
        self._server = EmbeddedServer(folder / "metadata", "127.0.0.1")
        self.bookies: list[Bookie] = []
        self._stores: list[MetadataStore] = []

    @property
    def service_url(self) -> str:
        """Return all brokers, running or not."""
        return "pulsar://" + ",".join(broker.url.removeprefix("pulsar://") for broker in self.brokers)

    def start(self, policies: NamespacePolicies) -> None:
        url = self._run(self._start(policies))
        for number in range(BROKERS):
            self.brokers.append(BrokerProcess(url, number))
            self.brokers[-1].start()

    def owner_of(self, topic: str) -> BrokerProcess:
        """Return the owner of a topic, by a lookup on any live broker."""
        for broker in self.brokers:
            with contextlib.suppress(OSError, AssertionError), RawPeer(broker.url) as peer:
                peer.send(lookup=pb.CommandLookup(topic=f"persistent://public/default/{topic}", request_id=1))
                found = peer.answer(pb.BaseCommand.LOOKUP_RESPONSE).lookup_response
                if found.url:
                    return next(one for one in self.brokers if one.url == found.url)
        raise AssertionError("no broker answers")

    def replace_bookie(self, number: int) -> None:
        """Stop a bookie and start another one on its disk."""
        self._run(self._replace_bookie(number))

    def stop(self) -> None:
        for broker in self.brokers:
            with contextlib.suppress(ProcessLookupError, AssertionError):
                broker.thaw()
            broker.stop()
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(CALL_SECONDS_MAX)

    async def _start(self, policies: NamespacePolicies) -> str:
        await self._server.start()
        url = f"embedded://{self._server.address}"
        for number in range(BOOKIES):
            store = await connect_store(url)
            self._stores.append(store)
            if number == 0:
                await initialise(store)
                await store.set(paths.namespace("public", "default"), codec.encode(policies))
            self.bookies.append(await self._start_bookie(number))
        return url

    async def _start_bookie(self, number: int) -> Bookie:
        folder = self._folder / f"bookie-{number}"
        config = BookieConfig(f"bookie-{number}", (folder / "journal",), (folder / "data",))
        bookie = Bookie(config, self._stores[number])
        await bookie.start()
        return bookie

    async def _replace_bookie(self, number: int) -> None:
        await self.bookies[number].stop()
        self.bookies[number] = await self._start_bookie(number)

    async def _stop(self) -> None:
        for bookie in self.bookies:
            await bookie.stop()
        for store in self._stores:
            await store.close()
        await self._server.stop()


@contextlib.contextmanager
def process_cluster(folder: Path, policies: NamespacePolicies) -> Iterator[ProcessCluster]:
    """Run a cluster for the duration of the block."""
    cluster = ProcessCluster(folder)
    try:
        cluster.start(policies)
        yield cluster
    finally:
        cluster.stop()
