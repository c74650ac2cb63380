"""A broker process: the broker, with the metadata store and the client of bookies that it uses."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable

from heliograph.actors.broker.admin.forwarding import PeerOf
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.namespaces.ownership import end_predecessor
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.connect import connect_renewing_store, connect_store
from heliograph.metadata.session.renewing import RenewingStore


class BrokerSessions:
    """One broker, over all metadata sessions of its process (``metadata/session/renewing.py``)."""

    def __init__(self, config: BrokerConfig, metadata_url: str, peer: PeerOf | None = None) -> None:
        self._config = config
        self._metadata_url = metadata_url
        self._peer = peer
        self._broker: Broker | None = None
        self._store: RenewingStore | None = None
        self._closing: list[Callable[[], Awaitable[None]]] = []  # in the order of the starts

    @property
    def broker(self) -> Broker:
        """The broker. Raises ServiceNotReadyError unless it is started."""
        if self._broker is None:
            raise ServiceNotReadyError(f"{self._config.broker_id} is not started, try again")
        return self._broker

    async def start(self) -> str:
        """Start the broker. Return its service URL, of TLS if the plain port is closed.

        Raises:
            ResourceError: the port is taken.
            ConnectionLossError: the metadata store cannot be reached.
        """
        store = self._store = await connect_renewing_store(
            self._metadata_url, session_timeout_ms=self._config.session_timeout_ms
        )
        self._closing.append(store.close)
        try:
            await end_predecessor(store, self._config.broker_id)  # first: others take its topics over meanwhile
            ledgers = await LedgerClient.start(store, self._config.ledgers)
            self._closing.append(ledgers.close)
            broker = Broker(self._config, store, ledgers, self._peer)
            self._closing.append(broker.stop)
            await broker.start()
        except BaseException:
            await self.stop()
            raise
        self._broker = broker
        store.on_ended = broker.topics.setting.traffic.metadata_latency.observe
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
        self._broker = None
        while self._closing:
            close = self._closing.pop()
            with contextlib.suppress(HeliographError):
                await close()
