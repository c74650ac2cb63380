"""The rows of a killed broker and of bundles: what its survivors and the store do for each topic, and what can move."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import time
from collections import Counter
from dataclasses import replace
from typing import Any

from heliograph.actors.broker.config import SplitLimits
from heliograph.actors.broker.namespaces.bundles import bundles_for
from heliograph.actors.broker.namespaces.ownership import end_predecessor
from heliograph.metadata import paths
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import NamespacePolicies
from heliograph.metadata.recipes.cluster_init import initialise, set_default_copies
from heliograph.metadata.recipes.update_loop import update
from tests.bench.process import Child, precise_cpu_seconds
from tests.scale.cost import Cost
from tests.scale.filling import NAMESPACE, TENANT
from tests.scale.fleet_part import COPIES
from tests.scale.row import Row, cpu, other, step
from tests.scale.site import Site

PART = "tests.scale.fleet_part"
OPEN = 50_000  # topics of the killed broker at the goal
SURVIVORS, CLIENTS = 4, 2
BUNDLES = bundles_for(32)  # of the namespace, so that survivors share evenly
OWNER = "broker-1"
REST_SECONDS = 2.0  # in which survivors have started


def failover(site: Site) -> tuple[int, Cost]:
    """Kill a broker whose topics all have a producer, and publish to each of them."""
    count = site.open // CLIENTS * CLIENTS
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(Child(PART, "store", site.directory / "failover" / "store"))
        url = f"embedded://{store.said()}"
        asyncio.run(_prepare(url))
        bookies = stack.enter_context(Child(PART, "bookies", site.directory / "failover", url))
        bookies.said()
        ports = _free_ports(1 + SURVIVORS)
        owner = Child(PART, "broker", OWNER, ports[0], url).start()
        stack.callback(owner.kill)
        owner.said()
        address = "pulsar://" + ",".join(f"127.0.0.1:{port}" for port in ports)
        share = count // CLIENTS
        clients = [
            stack.enter_context(Child(PART, "clients", address, number * share, share)) for number in range(CLIENTS)
        ]
        for client in clients:
            assert not json.loads(client.said())["failures"], "every topic took its first message"
            client.said()
        survivors = [
            stack.enter_context(Child(PART, "broker", f"broker-{number}", port, url))
            for number, port in enumerate(ports[1:], 2)
        ]
        for survivor in survivors:
            survivor.said()
        time.sleep(REST_SECONDS)
        pids = [store.pid, *(survivor.pid for survivor in survivors)]
        before, used = Counter(_asked(store)), [precise_cpu_seconds(pid) for pid in pids]
        killed = time.monotonic()
        owner.kill()
        asyncio.run(_end_session(url))  # as the process that follows it does
        found = _published(clients)
        used = [precise_cpu_seconds(pid) - was for pid, was in zip(pids, used, strict=True)]
        requests = sum((Counter(_asked(store)) - before).values())
    assert not any(each["failures"] for each in found), f"every topic took another message: {found}"
    more = {
        "requests": requests / count, "store": used[0], "survivor": max(used[1:]),
        "first": min(each["receipts"][0] for each in found) - killed,
        "last": max(each["receipts"][-1] for each in found) - killed,
    }  # fmt: skip
    return count, Cost(sum(used) / count * 1e3, more=more)


async def _prepare(url: str) -> None:
    session = await connect_store(url)
    try:
        await initialise(session)
        await set_default_copies(session, COPIES)
        path = paths.namespace(TENANT, NAMESPACE)
        await update(session, path, NamespacePolicies, _with_bundles)
    finally:
        await session.close()


def _with_bundles(policies: NamespacePolicies) -> NamespacePolicies | None:
    return None if policies.bundles == BUNDLES else replace(policies, bundles=BUNDLES)


async def _end_session(url: str) -> None:
    session = await connect_store(url)
    try:
        await end_predecessor(session, OWNER)
    finally:
        await session.close()


def _free_ports(count: int) -> list[int]:
    """Return free ports: clients know all brokers before those are started that take nothing yet."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in found]


def _asked(child: Child) -> dict[str, Any]:
    os.kill(child.pid, signal.SIGUSR1)
    found: dict[str, Any] = json.loads(child.said())
    return found


def _published(clients: list[Child]) -> list[dict[str, Any]]:
    """Have all clients publish to all of their topics, and return when the receipts came."""
    for client in clients:
        os.kill(client.pid, signal.SIGUSR1)
    return [json.loads(client.said()) for client in clients]


def bundles(site: Site) -> tuple[int, Cost]:
    """Split the largest bundle of a broker, and then all that a broker would split by itself."""
    broker = site.crowded.broker
    assert broker._changes is not None, "it was started"
    changes, topics = broker._changes, broker.topics

    def largest() -> tuple[int, str]:
        return max((topics.count_of_bundle(path), path) for path in broker.ownership.owned)

    async def split() -> None:
        _, tenant, namespace, name = largest()[1].rsplit("/", 3)
        await changes.split(f"{paths.last_part('/' + tenant)}/{paths.last_part('/' + namespace)}", name)

    async def split_large() -> None:
        while largest()[0] >= SplitLimits().topics:
            await split()

    cost = site.crowded.cost(split)
    site.crowded.run(split_large())
    return site.open, replace(cost, more={"largest": largest()[0]})


ROWS = (
    Row(
        "failover", "topics", failover,
        (
            other("requests", "a topic", 12, OPEN), other("store", "s of processor", 30, OPEN),
            other("survivor", "s of processor", 30, OPEN), other("first", "s to its receipt", 3, OPEN),
            other("last", "s to its receipt", 30, OPEN),
        ),
        runs_small=False,
    ),
    Row("bundles", "open topics", bundles, (cpu(50, OPEN), step(OPEN), other("largest", "topics", 1_000, OPEN))),
)  # fmt: skip
