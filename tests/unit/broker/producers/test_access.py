"""Access modes compared with a naive model: at most one exclusive producer, growing epochs, waiting in order."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from heliograph.actors.broker.producers.access import ProducerAccess
from heliograph.actors.broker.producers.producer import AccessMode, PublishRequest, TopicProducer
from heliograph.actors.broker.producers.topic_producers import TopicProducers
from heliograph.actors.broker.records.position import Position
from heliograph.base.errors import (
    HeliographError,
    PersistenceError,
    ProducerBusyError,
    ProducerFencedError,
    ServiceNotReadyError,
    StorageFullError,
)
from tests.examples import examples


class Channel:
    """A client that records what it is told."""

    peer = "peer"
    client_version = "test"

    def __init__(self) -> None:
        self.told: list[str] = []

    def receipt(self, producer: TopicProducer, sequence_id: int, highest: int, position: Position) -> None:
        self.told.append("receipt")

    def send_refused(self, producer: TopicProducer, sequence_id: int, error: HeliographError) -> None:
        self.told.append("refused entry")

    def send_failed(self, producer: TopicProducer, error: HeliographError, sequence_id: int) -> None:
        self.told.append("failed entry")

    def settled(self, producer: TopicProducer, size: int) -> None:
        self.told.append("settled")

    def throttle(self, seconds: float) -> None:
        self.told.append("throttle")

    def probe(self) -> None:
        self.told.append("probe")

    def close_producer(self, producer: TopicProducer) -> None:
        self.told.append("closed")

    def became_ready(self, producer: TopicProducer) -> None:
        self.told.append("ready")

    def refused(self, producer: TopicProducer, error: HeliographError) -> None:
        self.told.append(type(error).__name__)


class Topics(RuleBasedStateMachine):
    """Producers connect and leave in any mode; storing an epoch takes time, in which more of this happens."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.stored: list[int] = []
        self.members = TopicProducers("topic", ProducerAccess(), self.store)
        self.made: list[TopicProducer] = []
        self.former: dict[str, int] = {}  # the epoch that a client still remembers, by its name

    async def store(self, epoch: int) -> None:
        await asyncio.sleep(0)
        self.stored.append(epoch)

    @rule(modes=st.lists(st.sampled_from(list(AccessMode)), min_size=1, max_size=3))
    def come(self, modes: list[AccessMode]) -> None:
        """Connect several at the same moment."""
        arriving = [TopicProducer(n, f"p{len(self.made) + n}", 0, Channel(), mode) for n, mode in enumerate(modes)]
        self.made += arriving
        self.admit(arriving)

    @rule(number=st.integers(0, 20), mode=st.sampled_from(list(AccessMode)))
    def come_back(self, number: int, mode: AccessMode) -> None:
        """Connect a former owner on a new connection with its epoch."""
        names = sorted(self.former)
        if names:
            name = names[number % len(names)]
            again = TopicProducer(1, name, 0, Channel(), mode, topic_epoch=self.former[name])
            self.made.append(again)
            self.admit([again])

    @rule(number=st.integers(0, 50))
    def leave(self, number: int) -> None:
        if self.made:
            self.loop.run_until_complete(self.gone(self.made.pop(number % len(self.made))))

    async def gone(self, producer: TopicProducer) -> None:
        self.members.remove(producer)
        await self.settle()

    def admit(self, arriving: list[TopicProducer]) -> None:
        async def all_of_them() -> None:
            await asyncio.gather(*(self.try_to(producer) for producer in arriving))
            await self.settle()

        self.loop.run_until_complete(all_of_them())

    async def try_to(self, producer: TopicProducer) -> None:
        try:
            await self.members.admit(producer, "x")
        except (ProducerBusyError, ProducerFencedError, ServiceNotReadyError):
            self.made.remove(producer)

    async def settle(self) -> None:
        for _ in range(30):
            await asyncio.sleep(0)

    @invariant()
    def an_exclusive_producer_is_alone(self) -> None:
        connected = list(self.members.connected.values())
        exclusive = [producer for producer in connected if producer.mode is not AccessMode.SHARED]
        if exclusive:
            assert connected == exclusive[:1]
            assert self.members.access.owner is exclusive[0]
            epoch = exclusive[0].topic_epoch
            assert epoch is not None
            assert epoch in self.stored  # durable before use
            assert epoch == self.members.access.epoch
            self.former[exclusive[0].name] = epoch
        else:
            assert self.members.access.owner is None

    @invariant()
    def epochs_grow(self) -> None:
        assert self.stored == sorted(self.stored)

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.members.access.waiting:
            assert self.members.connected

    def teardown(self) -> None:
        self.loop.close()


TestTopics = Topics.TestCase
TestTopics.settings = settings(max_examples=examples(60), stateful_step_count=30, deadline=None)


async def test_waiting_producers_are_told_when_they_are_fenced() -> None:
    members = TopicProducers("topic", ProducerAccess(), _store)
    channels = [Channel() for _ in range(3)]
    modes = (AccessMode.EXCLUSIVE, AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING)
    for number, (channel, mode) in enumerate(zip(channels, modes, strict=True)):
        await members.admit(TopicProducer(number, f"p{number}", 0, channel, mode), "x")
    assert [channel.told for channel in channels] == [["closed"], ["ProducerFencedError"], []]
    members.disconnect(ServiceNotReadyError("gone"))
    assert channels[2].told == ["closed"]


async def test_a_dead_connection_of_the_same_name_is_probed() -> None:
    members = TopicProducers("topic", ProducerAccess(), _store)
    old, new = Channel(), Channel()
    await members.admit(TopicProducer(1, "me", 0, old), "x")
    with pytest.raises(ProducerBusyError):
        await members.admit(TopicProducer(1, "me", 1, new), "x")
    assert old.told == ["probe"]
    await members.admit(TopicProducer(1, "me", 1, old), "x")  # the same client, which reconnected
    assert members.connected["me"].epoch == 1


@pytest.mark.parametrize("mode", [AccessMode.WAIT_FOR_EXCLUSIVE, AccessMode.EXCLUSIVE_WITH_FENCING])
async def test_an_owner_that_comes_back_while_its_successor_is_being_stored_is_fenced(mode: AccessMode) -> None:
    """It does not wait in line either, where its client would hang, nor does it disconnect its successor."""
    proceed = asyncio.Event()

    async def store(epoch: int) -> None:
        if epoch == 1:
            await proceed.wait()

    members = TopicProducers("topic", ProducerAccess(), store)
    await members.admit(TopicProducer(1, "old", 0, Channel(), mode), "x")
    successor = TopicProducer(2, "new", 0, Channel(), AccessMode.EXCLUSIVE_WITH_FENCING)
    claiming = asyncio.ensure_future(members.admit(successor, "x"))
    await asyncio.sleep(0)
    with pytest.raises(ProducerFencedError):
        await members.admit(TopicProducer(1, "old", 1, Channel(), mode, topic_epoch=0), "x")
    proceed.set()
    await claiming
    assert list(members.connected) == ["new"]
    assert members.access.waiting == []


async def _store(epoch: int) -> None:
    await asyncio.sleep(0)


def test_an_entry_that_full_disks_refuse_is_answered_and_any_other_failure_is_not() -> None:
    for error, told in (
        (StorageFullError("storage is full"), ["failed entry", "settled"]),
        (PersistenceError("the topic is lost"), ["settled"]),
    ):
        channel = Channel()
        PublishRequest(TopicProducer(1, "p", 0, channel), 0, 0, 1, 1).failed(error)
        assert channel.told == told
