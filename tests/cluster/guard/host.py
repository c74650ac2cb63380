"""A server in a process of its own: ``python -m tests.cluster.guard.host <listener> <directory>``."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.session import BrokerSessions
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.recipes.cluster_init import initialise
from tests.bench.serving import serve

BUDGET_BYTES = 64 << 20
UNFINISHED_MS = 2_000

Started = tuple[str, Callable[[], Awaitable[None]]]


async def start_bookie(directory: Path) -> Started:
    config = BookieConfig(
        "b1", (directory / "journal",), (directory / "data",),
        unfinished_bytes_max=BUDGET_BYTES, unfinished_ms_max=UNFINISHED_MS,
    )  # fmt: skip
    bookie = Bookie(config, None)
    await bookie.start()
    return bookie.address, bookie.stop


async def start_metadata(directory: Path) -> Started:
    limits = ServerLimits(unfinished_bytes_max=BUDGET_BYTES, unfinished_ms_max=UNFINISHED_MS)
    server = EmbeddedServer(directory, "127.0.0.1", limits=limits)
    await server.start()
    return server.address, server.stop


async def start_endpoint(directory: Path) -> Started:
    endpoint = ZooKeeperEndpoint(
        lambda timeout_ms, token: connect_store("memory://guard", session_timeout_ms=timeout_ms, token=token),
        limits=EndpointLimits(unfinished_bytes_max=BUDGET_BYTES, unfinished_ms_max=UNFINISHED_MS),
    )
    await endpoint.start()
    return await endpoint.listen("127.0.0.1", 0), endpoint.stop


async def start_broker(directory: Path) -> Started:
    """Start a broker on bookies and metadata in the same process."""
    server = MemoryServer.named("guard")
    await initialise(server.open_session())
    bookies = []
    for number in range(3):
        folder = directory / str(number)
        config = BookieConfig(f"b{number}", (folder / "journal",), (folder / "data",))
        bookies.append(Bookie(config, server.open_session()))
        await bookies[-1].start()
    sessions = BrokerSessions(
        BrokerConfig("only", unfinished_bytes_max=BUDGET_BYTES, unfinished_ms_max=UNFINISHED_MS), "memory://guard"
    )

    async def stop() -> None:
        await sessions.stop()
        for bookie in bookies:
            await bookie.stop()

    return (await sessions.start()).removeprefix("pulsar://"), stop


STARTS = {"bookie": start_bookie, "broker": start_broker, "endpoint": start_endpoint, "metadata": start_metadata}

if __name__ == "__main__":
    serve(lambda: STARTS[sys.argv[1]](Path(sys.argv[2])))
