"""Topics that are lost, in whole or at their heads, in the middle of something else (I13, I14)."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from actors.broker.owned_cursors import OwnedCursors
from actors.broker.publication import WriteState
from actors.broker.subscription_type import SubscriptionType
from actors.broker.tail_cache import TailCache
from actors.broker.topic_entry import TopicEntry
from actors.errors import QuorumLostError
from heliograph.errors import HeliographError, ServiceNotReadyError
from heliograph.protocol.topic_name import TopicName
from metadata.memory import MemoryStore
from tests.unit.broker_clients import LoneBroker
from tests.unit.broker_world import Outcomes, World, turns
from tests.unit.test_broker_cancellations import Gate
from tests.unit.test_broker_feature_seams import OneTopic
from tests.unit.topic_world import listen, publish, run, topic_on

GONE = ServiceNotReadyError("the bundle went to another broker")


@pytest.mark.parametrize("is_late", [False, True])
def test_a_topic_that_is_lost_while_it_closes_delivers_nothing(is_late: bool) -> None:
    """Its consumers are still connected then; the next owner has others, and knows of other acknowledgements."""

    async def scenario(world: World, store: MemoryStore) -> None:
        topic = await topic_on(world, store)
        billing = await topic.subscribe("billing", start=0)
        await publish(topic.ledger, *"abc")
        consumer, heard = listen(billing, SubscriptionType.SHARED, permits=1)
        await turns(lambda: heard.keys == ["a"])
        gate = Gate(topic.ledger.writer.close)
        topic.ledger.writer.close = gate  # type: ignore[method-assign,assignment]
        if not is_late:
            world.ledgers.held = True
            Outcomes().publish(topic.ledger, "d")
        lost: list[bool] = []
        topic.on_lost = lambda: lost.append(True)
        closing = asyncio.create_task(topic.close())
        if is_late:
            await gate.arrived.wait()
            assert topic.ledger.state is WriteState.CLOSED
        else:
            await turns(lambda: not topic.subscriptions)
        topic.abandon(GONE)
        assert heard.is_closed
        assert lost == [True]
        billing.flow(consumer, 10)
        assert heard.keys == ["a"]
        done = billing.skip(1)
        assert done is not None
        assert isinstance(done.exception(), HeliographError)
        world.ledgers.held = False
        gate.open.set()
        await closing

    run(scenario)


def test_a_topic_that_is_lost_while_it_ends_stays_lost() -> None:
    async def scenario(world: World, store: MemoryStore) -> None:
        topic = await topic_on(world, store)
        gate = Gate(topic.ledger._owned.replace)
        topic.ledger._owned.replace = gate  # type: ignore[method-assign,assignment]
        ending = asyncio.create_task(topic.terminate())
        await gate.arrived.wait()
        topic.abandon(GONE)
        gate.open.set()
        with pytest.raises(ServiceNotReadyError):
            await ending
        assert topic.ledger.state is WriteState.CLOSED
        assert not topic.is_open

    run(scenario)


def test_who_waits_for_a_topic_that_is_not_loaded_any_more_is_told_so() -> None:
    async def scenario(lone: LoneBroker) -> None:
        name, topics = TopicName.parse("orders"), lone.broker.topics
        gate = Gate(lone.ledgers.create)
        lone.ledgers.create = gate  # type: ignore[method-assign,assignment]
        waiting = asyncio.create_task(topics.get(name))
        await gate.arrived.wait()
        topics.abandon_all(ServiceNotReadyError("this broker lost its session"))
        lone.ledgers.create = gate.method  # type: ignore[method-assign,assignment]
        with pytest.raises(ServiceNotReadyError):
            await waiting
        assert (await topics.get(name)).is_open

    with LoneBroker("orders") as lone:
        lone.run(scenario(lone))


def test_cursors_of_an_opening_that_failed_are_taken_over_no_more() -> None:
    """One that is still under way would take its cursor from the next opening."""

    async def scenario(world: World, store: MemoryStore) -> None:
        topic = await topic_on(world, store)
        await publish(topic.ledger, "a", "b")
        for name in ("fast", "slow"):
            done = (await topic.subscribe(name, start=0)).skip(1)
            assert done is not None
            await done
        ids = {name: topic.subscriptions[name].log.ledger_id for name in ("fast", "slow")}  # type: ignore[union-attr]
        await topic.close()
        recover = world.ledgers.recover
        slow = Gate(recover)

        async def recover_or_fail(ledger_id: int) -> object:
            if ledger_id == ids["fast"]:
                await slow.arrived.wait()
                raise QuorumLostError("not now")
            return await (slow(ledger_id) if ledger_id == ids["slow"] else recover(ledger_id))

        world.ledgers.recover = recover_or_fail  # type: ignore[method-assign,assignment]
        opening = asyncio.create_task(topic_on(world, await world.session()))
        await slow.arrived.wait()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not opening.done()
        slow.open.set()
        with pytest.raises(QuorumLostError):
            await opening

    run(scenario)


def test_a_place_by_time_is_found_while_the_head_of_the_topic_is_trimmed() -> None:
    """Who looks for something old looks at the head, just where ledgers go."""

    async def scenario(world: World, store: MemoryStore) -> None:
        world.policies = replace(world.policies, ledger_entries_max=3, retention_seconds=0)
        topic = await topic_on(world, store)
        await publish(topic.ledger, *"abcdefghi", times=[*range(1, 10)])
        await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)
        topic.reader._cache = TailCache(1)
        reading = Gate(world.ledgers.open)
        world.ledgers.open = reading  # type: ignore[method-assign,assignment]
        looking = asyncio.create_task(topic.index_at_time(1))
        await reading.arrived.wait()
        assert await topic.trim() > 0
        reading.open.set()
        assert await looking == topic.ledger.chain.first > 0

    run(scenario)


def test_messages_that_are_trimmed_while_they_are_shown_are_left_out() -> None:
    async def scenario(world: World, store: MemoryStore) -> None:
        world.policies = replace(world.policies, ledger_entries_max=3, retention_seconds=0)
        topic = await topic_on(world, store)
        await publish(topic.ledger, *"abcdefghi")
        await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)
        await topic.subscribe("reader", start=0, is_durable=False)
        admin = OwnedCursors(OneTopic(topic)).methods  # type: ignore[arg-type]
        reads = topic.reader.entry

        async def read_and_trim(index: int) -> TopicEntry:
            entry = await reads(index)
            await topic.trim()
            return entry

        topic.reader.entry = read_and_trim  # type: ignore[method-assign]
        shown = await admin["peek"](topic.name, "reader", 10)
        first = topic.ledger.chain.first
        assert first > 0
        assert len(shown) == 1 + topic.ledger.chain.end - first

    run(scenario)
