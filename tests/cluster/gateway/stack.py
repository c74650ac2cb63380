"""Bookies, brokers and a gateway in one process, over real sockets and disks, without Ray."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

import heliograph
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.admin.admin import AdminService
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.ledger.driver.client import LedgerClient
from heliograph.client.access import joined_address
from heliograph.gateway.app import create_app
from heliograph.gateway.cluster_view import MetadataClusterView
from heliograph.gateway.config import GatewayConfig
from heliograph.gateway.http.server import GatewayServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from tests.unit.gateway.world import NoParts


@dataclass
class Stack:
    """A running cluster with its gateway."""

    brokers: list[Broker]
    client: heliograph.AsyncClient
    server: GatewayServer
    http: httpx.AsyncClient

    @property
    def websocket_url(self) -> str:
        return self.server.url.replace("http://", "ws://")


@contextlib.asynccontextmanager
async def running_stack(
    directory: Path,
    *,
    brokers: int = 2,
    broker: Mapping[str, Any] | None = None,
    client: Mapping[str, str] | None = None,
    **settings: Any,
) -> AsyncIterator[Stack]:
    """Run three bookies, some brokers and a gateway for the duration of the block.

    Args:
        broker: further settings of the brokers.
        client: files of TLS with which the gateway's client connects to them.
    """
    url = f"memory://{directory.name}"
    async with contextlib.AsyncExitStack() as stack:
        store = await connect_store(url)
        stack.push_async_callback(store.close)
        await initialise(store)
        for number in range(1, 4):
            await _start_bookie(stack, directory, url, f"bookie-{number}")
        started: list[Broker] = []
        for number in range(1, brokers + 1):
            started.append(await _start_broker(stack, url, f"broker-{number}", started, broker or {}))
        address = joined_address([each.address for each in started])
        connected = await heliograph.connect_async(address, **(client or {}))
        stack.push_async_callback(connected.close)
        config = GatewayConfig(port=0, **settings)
        server = GatewayServer(config)
        server.bind()
        view = MetadataClusterView(lambda: connect_store(url))
        stack.push_async_callback(view.close)
        await server.start(create_app(connected, started[0].admin, config, view, NoParts()))
        stack.push_async_callback(server.stop)
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=server.url, timeout=120))
        yield Stack(started, connected, server, http)


async def _start_bookie(stack: contextlib.AsyncExitStack, directory: Path, url: str, name: str) -> None:
    config = BookieConfig(
        bookie_id=name,
        journal_directories=(directory / name / "journal",),
        data_directories=(directory / name / "ledgers",),
        host="127.0.0.1",
    )
    store = await connect_store(url)
    stack.push_async_callback(store.close)
    bookie = Bookie(config, store)
    await bookie.start()
    stack.push_async_callback(bookie.stop)


async def _start_broker(
    stack: contextlib.AsyncExitStack, url: str, name: str, peers: list[Broker], settings: Mapping[str, Any]
) -> Broker:
    def peer(actor_name: str) -> AdminService:
        return next(broker.admin for broker in peers if broker.config.actor_name == actor_name)

    store = await connect_store(url)
    stack.push_async_callback(store.close)
    config = BrokerConfig(name, actor_name=name, **{"probe_seconds": 0.0, **settings})
    ledgers = await LedgerClient.start(store, config.ledgers)
    stack.push_async_callback(ledgers.close)
    broker = Broker(config, store, ledgers, peer)
    await broker.start()
    stack.push_async_callback(broker.stop)
    return broker
