"""Features that meet in one topic: closing and trimming, termination and failed writers, compaction and every request
that moves cursors. Ledgers and metadata are in memory; nothing sleeps."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.broker.admin.owned_cursors import OwnedCursors
from heliograph.actors.broker.cursor.log import CursorLog
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.producers.access import ProducerAccess
from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.actors.broker.producers.topic_producers import TopicProducers
from heliograph.actors.broker.subscription.message_count import ReadAllowance
from heliograph.actors.broker.subscription.subscription import COMPACTION
from heliograph.actors.broker.topic.series import oldest_ms, topic_series
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.actors.broker.upkeep.idle_topics import is_in_use
from heliograph.actors.errors import QuorumLostError
from heliograph.base.clock import wall_ms
from heliograph.base.errors import PersistenceError, ServiceNotReadyError, UnsupportedError
from heliograph.metadata.backends.memory import MemoryStore
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import Persistence, TopicRecord
from heliograph.metadata.store import Operation
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.clients import LoneBroker
from tests.unit.broker.producers.test_access import Channel
from tests.unit.broker.topic_world import finish, let_pass, publish, rolled, topic_on
from tests.unit.broker.world import Outcomes, World, turns


async def test_nothing_is_trimmed_while_a_topic_is_being_closed(world: World, store: MemoryStore) -> None:
    """Its subscriptions are not listed any more by then, and still need their ledgers (I14)."""
    world.policies = replace(world.policies, ledger_entries_max=3, retention_seconds=0)
    topic = await topic_on(world, store)
    await topic.subscribe("billing", start=0)
    await publish(topic.ledger, *"abcdefg")
    await turns(lambda: sum(not info.closed_ms for info in topic.ledger.record.ledgers) == 1)
    world.ledgers.held = True
    Outcomes().publish(topic.ledger, "late")
    async with topic.ledger._record_lock:
        waiting = asyncio.create_task(topic.trim())
        await asyncio.sleep(0)
        closing = asyncio.create_task(topic.close())
        await turns(lambda: not topic.subscriptions)
    assert await waiting == 0
    assert await topic.trim() == 0
    world.ledgers.held = False
    topic.ledger.writer.release()  # type: ignore[attr-defined]
    await closing
    again = await topic_on(world, await world.session())
    assert again.subscriptions["billing"].backlog == 8


async def test_a_cursor_that_comes_while_a_trim_waits_keeps_its_ledgers(world: World, store: MemoryStore) -> None:
    topic = await rolled(world, store, "abcdefg")
    async with topic.ledger._record_lock:
        trimming = asyncio.create_task(topic.trim())
        await asyncio.sleep(0)
        billing = await topic.subscribe("billing", start=0)
    assert await trimming == 0  # I14
    assert topic.ledger.chain.first == billing.cursor.mark == 0


async def with_an_end_not_stored(world: World, store: MemoryStore) -> ManagedLedger:
    """Return a topic whose second ledger is in use while metadata does not have the end of the first one yet."""
    world.policies = replace(world.policies, ledger_entries_max=2)
    ledger = await world.open(store)
    replace_record, calls = ledger._owned.replace, 0

    async def fail_second(record: TopicRecord, also: Sequence[Operation] = ()) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise ConnectionLossError("metadata is out of reach")
        await replace_record(record, also)

    ledger._owned.replace = fail_second  # type: ignore[method-assign]
    outcomes = Outcomes()
    outcomes.publish(ledger, "a", "b")
    await turns(lambda: calls == 2 and len(outcomes.confirmed) == 2)
    assert [bool(info.closed_ms) for info in ledger.record.ledgers] == [False, False]
    outcomes.publish(ledger, "c")
    await turns(lambda: len(outcomes.confirmed) == 3)
    return ledger


async def test_a_topic_that_was_ended_over_an_unnoted_ledger_opens_again(world: World, store: MemoryStore) -> None:
    ledger = await with_an_end_not_stored(world, store)
    await ledger.terminate()
    again = await world.open(await world.session())
    assert again.state is WriteState.TERMINATED
    assert world.contents(again) == ["a", "b", "c"]  # I12


async def test_a_topic_whose_writer_failed_over_an_unnoted_ledger_opens_again(world: World, store: MemoryStore) -> None:
    ledger, outcomes = await with_an_end_not_stored(world, store), Outcomes()
    world.ledgers.held = True
    outcomes.publish(ledger, "d")
    world.ledgers.held = False
    ledger.writer.fail(QuorumLostError("bookies are gone"))  # type: ignore[attr-defined]
    await turns(lambda: len(outcomes.confirmed) == 1)
    again = await world.open(await world.session())
    assert world.contents(again) == ["a", "b", "c", "d"]  # I12


async def test_a_topic_closes_at_once_when_recovery_confirmed_all_that_was_pending(
    world: World, store: MemoryStore
) -> None:
    ledger, outcomes = await world.open(store), Outcomes()
    world.ledgers.held, world.ledgers.recovery_keeps = True, 1
    outcomes.publish(ledger, "a")
    closing = asyncio.create_task(ledger.close())
    await asyncio.sleep(0)
    ledger.writer.fail(QuorumLostError("bookies are gone"))  # type: ignore[attr-defined]
    world.ledgers.held = False
    await turns(lambda: len(outcomes.confirmed) == 1)
    await turns(closing.done)


async def test_a_producer_that_was_closed_while_it_joined_is_not_let_in() -> None:
    """It would send and never get a receipt."""

    async def store(epoch: int) -> None:
        return None

    members, settled = TopicProducers("topic", ProducerAccess(), store), asyncio.Event()

    async def joined(producer: TopicProducer) -> None:
        await settled.wait()

    members.on_joined = joined
    producer = TopicProducer(1, "p", 0, Channel())
    joining = asyncio.create_task(members.admit(producer, "b"))
    await turns(lambda: "p" in members.connected)
    members.disconnect(ServiceNotReadyError("the quota is used up"))
    settled.set()
    with pytest.raises(ServiceNotReadyError):
        await joining
    assert not members.connected


class OneTopic:
    """``Topics`` with one loaded topic."""

    def __init__(self, topic: BrokerTopic) -> None:
        self._topic = topic

    async def get(self, name: TopicName) -> BrokerTopic:
        return self._topic


async def compacted(world: World, store: MemoryStore) -> BrokerTopic:
    """Return a topic of which two of five messages are left and three came later; ``state`` reads the compacted
    form."""
    topic = await topic_on(world, store)
    await publish(topic.ledger, *"aabab", times=[1, 2, 3, 4, 5])
    topic.compaction.start()
    await finish(topic)
    assert topic.compaction.status.status == "SUCCESS"
    await publish(topic.ledger, *"cde", times=[6, 7, 8])
    await topic.subscribe("state", start=0, view=await topic.view(True))
    return topic


async def test_admin_places_cursors_of_the_compacted_form(world: World, store: MemoryStore) -> None:
    topic = await compacted(world, store)
    admin = OwnedCursors(OneTopic(topic)).methods  # type: ignore[arg-type]
    found, base = topic.subscriptions["state"], topic.ledger.chain
    shown = await admin["peek"](topic.name, "state", 10)
    assert [bytes(one["payload"]) for one in shown] == [b"3", b"4", b"0", b"1", b"2"]
    await admin["reset_to_time"](topic.name, "state", 7)
    assert found.backlog == 2
    await admin["reset_to_id"](topic.name, "state", str(base.position_at(5)) + ":-1", False)
    assert found.backlog == 3
    await admin["reset_to_id"](topic.name, "state", str(base.position_at(5)) + ":-1", True)
    assert found.backlog == 2
    await admin["reset_to_id"](topic.name, "state", "-1:-1:-1", False)
    assert found.backlog == 5
    await admin["expire_to"](topic.name, "state", str(base.position_at(0)) + ":-1", False)
    assert found.backlog == 5
    await admin["skip"](topic.name, "state", 3)
    assert found.backlog == 2


async def test_the_oldest_entry_of_the_compacted_form_has_an_age(world: World, store: MemoryStore) -> None:
    """Compaction has read the whole topic, so that its own chain has no entry after the horizon."""
    topic = await compacted(world, store)
    topic.compaction.start()
    await finish(topic)
    before = wall_ms()
    found = await topic.subscribe("late", start=0, view=await topic.view(True))
    assert found.topic_mark == topic.ledger.chain.end
    assert before - 60_000 < (await oldest_ms(found, ReadAllowance()) or 0) <= wall_ms()
    found.skip(2)
    assert (await topic_series([topic]))[0]["heliograph_subscription_oldest_unacknowledged_seconds"]
    trimmed: Any = SimpleNamespace(first=9, end=9)
    found.chain = trimmed
    assert found.backlog, "the cursor does not know yet that all is trimmed"
    assert await oldest_ms(found, ReadAllowance()) == 0


async def test_expiring_all_subscriptions_leaves_what_compaction_has_not_seen(world: World, store: MemoryStore) -> None:
    topic = await compacted(world, store)
    admin = OwnedCursors(OneTopic(topic)).methods  # type: ignore[arg-type]
    assert topic.subscriptions[COMPACTION].backlog == 3
    let_pass(topic, 2)
    await admin["expire"](topic.name, None, 1)
    assert topic.subscriptions["state"].backlog == 0
    assert topic.subscriptions[COMPACTION].backlog == 3  # I14: they are needed for the next compaction


async def test_readers_follow_a_compaction_whose_mark_could_not_be_stored(
    world: World, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ledger that they read is about to be deleted, whether the mark was stored or not."""
    topic = await compacted(world, store)

    def refuse(log: CursorLog) -> asyncio.Future[None]:
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if log is topic.subscriptions[COMPACTION].log:
            refused.set_exception(PersistenceError("no bookie answers"))
        else:
            refused.set_result(None)
        return refused

    before, _ = await topic.view(True)
    monkeypatch.setattr(CursorLog, "persist", refuse)
    topic.compaction.start()
    await finish(topic)
    chain, _ = await topic.view(True)
    assert chain is not before
    assert topic.subscriptions["state"].chain is chain
    assert topic.subscriptions["state"].backlog == 5


