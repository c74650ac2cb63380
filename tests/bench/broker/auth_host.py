"""Brokers in one process, each with metadata in memory and one bookie: ``python -m tests.bench.broker.auth_host``.

Arguments: a directory, the secret key of tokens in base64, and for each broker ``open`` or ``auth``. The first line is
the service URLs, separated by blanks. The brokers share a process, so that nothing but authentication differs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.auth.config import AuthConfig
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import AuthPolicies, NamespacePolicies, Persistence
from heliograph.metadata.recipes.cluster_init import initialise
from tests.bench.serving import serve

ROLE = "publisher"


async def _broker(directory: Path, auth: AuthConfig) -> tuple[str, list[Callable[[], Awaitable[None]]]]:
    metadata = MemoryServer()
    store = metadata.open_session()
    await initialise(store)
    policies = NamespacePolicies(
        persistence=Persistence(1, 1, 1), auth_policies=AuthPolicies(namespace_auth={ROLE: ("produce",)})
    )
    await store.set(paths.namespace("public", "default"), codec.encode(policies))
    bookie = Bookie(
        BookieConfig("bookie", (directory / "journal",), (directory / "data",)),
        metadata.open_session(),
        on_failure=lambda error: os._exit(74),
    )
    await bookie.start()
    config = BrokerConfig("broker", actor_name="broker", auth=auth, balance_seconds=0.0)
    ledgers = await LedgerClient.start(store, config.ledgers)
    broker = Broker(config, store, ledgers)
    await broker.start()
    return broker.service_url, [broker.stop, ledgers.close, bookie.stop]


async def start() -> tuple[str, Callable[[], Awaitable[None]]]:
    """Start the brokers and return their service URLs."""
    directory, key, *kinds = sys.argv[1:]
    urls, stops = [], []
    for number, kind in enumerate(kinds):
        auth = AuthConfig(enabled=True, token_secret_key=key) if kind == "auth" else AuthConfig()
        url, own = await _broker(Path(directory) / str(number), auth)
        urls.append(url)
        stops += own

    async def stop() -> None:
        for end in stops:
            await end()

    return " ".join(urls), stop


if __name__ == "__main__":
    serve(start)
