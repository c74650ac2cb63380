"""A broker outlives its session: its open topics are served on, and it takes its bundles back in the next one (I13)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.session import BrokerSessions
from heliograph.actors.broker.topic.state import TopicState
from heliograph.base.errors import InvalidConfigError, ServiceNotReadyError
from heliograph.metadata import paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import SessionState
from tests.waits import until

DEADLINE_SECONDS = 60


@asynccontextmanager
async def only_broker(tmp_path: Path) -> AsyncIterator[tuple[MemoryServer, BrokerSessions]]:
    """One broker and three bookies on metadata in memory."""
    name = f"session{str(tmp_path).replace('/', '-')}".lower()
    server = MemoryServer.named(name)
    await initialise(server.open_session())
    bookies = []
    for number in range(3):
        folder = tmp_path / str(number)
        config = BookieConfig(f"b{number}", (folder / "journal",), (folder / "data",))
        bookies.append(Bookie(config, server.open_session()))
        await bookies[-1].start()
    sessions = BrokerSessions(BrokerConfig("only"), f"memory://{name}")
    await sessions.start()
    try:
        yield server, sessions
    finally:
        await sessions.stop()
        for bookie in bookies:
            await bookie.stop()


async def entries_of(sessions: BrokerSessions, topic: str) -> list[int]:
    """Return how many entries each ledger of a topic has."""
    return [one["last_entry_id"] + 1 for one in await sessions.broker.admin.ledger_ranges(topic)]


async def test_open_topics_are_served_over_the_end_of_a_session(tmp_path: Path) -> None:
    async with only_broker(tmp_path) as (server, sessions):
        admin, store = sessions.broker.admin, sessions._store
        assert store is not None
        assert len(await admin.publish("topic", [b"a"])) == 1
        (topic,) = sessions.broker.topics.loaded
        server.expire_session(store.session_id)
        (still,) = sessions.broker.topics.loaded
        assert still is topic
        assert topic.is_open
        await until(lambda: store.state is SessionState.CONNECTED)
        assert len(await admin.publish("topic", [b"b"])) == 1
        await until(lambda: sessions.broker.ownership.admits(topic.bundle))
        assert await entries_of(sessions, "topic") == [2], "the topic was not closed"
        observer = server.open_session()
        stat = await observer.exists(topic.bundle)
        assert stat is not None
        assert stat.ephemeral_owner == store.session_id
        assert await observer.exists(paths.broker_available("only"))
    with pytest.raises(ServiceNotReadyError):
        sessions.broker  # noqa: B018 - the property is what is tested


async def test_a_topic_that_another_broker_took_over_meanwhile_is_opened_again(tmp_path: Path) -> None:
    """The bundle has no owner when this broker is back, but the record of one topic tells of one (I9, I11, I13)."""
    async with only_broker(tmp_path) as (server, sessions):
        admin, store = sessions.broker.admin, sessions._store
        assert store is not None
        await admin.publish("topic", [b"a"])
        await admin.publish("other", [b"a"])
        topics = {topic.name.local_name: topic for topic in sessions.broker.topics.loaded}
        observer = server.open_session()
        record, stat = await observer.get(topics["topic"].path)
        await observer.set(topics["topic"].path, record, stat.version)  # as any takeover does
        server.expire_session(store.session_id)
        await until(lambda: topics["topic"].state is TopicState.LOST)
        await until(lambda: sessions.broker.ownership.admits(topics["topic"].bundle))
        await until(lambda: sessions.broker.ownership.admits(topics["other"].bundle))
        assert topics["other"].is_open
        await admin.publish("topic", [b"b"])
        assert await entries_of(sessions, "topic") == [1, 1]
        assert await entries_of(sessions, "other") == [1]


@pytest.mark.parametrize(
    ("field", "value"), [("broker_id", "a/b"), ("port", 70_000), ("cache_bytes", 0), ("max_message_bytes", 6 << 20)]
)
def test_settings_out_of_range(field: str, value: object) -> None:
    settings = {"broker_id": "b", field: value}
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field
