"""The probe of a broker: it goes the whole way, sees what is wrong, and leaves nothing behind."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.actors.broker import probe as module
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.probe import Probe
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import PersistenceError, ServiceNotReadyError
from heliograph.metadata.backends.memory import MemoryStore
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.world import World
from tests.waits import until


def probe_of(world: World, store: MemoryStore) -> Probe:
    return Probe("broker-1", store, world.ledgers, Catalog(store))


async def test_each_round_publishes_and_consumes_and_a_stop_leaves_nothing(world: World, store: MemoryStore) -> None:
    probe = probe_of(world, store)
    for _ in range(3):
        await probe.round()
    assert (probe.rounds, probe.failures, probe.is_failing) == (3, 0, False)
    assert sum(probe.latency.counts) == 3
    assert sum(len(ledger.entries) for ledger in world.ledgers.ledgers.values()) == 3
    await probe.stop()
    assert await store.exists(probe._path) is None
    assert {*world.ledgers.ledgers} <= {*world.ledgers.deleted}


async def test_a_failure_is_noted_and_the_next_round_begins_with_a_new_ledger(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    probe = probe_of(world, store)
    await probe.round()
    world.ledgers.fail_create = PersistenceError("no bookies")
    world.ledgers.fail_adds = PersistenceError("no bookies")
    with monkeypatch.context() as patch:
        patch.setattr(module, "ROUND_SECONDS_MAX", 0.2)  # which these two rounds wait for
        await probe.round()
        assert (probe.failures, probe.is_failing) == (1, True)
        await probe.round()
        assert (probe.failures, probe.is_failing) == (2, True)
    world.ledgers.fail_create = world.ledgers.fail_adds = None
    await probe.round()
    assert (probe.rounds, probe.failures, probe.is_failing) == (4, 2, False)
    await probe.stop()


async def test_a_message_that_does_not_come_back_is_a_failure(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROUND_SECONDS_MAX", 0.2)
    probe = probe_of(world, store)
    monkeypatch.setattr(module.ProbeChannel, "push", lambda *arguments: None)
    await probe.round()
    assert probe.is_failing


async def test_a_later_process_goes_on_where_one_was_killed(world: World, store: MemoryStore) -> None:
    killed = probe_of(world, store)
    await killed.round()
    later = probe_of(world, await world.session())
    await later.round()
    assert not later.is_failing
    await killed.round()  # its ledger is fenced
    assert killed.is_failing


async def test_it_rests_until_an_interval_is_set(world: World, store: MemoryStore) -> None:
    probe = probe_of(world, store)
    probe.start()
    await asyncio.sleep(0)
    assert probe.rounds == 0
    probe.interval.set(0.001)
    await until(lambda: probe.rounds)
    await probe.stop()


async def test_a_topic_that_was_lost_between_two_rounds_is_opened_again(world: World, store: MemoryStore) -> None:
    """A new ledger that is begun after a round may fail later."""
    probe = probe_of(world, store)
    await probe.round()
    assert probe._topic is not None
    probe._topic.ledger.lose(ServiceNotReadyError("the record was changed"))
    await probe.round()
    assert (probe.rounds, probe.failures) == (2, 0)
    await probe.stop()
    assert world.ledgers.kept_writers == []


async def test_a_bug_in_the_probe_shows_as_failing_and_ends_neither_it_nor_the_broker(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*arguments: object) -> None:
        raise LookupError("a bug")

    probe = probe_of(world, store)
    probe.interval.set(0.001)
    monkeypatch.setattr(module, "publish", broken)
    probe.start()
    await until(lambda: probe.failures >= 2)
    assert probe.is_failing
    monkeypatch.undo()
    await until(lambda: not probe.is_failing)
    monkeypatch.setattr(module, "mark_deleting", broken)
    await probe.stop()
    assert "the probe left its topic behind: LookupError('a bug')" in caplog.text


@pytest.mark.parametrize("ends_by", ["timeout", "stop"])
async def test_a_round_that_ends_while_the_topic_is_being_opened_leaves_no_writer(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch, ends_by: str
) -> None:
    opening = asyncio.Event()

    async def stuck(topic: BrokerTopic) -> None:
        opening.set()
        await asyncio.get_running_loop().create_future()

    monkeypatch.setattr(BrokerTopic, "load_subscriptions", stuck)
    probe = probe_of(world, store)
    if ends_by == "timeout":
        monkeypatch.setattr(module, "ROUND_SECONDS_MAX", 0.2)
        await probe.round()
        assert probe.is_failing
    else:
        probe.interval.set(0.001)
        probe.start()
        await opening.wait()
        await probe.stop()
    assert world.ledgers.kept_writers == []


async def test_a_broker_stops_its_probe_after_everything_that_clients_wait_for(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[object] = []
    async with LoneBroker() as lone:
        broker = lone.broker
        parts = (broker.topics, broker.ownership, broker._server, broker._probe)
        for part in parts:

            async def stop(*arguments: object, part: object = part, real: Any = part.stop) -> None:
                stopped.append(part)
                await real(*arguments)

            monkeypatch.setattr(part, "stop", stop)
    assert stopped == list(parts)
