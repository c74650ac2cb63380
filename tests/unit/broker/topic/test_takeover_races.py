"""Takeovers that overlap, where the second one ends first, and subscriptions created while the topic is being lost."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from heliograph.actors.broker.cursor.recovery import create_cursor
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import TopicReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records import owned_record
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import HeliographError, ServiceNotReadyError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.store import Stat
from tests.unit.broker.fake_ledgers import FakeWriter
from tests.unit.broker.world import Outcomes, World, turns


def topic_on(world: World, store: MemoryStore, ledger: ManagedLedger) -> BrokerTopic:
    reader = TopicReader(ledger.chain, TailCache(1 << 20), world.ledgers)
    path = ledger._owned.path
    return BrokerTopic(world.topic, path, "/bundle", ledger, reader, store, world.ledgers, world.policies)


async def test_ids_grow_past_an_empty_ledger_that_left_the_chain(world: World, store: MemoryStore) -> None:
    """A cursor's mark may name that ledger: entries of a later ledger with a lower id would count as acknowledged (I11,
    I12)."""
    create, quicker = world.ledgers.create, list[ManagedLedger]()

    async def create_and_be_overtaken(
        *,
        ensemble_size: int,
        write_quorum: int,
        ack_quorum: int,
        properties: Mapping[str, str] | None = None,
        minimum_copies: int = 0,
    ) -> FakeWriter:
        writer = await create(
            ensemble_size=ensemble_size, write_quorum=write_quorum, ack_quorum=ack_quorum, properties=properties
        )
        if not quicker:
            world.ledgers.create = create  # type: ignore[method-assign]
            quicker.append(await world.open(await world.session()))
        return writer

    world.ledgers.create = create_and_be_overtaken  # type: ignore[method-assign]
    slow = await world.open(store)
    mark = quicker[0].chain.position_before(0)
    outcomes = Outcomes()
    outcomes.publish(slow, "a")
    await turns(lambda: bool(outcomes.confirmed))
    assert slow.chain.last_ledger_id > quicker[0].chain.last_ledger_id
    assert len(world.ledgers.deleted) == 1, "the first ledger of the attempt that was overtaken"
    assert slow.chain.after(Position(*mark)) == 0


async def test_a_slow_takeover_sees_that_a_quicker_one_came_after_it(world: World, store: MemoryStore) -> None:
    slow = await world.open(store)
    lost: list[HeliographError] = []
    slow.on_lost = lost.append
    await slow.check_ownership()
    await world.open(await world.session())
    with pytest.raises(ServiceNotReadyError):  # I13
        await slow.check_ownership()
    assert lost


async def test_subscriptions_are_not_loaded_from_a_topic_that_went_on(world: World, store: MemoryStore) -> None:
    """The ownership is checked after all cursors were recovered: a later owner recovers them later (I11)."""
    first = topic_on(world, store, await world.open(store))
    await first.subscribe("billing", start=0)
    slow_store = await world.session()
    slow = topic_on(world, slow_store, await world.open(slow_store))
    quick_store = await world.session()
    quick = topic_on(world, quick_store, await world.open(quick_store))
    with pytest.raises(ServiceNotReadyError):
        await slow.load_subscriptions()
    assert not slow.is_open
    assert not slow.subscriptions
    await quick.load_subscriptions()
    await quick.recoveries.all_recovered()
    assert quick.is_open
    assert set(quick.subscriptions) == {"billing"}


async def test_a_subscription_made_while_the_topic_is_lost_is_not_served(world: World, store: MemoryStore) -> None:
    topic = topic_on(world, store, await world.open(store))
    create = store.create

    async def lose_meanwhile(path: str, value: bytes | None = b"", **options: bool) -> str:
        made = await create(path, value, **options)
        topic.abandon(ServiceNotReadyError("the session was lost"))
        return made

    store.create = lose_meanwhile  # type: ignore[method-assign]
    with pytest.raises(ServiceNotReadyError):  # I13
        await topic.subscribe("billing", start=0)
    assert topic.subscriptions == {}


async def test_a_subscription_that_is_there_already_is_taken_over(world: World, store: MemoryStore) -> None:
    """Its creation succeeded and the reply was lost, or the previous owner created it at the last moment."""
    ledger = await world.open(store)
    topic = topic_on(world, store, ledger)
    await topic.load_subscriptions()
    old = await create_cursor(topic._place("billing"), 0, ledger.chain, await world.session(), world.ledgers, {})
    subscription = await topic.subscribe("billing", start=0)
    assert subscription.log is not None
    old.cursor.acknowledge(0)
    with pytest.raises(HeliographError):  # the previous owner has lost it
        await old.persist()


async def test_two_takeovers_that_change_nothing_are_told_apart(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reply to the write of the first is lost, and the write, too. The second one's must not look like it (I13)."""
    monkeypatch.setattr(owned_record, "RETRY_DELAY_S", 0.0)
    first, outcomes = await world.open(store), Outcomes()
    outcomes.publish(first, "a")
    await turns(lambda: bool(outcomes.confirmed))
    await first.close()
    slow_store, quicker = await world.session(), list[ManagedLedger]()
    write = slow_store.set

    async def lost(path: str, value: bytes | None, version: int = -1) -> Stat:
        if not quicker:
            quicker.append(await world.open(await world.session()))
            raise ConnectionLossError("the reply was lost")
        return await write(path, value, version)

    monkeypatch.setattr(slow_store, "set", lost)
    slow = await world.open(slow_store)
    assert slow.state is quicker[0].state is WriteState.DORMANT
    await slow.check_ownership()
    with pytest.raises(ServiceNotReadyError):
        await quicker[0].check_ownership()
