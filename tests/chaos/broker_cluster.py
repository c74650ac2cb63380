"""Brokers that are processes, to be killed and stopped; metadata and bookies live in a thread and are left alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from actors.bookie.bookie import Bookie
from actors.bookie.config import BookieConfig
from heliograph.cluster.ports import pick_free
from heliograph.protocol import pulsar_pb2 as pb
from metadata import codec, paths
from metadata.cluster_init import initialise
from metadata.connect import connect_store
from metadata.embedded.server import EmbeddedServer
from metadata.model import NamespacePolicies
from metadata.store import MetadataStore
from tests.bench.process import Child
from tests.cluster.raw_peer import RawPeer

T = TypeVar("T")
BOOKIES, BROKERS = 3, 2
CALL_SECONDS_MAX = 120.0


class BrokerProcess:
    """One broker; it comes back under the same id and port."""

    def __init__(self, metadata_url: str, number: int) -> None:
        port = pick_free()
        self.url = f"pulsar://127.0.0.1:{port}"
        self._child = Child("tests.chaos.broker_host", metadata_url, f"broker-{number}", port)

    def start(self) -> None:
        """Start and wait until it serves."""
        self._child.start()
        assert self._child.said() == self.url

    def kill(self) -> None:
        """SIGKILL."""
        self._child.kill()

    def stop(self) -> None:
        """End in good order."""
        self._child.stop()

    def freeze(self) -> None:
        """SIGSTOP: its connections stay, it answers nothing."""
        os.kill(self._child.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """SIGCONT."""
        os.kill(self._child.pid, signal.SIGCONT)


class ProcessCluster:
    """Made by ``process_cluster``."""

    def __init__(self, folder: Path) -> None:
        self.brokers: list[BrokerProcess] = []
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="metadata and bookies", daemon=True)
        self._thread.start()
        self._server = EmbeddedServer(folder / "metadata", "127.0.0.1")
        self._bookies: list[Bookie] = []
        self._stores: list[MetadataStore] = []

    @property
    def service_url(self) -> str:
        """All brokers, dead or alive."""
        return "pulsar://" + ",".join(broker.url.removeprefix("pulsar://") for broker in self.brokers)

    def start(self, policies: NamespacePolicies) -> None:
        url = self._run(self._start(policies))
        for number in range(BROKERS):
            self.brokers.append(BrokerProcess(url, number))
            self.brokers[-1].start()

    def owner_of(self, topic: str) -> BrokerProcess:
        """Who serves a topic, as any live broker tells."""
        for broker in self.brokers:
            with contextlib.suppress(OSError, AssertionError), RawPeer(broker.url) as peer:
                peer.send(lookup=pb.CommandLookup(topic=f"persistent://public/default/{topic}", request_id=1))
                found = peer.answer(pb.BaseCommand.LOOKUP_RESPONSE).lookup_response
                if found.url:
                    return next(one for one in self.brokers if one.url == found.url)
        raise AssertionError("no broker answers")

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
            folder = self._folder / f"bookie-{number}"
            bookie = Bookie(BookieConfig(f"bookie-{number}", (folder / "journal",), (folder / "data",)), store)
            await bookie.start()
            self._bookies.append(bookie)
        return url

    async def _stop(self) -> None:
        for bookie in self._bookies:
            await bookie.stop()
        for store in self._stores:
            await store.close()
        await self._server.stop()


@contextlib.contextmanager
def process_cluster(folder: Path, policies: NamespacePolicies) -> Iterator[ProcessCluster]:
    """A running cluster."""
    cluster = ProcessCluster(folder)
    try:
        cluster.start(policies)
        yield cluster
    finally:
        cluster.stop()