async def test_a_replaced_compacted_form_takes_no_subscription(world: World, store: MemoryStore) -> None:
    topic = await compacted(world, store)
    view = await topic.view(True)
    topic.compaction.start()
    await finish(topic)
    with pytest.raises(ServiceNotReadyError):
        await topic.subscribe("late", start=0, view=view)
    await topic.subscribe("late", start=0, view=await topic.view(True))


async def test_a_topic_that_is_being_compacted_is_in_use(topic: BrokerTopic) -> None:
    await publish(topic.ledger, "a")
    assert not is_in_use(topic)
    topic.compaction.start()
    assert is_in_use(topic)
    await finish(topic)
    assert not is_in_use(topic)


async def test_new_partitions_get_the_durable_subscriptions() -> None:
    """A subscription created for a reader would keep the partition's ledgers for ever (I14)."""
    async with LoneBroker() as lone:
        for place in ("grown-partition-0", "grown-partition-1"):
            await lone.broker.ownership.resolve(TopicName.parse(place))
        admin = lone.broker.admin
        await lone.broker._catalog.create(TopicName.parse("grown"), 1)
        await admin.create_subscription("grown", "billing")
        part = TopicName.parse("grown-partition-0")
        topic = await lone.broker.topics.get(part)
        await topic.subscribe("reader-1", start=0, is_durable=False)
        await topic.subscribe(COMPACTION, start=0, is_internal=True)
        await admin.update_partitions("grown", 2)
        assert await admin.subscriptions("grown-partition-1") == ["billing"]


