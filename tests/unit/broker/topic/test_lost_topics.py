"""Topics that are lost, or trimmed at the head, in the middle of another operation (I13, I14)."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.actors.broker.admin.owned_cursors import OwnedCursors
from heliograph.actors.broker.cursor.recovery import create_cursor
from heliograph.actors.broker.managed_ledger.read_ahead import SubscriptionReadAhead
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.errors import NoSuchLedgerError
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.topic.test_cancellations import Gate
from tests.unit.broker.topic.test_feature_seams import OneTopic
from tests.unit.broker.topic_world import listen, publish, rolled
from tests.unit.broker.world import Outcomes, World, turns

GONE = ServiceNotReadyError("the bundle went to another broker")


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_topic_that_is_lost_while_it_closes_delivers_nothing(
    topic: BrokerTopic, world: World, is_late: bool
) -> None:
    """Its consumers are still connected then. The next owner has other consumers and other acknowledgements."""
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
    topic.on_lost = lambda topic: lost.append(True)
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


async def test_a_topic_that_is_lost_while_it_ends_stays_lost(topic: BrokerTopic) -> None:
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


async def test_callers_that_wait_for_an_abandoned_topic_are_told_so() -> None:
    async with LoneBroker("orders") as lone:
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


async def test_an_index_by_time_is_found_while_the_head_of_the_topic_is_trimmed(
    world: World, store: MemoryStore
) -> None:
    """A search for an old time reads at the head, which trimming removes."""
    topic = await rolled(world, store, "abcdefghi", times=[*range(1, 10)])
    assert isinstance(topic.reader, TopicReader)
    topic.reader._cache = TailCache(1)
    reading = Gate(world.ledgers.open)
    world.ledgers.open = reading  # type: ignore[method-assign,assignment]
    looking = asyncio.create_task(topic.index_at_time(1))
    await reading.arrived.wait()
    assert await topic.trim() > 0
    reading.open.set()
    assert await looking == topic.ledger.chain.first > 0


async def test_messages_that_are_trimmed_while_they_are_shown_are_left_out(world: World, store: MemoryStore) -> None:
    topic = await rolled(world, store, "abcdefghi")
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


async def test_an_entry_that_is_trimmed_while_it_is_shown_is_shown(world: World, store: MemoryStore) -> None:
    topic = await rolled(world, store, "abcd")
    await topic.subscribe("reader", start=0, is_durable=False)
    reads, first = topic.reader.entry, topic.ledger.chain.position_at(0)

    async def read_and_trim(index: int) -> TopicEntry:
        entry = await reads(index)
        await topic.trim()
        return entry

    topic.reader.entry = read_and_trim  # type: ignore[method-assign]
    admin = OwnedCursors(OneTopic(topic)).methods  # type: ignore[arg-type]
    (shown,) = await admin["peek"](topic.name, "reader", 1, True)
    assert shown["message_id"].startswith(str(first))
    assert topic.ledger.chain.first > 0


async def test_an_entry_that_is_trimmed_while_its_ledger_is_looked_up_can_be_asked_for_again(
    world: World, store: MemoryStore
) -> None:
    topic = await rolled(world, store, "abcd")
    chain = topic.ledger.chain

    async def trim_instead(index: int) -> None:
        await topic.trim()

    chain.load_index = trim_instead  # type: ignore[method-assign]
    admin = OwnedCursors(OneTopic(topic)).methods  # type: ignore[arg-type]
    with pytest.raises(ServiceNotReadyError, match="trimmed meanwhile"):
        await admin["examine"](topic.name, "earliest", 1)


async def test_a_read_ahead_that_waits_for_its_room_while_its_entries_are_trimmed_ends(
    world: World, store: MemoryStore
) -> None:
    """The subscription hears of its end, and goes on with what is kept."""
    topic = await rolled(world, store, "abcd")
    budget = topic.reader.budget
    room = Gate(budget.begin_read)
    budget.begin_read = room  # type: ignore[method-assign,assignment]
    ended: list[int] = []
    ahead = SubscriptionReadAhead(topic.ledger.chain, topic.reader, lambda: ended.append(1))
    ahead.start_at(0, is_replay=False)
    await room.arrived.wait()
    assert await topic.trim() > 0
    room.open.set()
    await turns(lambda: ended == [1])
    assert (budget.bytes, ahead._entries) == (0, {})
    with pytest.raises(NoSuchLedgerError):
        await topic.reader.entry(0)


async def test_what_a_subscription_needs_is_kept_from_the_moment_it_is_being_made(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await rolled(world, store, "abcd")
    gate = Gate(create_cursor)
    monkeypatch.setattr("heliograph.actors.broker.topic.topic.create_cursor", gate)
    making = asyncio.create_task(topic.subscribe("billing", start=0))
    await gate.arrived.wait()
    assert await topic.trim() == 0  # I14
    gate.open.set()
    billing = await making
    assert billing.backlog == 4
    billing.skip(None)
    assert await topic.trim() == 1


async def test_what_a_subscription_needs_is_kept_if_it_is_made_while_trimming_reads_the_chain(
    world: World, store: MemoryStore
) -> None:
    topic = await rolled(world, store, "abcd")
    reading = Gate(topic.ledger._owned.head)
    topic.ledger._owned.head = reading  # type: ignore[method-assign,assignment]
    trimming = asyncio.create_task(topic.trim())
    await reading.arrived.wait()
    billing = await topic.subscribe("billing", start=0)
    reading.open.set()
    assert await trimming == 0  # I14
    assert billing.backlog == 4
