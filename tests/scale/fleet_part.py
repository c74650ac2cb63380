"""One part of a fleet in a process of its own: ``python -m tests.scale.fleet_part store|bookies|broker|clients ...``.

Each prints its address first. The store prints a line of JSON at each SIGUSR1: its requests by kind. Clients print one
when each of their topics has a first receipt, and again after each SIGUSR1.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.protocol.producer_commands import PRODUCERS_MAX
from heliograph.actors.broker.session import BrokerSessions
from heliograph.base.errors import HeliographError
from heliograph.base.system import collector
from heliograph.client.access import connect_async
from heliograph.client.aio.client import AsyncClient
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.metadata.backends.embedded.protocol import EmbeddedOp
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_renewing_store
from heliograph.metadata.model import Persistence
from tests.bench.serving import serve

COPIES = Persistence(3, 3, 2)
HOURS = 3_600.0
SESSION_TIMEOUT_MS = 60_000  # a busy machine must not end one
OPENED_AT_ONCE = 64
SECONDS_MAX = 3_600.0  # for any answer: of 50,000 topics the last one has to wait for all others

Started = tuple[str, Callable[[], Awaitable[None]]]


class RequestCounter:
    """Counts the requests to an embedded store in this process by kind."""

    def __init__(self, server: EmbeddedServer) -> None:
        self.by_kind: Counter[str] = Counter()
        service = server._service
        assert service is not None, "the server was started"
        handle = service.handle

        def counted(connection: Any, frame: list[Any]) -> None:
            self.by_kind[EmbeddedOp(frame[1]).name] += 1
            handle(connection, frame)

        service.handle = counted  # type: ignore[method-assign]


async def store(directory: str) -> Started:
    """Start the metadata store."""
    server = EmbeddedServer(Path(directory), "127.0.0.1")
    await server.start()
    counter = RequestCounter(server)
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: _say(counter.by_kind))
    return server.address, server.stop


async def bookies(directory: str, url: str) -> Started:
    """Start as many bookies as there are copies."""
    stack = contextlib.AsyncExitStack()
    for number in range(1, COPIES.ensemble_size + 1):
        session = await connect_renewing_store(url, session_timeout_ms=SESSION_TIMEOUT_MS)
        stack.push_async_callback(session.close)
        where = Path(directory) / f"bookie-{number}"
        config = BookieConfig(
            bookie_id=f"bookie-{number}", journal_directories=(where / "journal",), data_directories=(where / "data",),
            headroom_bytes=1 << 30, session_timeout_ms=SESSION_TIMEOUT_MS, gc_interval_ms=int(HOURS * 1e3),
        )  # fmt: skip
        bookie = Bookie(config, session, on_failure=lambda error: os._exit(74))
        await bookie.start()
        stack.push_async_callback(bookie.stop)
    return "bookies", stack.aclose


async def broker(broker_id: str, port: str, url: str) -> Started:
    """Start a broker whose periodic work does not run."""
    collector.take_over()  # as the process of a broker does
    config = BrokerConfig(
        broker_id=broker_id, port=int(port), actor_name=broker_id, probe_seconds=0.0,
        session_timeout_ms=SESSION_TIMEOUT_MS,
        ensemble_size=COPIES.ensemble_size, write_quorum=COPIES.write_quorum, ack_quorum=COPIES.ack_quorum,
    )  # fmt: skip
    sessions = BrokerSessions(config, url)
    return await sessions.start(), sessions.stop


async def clients(url: str, first: str, count: str) -> Started:
    """Open a producer for each of some topics, and publish to all of them at once, again and again."""
    stack = contextlib.AsyncExitStack()
    handles = list[AsyncClient]()
    for _ in range(0, int(count), PRODUCERS_MAX):  # each has a connection of its own
        handles.append(await connect_async(url, operation_timeout_ms=int(SECONDS_MAX * 1e3)))
        stack.push_async_callback(handles[-1].close)
    names = [f"failover-{int(first) + number:06d}" for number in range(int(count))]
    turn, producers = zip(names, itertools.cycle(handles), strict=False), list[AsyncProducer]()
    options: dict[str, Any] = {"batch_messages": 1, "linger_ms": 0, "send_timeout_ms": int(SECONDS_MAX * 1e3)}

    async def open_some() -> None:
        for name, client in turn:
            producers.append(await client.producer(name, **options))

    await asyncio.gather(*(open_some() for _ in range(OPENED_AT_ONCE)))

    async def publish() -> None:
        receipts: list[float] = []
        failures: list[str] = []

        async def one(producer: AsyncProducer) -> None:
            try:
                await producer.send(b"x")
            except HeliographError as error:
                failures.append(str(error))
            receipts.append(time.monotonic())

        await asyncio.gather(*map(one, producers))
        receipts.sort()
        picks = [receipts[int(share * (len(receipts) - 1))] for share in (0, 0.01, 0.5, 0.99, 1)]
        _say({"receipts": picks, "failures": len(failures), "failure": failures[:1]})

    await publish()
    tasks: list[asyncio.Task[None]] = []
    asyncio.get_running_loop().add_signal_handler(
        signal.SIGUSR1, lambda: tasks.append(asyncio.ensure_future(publish()))
    )
    return "clients", stack.aclose


def _say(what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    logging.basicConfig(level=os.environ.get("PART_LOG", "ERROR"))
    roles: dict[str, Callable[..., Awaitable[Started]]] = {
        "store": store,
        "bookies": bookies,
        "broker": broker,
        "clients": clients,
    }
    serve(lambda: roles[sys.argv[1]](*sys.argv[2:]))