async def test_a_topic_goes_with_its_policies_and_its_compacted_form() -> None:
    async with LoneBroker("orders") as lone:
        admin = lone.broker.admin
        await admin.namespaces.set_topic_policies("orders", {"retention_seconds": 77})
        await admin.publish("orders", [b"1"], ["key"])
        await admin.compact_topic("orders")
        topic = await lone.broker.topics.get(TopicName.parse("orders"))
        await finish(topic)
        assert topic.ledger.record.compacted is not None
        await admin.delete_topic("orders")  # what compaction holds is nobody's subscription
        assert not lone.ledgers.ledgers
        await lone.broker._catalog.create(TopicName.parse("orders"))
        assert await admin.namespaces.topic_policies("orders") == {}


async def test_the_index_of_delayed_entries_is_not_asked_for_without_a_pause(topic: BrokerTopic) -> None:
    delays = (await topic.subscribe("billing", start=0)).delays
    loads = 0

    async def refuse() -> None:
        nonlocal loads
        loads += 1
        raise QuorumLostError("not now")

    delays._load = refuse  # type: ignore[method-assign]
    delays._wake = delays.ensure_loaded  # type: ignore[assignment]
    assert not delays.ensure_loaded()
    for _ in range(20):
        await asyncio.sleep(0)
    assert loads == 1
    delays.stop()


