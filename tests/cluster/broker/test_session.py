"""A broker process outlives its session: it drops everything, then serves again on the same port (I13)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.session import BrokerSessions
from heliograph.base.errors import InvalidConfigError, ServiceNotReadyError
from heliograph.metadata import paths
from heliograph.metadata.backends.memory.store import MemoryServer
from heliograph.metadata.recipes.cluster_init import initialise

DEADLINE_SECONDS = 60


def test_a_lost_session_is_replaced(tmp_path: Path) -> None:
    async def scenario() -> None:
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
        address = await sessions.start()
        first = sessions.broker
        assert len(await first.admin.publish("topic", [b"a", b"b"])) == 2
        store = sessions._store
        assert store is not None
        served_at_takeover: list[int] = []
        observer = server.open_session()
        await observer.watch(paths.BUNDLES, lambda _: served_at_takeover.append(len(list(first.topics.loaded))))
        server.expire_session(store.session_id)
        assert list(first.topics.loaded) == []  # I13: at once
        assert served_at_takeover
        assert not any(served_at_takeover)  # I13: before anybody could see the bundle free
        with pytest.raises(ServiceNotReadyError):
            await first.admin.publish("topic", [b"c"])
        renewing = sessions._renewing
        assert renewing is not None
        await asyncio.wait_for(renewing, DEADLINE_SECONDS)
        assert sessions.broker.service_url == address
        ids = await sessions.broker.admin.publish("topic", [b"c"])
        ranges = await sessions.broker.admin.ledger_ranges("topic")
        assert [one["last_entry_id"] for one in ranges] == [0, 0]
        assert ids[0].startswith(str(ranges[-1]["ledger_id"]))
        await sessions.stop()
        assert sessions._renewing is renewing, "the end that was asked for is no loss"
        with pytest.raises(ServiceNotReadyError):
            sessions.broker  # noqa: B018 - the property is what is tested
        for bookie in bookies:
            await bookie.stop()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("field", "value"), [("broker_id", "a/b"), ("port", 70_000), ("cache_bytes", 0), ("max_message_bytes", 6 << 20)]
)
def test_settings_out_of_range(field: str, value: object) -> None:
    settings = {"broker_id": "b", field: value}
    with pytest.raises(InvalidConfigError) as caught:
        BrokerConfig(**settings)  # type: ignore[arg-type]
    assert caught.value.field == field
