"""Settings that change while brokers run: the record, and that each broker acts by it."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.actors.broker.broker import Broker
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.dynamic.live_config import LiveConfig
from heliograph.base.errors import BadRequestError, InvalidConfigError
from heliograph.metadata import codec, paths
from heliograph.metadata.operator_records import BrokerSettings
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.world import World, turns


async def follower(world: World, config: BrokerConfig) -> LiveConfig:
    live = LiveConfig(config, await world.session())
    await live.start()
    return live


async def test_a_change_reaches_all_and_outlives_them(world: World) -> None:
    first = await follower(world, BrokerConfig("a"))
    second = await follower(world, BrokerConfig("b", connections_max=50))
    assert await first.set("brokerMaxConnections", "7") == "connections_max"
    await turns(lambda: first.current.connections_max == second.current.connections_max == 7)
    await second.set("balance.shed_gap", "0.5")
    await turns(lambda: first.current.balance.shed_gap == 0.5)
    assert await first.values() == {"connections_max": "7", "balance.shed_gap": "0.5"}
    third = await follower(world, BrokerConfig("c"))
    assert (third.current.connections_max, third.current.balance.shed_gap) == (7, 0.5)
    await third.unset("brokerMaxConnections")
    await turns(lambda: second.current.connections_max == 50)
    await turns(lambda: first.current.connections_max == BrokerConfig("a").connections_max)
    assert await second.values() == {"balance.shed_gap": "0.5"}


async def test_what_is_refused_changes_nothing(world: World) -> None:
    live = await follower(world, BrokerConfig("a"))
    for name, value in (("connection_max", "7"), ("connections_max", "-1")):
        with pytest.raises(InvalidConfigError):
            await live.set(name, value)
    with pytest.raises(BadRequestError):
        await live.set("connections_max", "1" * 1_000)
    with pytest.raises(InvalidConfigError):
        await live.unset("connection_max")
    await live.unset("connections_max")
    assert await live.values() == {}


async def test_what_a_broker_of_this_version_cannot_apply_is_ignored(world: World) -> None:
    store = await world.session()
    values = {"of_a_later_version": "1", "connections_max": "7", "keep_alive_seconds": "never"}
    await store.create(paths.BROKER_SETTINGS, codec.encode(BrokerSettings(values)), parents=True)
    live = await follower(world, BrokerConfig("a"))
    assert live.current == BrokerConfig("a", connections_max=7)


async def test_a_broker_acts_by_changed_settings_at_once(world: World) -> None:
    store = await world.session()
    broker = Broker(BrokerConfig("a", housekeeping_seconds=3_600.0), store, world.ledgers)
    await broker.start()
    try:
        admin = broker.admin
        changes = {
            "cache_bytes": "1000",
            "publish_messages_per_second": "5",
            "publish_bytes_max": "77",
            "failover_delay_seconds": "0.5",
            "key_shared_splits_ranges": "true",
            "idle_topic_seconds": "9.0",
            "default_retention_seconds": "60",
            "defaults.message_ttl_seconds": "70",
            "defaults.auto_create_topics": "false",
            "split.topics": "3",
            "connections_max": "4",
        }
        for name, value in changes.items():
            await admin.settings.set(name, value)
        await turns(lambda: broker.config.connections_max == 4)
        assert broker._cache.bytes_max == 1_000
        assert broker._publish_budget.bytes_max == 77
        assert broker._publish_budget.is_rated
        assert broker.topics.setting.consumers.failover_delay_seconds == 0.5
        assert broker.topics.setting.consumers.splits_keys
        assert broker.upkeep.idle.unload_seconds == 9
        assert broker._context is not None
        assert broker._context.config is broker.config
        policies = await broker._catalog.policies(TopicName.parse("t"))
        assert (policies.retention_seconds, policies.message_ttl_seconds) == (60, 70)
        assert not policies.auto_create_topics
        shown = await admin.brokers.configuration("a")
        assert {name: shown[name] for name in changes} == changes
        rows = {row["name"]: row for row in await admin.settings.live()}
        assert rows["connections_max"]["changed_to"] == rows["connections_max"]["pulsar_value"] == "4"
        assert rows["keep_alive_seconds"]["changed_to"] is None
        await admin.settings.unset("publish_messages_per_second")
        await turns(lambda: not broker._publish_budget.is_rated)
    finally:
        await broker.stop()


async def test_a_shorter_interval_does_not_wait_for_the_end_of_the_longer_one(world: World) -> None:
    broker = Broker(BrokerConfig("a", housekeeping_seconds=3_600.0), await world.session(), world.ledgers)
    await broker.start()
    try:
        done = asyncio.Event()

        async def housekeep() -> None:
            done.set()

        broker.upkeep.round = housekeep  # type: ignore[method-assign]
        await broker.admin.settings.set("housekeeping_seconds", "0.01")
        await asyncio.wait_for(done.wait(), 60)
    finally:
        await broker.stop()
