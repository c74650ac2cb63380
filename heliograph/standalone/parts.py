"""The parts of a cluster in one process, on the running event loop: metadata, bookies, broker and gateway."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.broker.session import BrokerSessions
from heliograph.base.completion import end_task
from heliograph.base.errors import NotFoundError, ResourceError
from heliograph.base.guard.handshake import new_secret
from heliograph.base.guard.watchdog import watch_running_loop
from heliograph.client.discovery import METADATA
from heliograph.gateway.http.listening import listening_socket
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_renewing_store, connect_store, embedded_url
from heliograph.metadata.credentials import with_secrets
from heliograph.metadata.recipes.cluster_init import initialise, set_default_copies
from heliograph.standalone.admin_socket import AdminSocketServer, BrokerAdministration
from heliograph.standalone.config import BROKER, LOOPBACK, SESSION_TIMEOUT_MS, StandaloneConfig
from heliograph.standalone.directory import StandaloneDirectory
from heliograph.standalone.gateway import GatewayOnDemand
from heliograph.standalone.report import keep_report

if TYPE_CHECKING:
    from heliograph.standalone.security import Security

log = logging.getLogger(__name__)


class LocalParts:
    """The parts of this process, as the gateway asks them: statistics, history and metrics."""

    def __init__(self, broker: BrokerSessions, bookies: Mapping[str, Bookie], metadata: EmbeddedServer) -> None:
        self._broker = broker
        self._bookies = bookies
        self._metadata = metadata

    async def names(self) -> list[str]:
        return [METADATA, *self._bookies, BROKER]

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        """Call a method as ``PartsPort`` has it.

        Raises:
            NotFoundError: there is no such part, or it answers no such call.
            ServiceNotReadyError: the broker has no session.
        """
        if method == "statistics" and part in self._bookies:
            return self._bookies[part].statistics()
        if method == "history" and part in self._bookies:
            return self._bookies[part].history.told()
        if method == "statistics" and part == METADATA:
            return self._metadata.statistics()
        if method == "history" and part == METADATA:
            return self._metadata.history.told()
        if method == "statistics" and part == BROKER:
            return self._broker.broker.statistics()
        if method == "asked" and part == BROKER:
            return await self._broker.broker.admin.asked(*arguments)
        raise NotFoundError(f"{part} has no {method} in this process", field="part")


class StandaloneParts:
    """Starts the parts in the order in which they need each other, and stops them in the reverse order.

    Args:
        on_failure: called once, on the event loop, when a disk failed under a part: nothing more is confirmed. What
            was confirmed is durable; stop, and start again.
    """

    def __init__(
        self,
        config: StandaloneConfig,
        directory: StandaloneDirectory,
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._config = config
        self._directory = directory
        self._on_failure = on_failure
        self._started = contextlib.AsyncExitStack()
        self._secret = new_secret()  # other users of the machine reach loopback addresses, too
        self.security: Security | None = None
        self._metadata: EmbeddedServer | None = None
        self._metadata_url = ""  # with the secret
        self._addresses: dict[str, str] = {}  # of the parts, by their names
        self._bookies: dict[str, Bookie] = {}
        self.service_url = ""
        self.http_url = ""

    async def start(self) -> None:
        """Start all parts. Returns once the broker serves and the gateway's port is open.

        Raises:
            ResourceError: a port or a directory cannot be used; ``field`` is the setting. Nothing runs then.
            HeliographError: a part does not start; the message says why. Nothing runs then.
        """
        self._started.callback(watch_running_loop().stop)
        try:
            if self._config.secure:
                from heliograph.standalone.security import Security  # it loads cryptography, which others do without

                hosts = (self._config.host, self._config.reached_at)
                self.security = await asyncio.to_thread(Security, self._directory.path, hosts)
            self._config.check_parts(self._secret, self.security)
            _require_free(self._config.host, self._config.port)
            await self._start_metadata()
            await self._start_bookies()
            broker = await self._start_broker()
            admin = BrokerAdministration(broker)
            admin_socket = await self._start_admin_socket(admin)
            assert self._metadata is not None, "it was started first"
            await self._start_gateway(admin, LocalParts(broker, self._bookies, self._metadata))
            await self._start_report()
            metadata_url = embedded_url(self._addresses[METADATA], None)
            files = self.security.client_files if self.security else {}
            self._directory.record(
                self.service_url, self.http_url, metadata_url, admin_socket, secret=self._secret, files=files
            )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Stop all parts in good order. Idempotent."""
        await self._started.aclose()

    async def _start_metadata(self) -> None:
        server = EmbeddedServer(self._directory.metadata, LOOPBACK, secret=self._secret)
        await server.start()
        self._started.push_async_callback(server.stop)
        watching = asyncio.get_running_loop().create_task(self._watch(server))
        self._started.push_async_callback(end_task, watching)
        self._metadata_url = with_secrets(embedded_url(server.address, None), self._secret)
        self._metadata, self._addresses[METADATA] = server, server.address
        store = await connect_store(self._metadata_url, session_timeout_ms=SESSION_TIMEOUT_MS)
        try:
            await initialise(store)
            await set_default_copies(store, self._config.persistence)
        finally:
            await store.close()

    async def _watch(self, server: EmbeddedServer) -> None:
        await server.failed.wait()
        self._on_failure(server.failure or ResourceError("the metadata store cannot write to its disk"))

    async def _start_bookies(self) -> None:
        directories = self._directory.bookies(self._config.bookies)
        self._addresses |= dict.fromkeys(directories, "")  # they register theirs
        await asyncio.gather(*(self._start_bookie(name, path) for name, path in directories.items()))

    async def _start_bookie(self, name: str, directory: Path) -> None:
        store = await connect_renewing_store(self._metadata_url, session_timeout_ms=SESSION_TIMEOUT_MS)
        self._started.push_async_callback(store.close)
        config = self._config.bookie_config(name, directory, self._secret)
        bookie = Bookie(config, store, on_failure=self._on_failure)
        await bookie.start()
        self._started.push_async_callback(bookie.stop)
        self._bookies[name] = bookie

    async def _start_broker(self) -> BrokerSessions:
        config = self._config.broker_config(self._secret, self.security)
        broker = BrokerSessions(config, self._metadata_url, lambda _: broker.broker.admin)
        self.service_url = await broker.start()
        self._started.push_async_callback(broker.stop)
        return broker

    async def _start_gateway(self, admin: BrokerAdministration, parts: LocalParts) -> None:
        config = self._config.gateway_config(self.security)
        gateway = GatewayOnDemand(config, admin, self.service_url, self._metadata_url, parts, self.security)
        self.http_url = gateway.start()
        self._started.push_async_callback(gateway.stop)

    async def _start_report(self) -> None:
        store = await connect_renewing_store(self._metadata_url, session_timeout_ms=SESSION_TIMEOUT_MS)
        self._started.push_async_callback(store.close)
        addresses = self._addresses | {BROKER: "", "gateway": self.http_url}
        report = keep_report(store, addresses, self._config.persistence)
        keeping = asyncio.get_running_loop().create_task(report, name="report")
        self._started.push_async_callback(end_task, keeping)

    async def _start_admin_socket(self, admin: BrokerAdministration) -> str:
        server = AdminSocketServer(self._directory.admin_socket, admin)
        self._started.push_async_callback(server.stop)
        return await server.start()


def _require_free(host: str, port: int) -> None:
    """Check the broker's port before anything starts.

    Raises:
        ResourceError: it is taken.
    """
    if port:
        listening_socket(host, port).close()