async def test_a_subscription_whose_deletion_failed_can_be_used_again(world: World, store: MemoryStore) -> None:
    """A half-deleted subscription would refuse every consumer for as long as the topic is served."""
    topic = await topic_on(world, store)
    await topic.subscribe("billing", start=0)

    async def refuse(path: str, version: int = -1) -> None:
        raise ConnectionLossError("metadata is out of reach")

    delete, store.delete = store.delete, refuse  # type: ignore[method-assign]
    with pytest.raises(ConnectionLossError):
        await topic.unsubscribe("billing")
    assert not topic.is_open
    store.delete = delete  # type: ignore[method-assign]
    again = await topic_on(world, store)
    assert set(again.subscriptions) == {"billing"}
    await again.unsubscribe("billing")
    assert not again.subscriptions


async def test_a_topic_without_storage_is_not_compacted() -> None:
    name = "non-persistent://public/default/news"
    async with LoneBroker(name) as lone:
        with pytest.raises(UnsupportedError):
            await lone.broker.admin.compact_topic(name)
        assert await lone.broker.admin.subscriptions(name) == []


async def test_other_ledgers_of_a_topic_have_the_copies_and_the_placement_of_its_own(
    world: World, store: MemoryStore
) -> None:
    world.policies = replace(world.policies, deduplication=True)
    topic = await topic_on(world, store)
    billing = await topic.subscribe("billing", start=0)
    topic.apply_policies(
        replace(world.policies, placement="random", persistence=Persistence(5, 4, 3))
    )  # while it is loaded
    await publish(topic.ledger, "a")
    done = billing.skip(None)
    assert done is not None
    await done
    assert billing.log is not None
    await billing.log.new_ledger("delayed")
    await topic.close()
    made = [ledger.metadata for ledger in world.ledgers.ledgers.values()][1:]
    assert {metadata.properties["use"] for metadata in made} == {"cursor", "delayed", "deduplication"}
    for metadata in made:
        assert metadata.properties["placement"] == "random"
        assert (metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum) == (5, 4, 3)


async def test_deduplication_whose_end_could_not_be_stored_can_begin_again(world: World, store: MemoryStore) -> None:
    world.policies = replace(world.policies, deduplication=True)
    topic = await topic_on(world, store)
    dedup = topic.admission.dedup

    async def refuse(path: str, version: int = -1) -> None:
        raise ConnectionLossError("metadata is out of reach")

    delete, store.delete = store.delete, refuse  # type: ignore[method-assign]
    topic.apply_policies(replace(world.policies, deduplication=False))
    await turns(lambda: dedup.current is None and not dedup._tasks)
    store.delete = delete  # type: ignore[method-assign]
    topic.apply_policies(world.policies)
    await turns(lambda: dedup.current is not None)
    await topic.close()


async def test_compaction_does_not_count_as_a_subscription(topic: BrokerTopic, world: World) -> None:
    topic.apply_policies(replace(world.policies, max_subscriptions=1))
    await publish(topic.ledger, "a")
    topic.compaction.start()
    await finish(topic)
    await topic.subscribe("billing", start=0)
    with pytest.raises(UnsupportedError):
        await topic.subscribe("other", start=0)
