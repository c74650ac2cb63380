"""Bookies and a broker on etcd and on ZooKeeper: they coordinate as on the embedded store."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.session import BrokerSessions
from heliograph.base.errors import ConflictError, ServiceNotReadyError
from heliograph.metadata.connect import connect_renewing_store, connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.recipes.occupancy import require_vacant
from heliograph.metadata.store import MetadataStore
from tests.contracts.metadata import etcd_server, zookeeper_server
from tests.waits import until

DEADLINE_SECONDS = 60
TIMEOUT_MS = 60_000


def zookeeper_url() -> str:
    return f"zk://{zookeeper_server.shared_server().address}/{uuid.uuid4().hex}"


def etcd_url() -> str:
    return f"etcd://{etcd_server.shared_server().address}/{uuid.uuid4().hex}"


ON = [
    pytest.param(etcd_url, id="etcd"),
    pytest.param(
        zookeeper_url,
        id="zookeeper",
        marks=pytest.mark.skipif(bool(zookeeper_server.missing()), reason=zookeeper_server.missing()),
    ),
]


@pytest.mark.parametrize("make_url", ON)
async def test_messages_survive_the_session_of_their_broker(tmp_path: Path, make_url: Callable[[], str]) -> None:
    url = make_url()
    observer = await connect_store(url)
    await initialise(observer)
    bookies, stores = [], []
    for number in range(3):
        folder = tmp_path / str(number)
        store = await connect_renewing_store(url, session_timeout_ms=TIMEOUT_MS)
        stores.append(store)
        config = BookieConfig(f"b{number}", (folder / "journal",), (folder / "data",))
        bookies.append(Bookie(config, store))
        await bookies[-1].start()
    sessions = BrokerSessions(BrokerConfig("only", session_timeout_ms=TIMEOUT_MS), url)
    await sessions.start()
    with pytest.raises(ConflictError):
        await require_vacant(observer, [], 0)
    assert len(await publish(sessions, [b"a", b"b"])) == 2

    await end(observer, sessions._store)
    assert len(await publish(sessions, [b"c"])) == 1
    await end(observer, stores[0])  # a bookie's: it registers again
    assert len(await publish(sessions, [b"d"])) == 1
    ranges = await sessions.broker.admin.ledger_ranges("topic")
    assert [one["last_entry_id"] for one in ranges] == [2], "the topic was not closed"  # two messages in one entry

    await sessions.stop()
    for bookie in bookies:
        await bookie.stop()
    for bookie in bookies:
        assert bookie._registrar is not None
        await bookie._registrar.store.close()
    await require_vacant(observer, [], 0)  # nothing is left, and nobody comes back
    await observer.close()


async def publish(sessions: BrokerSessions, messages: list[bytes]) -> list[str]:
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            try:
                return await sessions.broker.admin.publish("topic", messages)
            except ServiceNotReadyError:  # between two sessions
                await asyncio.sleep(0.05)


async def end(observer: MetadataStore, store: MetadataStore | None) -> None:
    """End a session from outside, and wait until its owner has another one."""
    assert store is not None, "there is a session"
    session_id = store.session_id
    await observer.end_session(store.session_token)
    await until(lambda: store.session_id != session_id)
