"""The sessions of a broker process: after a lost session it starts a new ``Broker`` on the same port."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import replace

from heliograph.actors.broker.admin.forwarding import PeerOf
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.namespaces.ownership import end_predecessor
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.base.backoff import Backoff
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.connect import connect_store
from heliograph.metadata.store import MetadataStore

RECONNECT_MS = 200  # first pause between attempts
RECONNECT_MS_MAX = 5_000

log = logging.getLogger(__name__)


class BrokerSessions:
    """The broker of the current session, with the metadata store and the client of bookies that it uses."""

    def __init__(self, config: BrokerConfig, metadata_url: str, peer: PeerOf | None = None) -> None:
        self._config = config
        self._metadata_url = metadata_url
        self._peer = peer
        self._broker: Broker | None = None
        self._store: MetadataStore | None = None
        self._ledgers: LedgerClient | None = None
        self._renewing: asyncio.Task[None] | None = None

    @property
    def broker(self) -> Broker:
        """The broker of the current session. Raises ServiceNotReadyError while there is none."""
        if self._broker is None:
            raise ServiceNotReadyError(f"{self._config.broker_id} has no session with the metadata store, try again")
        return self._broker

    async def start(self) -> str:
        """Begin a session. Return the broker's service URL, that of TLS if the plain port is closed.

        Raises:
            ResourceError: the port is taken.
            ConnectionLossError: the metadata store cannot be reached.
        """
        store = self._store = await connect_store(
            self._metadata_url, session_timeout_ms=self._config.session_timeout_ms
        )
        try:
            ledgers = self._ledgers = await LedgerClient.start(store, self._config.ledgers)
            broker = Broker(self._config, store, ledgers, self._peer)
            broker.on_session_lost = self._session_lost
            await broker.start()
        except BaseException:
            await self._end_session()
            raise
        self._broker = broker
        # Clients know this address, so the next session serves on it too.
        if broker.service_url:
            self._config = replace(self._config, port=int(broker.service_url.rpartition(":")[2]))
        if broker.service_url_tls:
            self._config = replace(self._config, tls_port=int(broker.service_url_tls.rpartition(":")[2]))
        return broker.address

    async def end_predecessor(self) -> None:
        """End the session of a process that was this broker before, so that others take its topics over at once.

        Raises:
            ConnectionLossError, SessionExpiredError: the store cannot be used; the session may have ended.
        """
        store = await connect_store(self._metadata_url, session_timeout_ms=self._config.session_timeout_ms)
        try:
            await end_predecessor(store, self._config.broker_id)
        finally:
            await store.close()

    async def stop(self) -> None:
        """Close the topics and end the session. Idempotent."""
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.gather(self._renewing, return_exceptions=True)
        await self._end_session()

    def _session_lost(self) -> None:
        log.error("broker %s lost its session", self._config.broker_id)
        if self._renewing is None or self._renewing.done():
            self._renewing = asyncio.get_running_loop().create_task(self._renew())

    async def _renew(self) -> None:
        await self._end_session()
        pauses = Backoff(RECONNECT_MS, RECONNECT_MS_MAX)
        while True:
            try:
                await self.start()
            except HeliographError as error:
                log.warning("broker %s could not begin a new session: %s", self._config.broker_id, error)
                await asyncio.sleep(pauses.pause())
            else:
                return

    async def _end_session(self) -> None:
        broker, self._broker = self._broker, None
        ledgers, self._ledgers = self._ledgers, None
        store, self._store = self._store, None
        with contextlib.suppress(HeliographError):
            if broker is not None:
                await broker.stop()
        with contextlib.suppress(HeliographError):
            if ledgers is not None:
                await ledgers.close()
        with contextlib.suppress(HeliographError):
            if store is not None:
                await store.close()
