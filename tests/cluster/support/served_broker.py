"""A broker for clients that block: it runs on a thread."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

from tests.unit.broker.clients import LoneBroker


class ServedBroker:
    """A broker on ledgers in memory that listens on sockets.

    Args:
        options: of its configuration.
    """

    def __init__(self, **options: Any) -> None:
        self._lone = LoneBroker(**options)
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._lone.__aenter__())
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.url = self._lone.broker.service_url
        self.url_tls = self._lone.broker.service_url_tls.replace("127.0.0.1", "localhost")

    @property
    def connections_total(self) -> int:
        return self._lone.broker._server.connections_total

    @property
    def connections_local_total(self) -> int:
        return self._lone.broker._server.local.accepted

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.run_until_complete(self._lone.__aexit__())
        self._loop.close()
