"""The broker's own protocol before the simulated topic. What passes is told to the checkers."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from typing_extensions import override

from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.limits.publish_budget import PublishBudget
from heliograph.actors.broker.namespaces.ownership import LastKnown
from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.actors.broker.protocol.ack_commands import AckCommands
from heliograph.actors.broker.protocol.auth_commands import AuthCommands
from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.actors.broker.protocol.consumer_commands import ConsumerCommands, Subscribed
from heliograph.actors.broker.protocol.lookup_commands import LookupCommands
from heliograph.actors.broker.protocol.producer_commands import ProducerCommands
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import BadRequestError, HeliographError, ServiceNotReadyError
from heliograph.base.guard.listener import ListenerGuard, UnsentBudget
from heliograph.base.guard.shares import ShareCounter
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand
from heliograph.protocol.topic_name import TopicName
from tests.simulation.clients.checkers import ClientCheckers
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.history import Ack

if TYPE_CHECKING:
    from tests.simulation.clients.sites import Site

KEEP_ALIVE_SECONDS = 2.0
MESSAGE_BYTES_MAX = 64  # what is larger is sent in chunks
OWNER_CHANGES = 0.05  # of the lookups, which are refused for that


class Door:
    """The listener of one broker."""

    def __init__(self, broker: TopicBroker, site: Site) -> None:
        self.broker = broker
        self.site = site
        self.random = site.world.stream(f"{broker.name}|door")
        config = BrokerConfig(
            broker.name,
            max_message_bytes=MESSAGE_BYTES_MAX,
            keep_alive_seconds=KEEP_ALIVE_SECONDS,
        )
        self._guard = ListenerGuard(broker.name, config.listener)
        self._unsent = UnsentBudget(config.connection_write_bytes_max)
        self._context: Any = SimpleNamespace(
            config=config,
            catalog=self,
            ownership=self,
            topics=self,
            schemas=None,
            publish_budget=PublishBudget(config.publish_bytes_max),
            authorizer=self,
            authenticator=SimpleNamespace(config=SimpleNamespace(is_enabled=False)),
            audit=self,
            producer_prefix=broker.name,
            producers_of_roles=ShareCounter(),
            partitions=LastKnown(),
            openings_waiting=0,
        )

    def connection(self) -> PulsarConnection:
        """Return the protocol of a new connection."""
        made = PulsarConnection(self._context, self._guard, self._unsent, lambda _: True, lambda _: None)
        AuthCommands(made)
        LookupCommands(made)
        WatchedProducers(made, self)
        AckCommands(made, WatchedConsumers(made, self))
        return made

    # -- what connections need of their broker

    is_lost, is_certain = False, True

    async def check_client(self, *rights: object) -> None:
        """Allow everything."""

    async def auto_partitions(self, name: TopicName, **options: object) -> int:
        return 0

    async def resolve(self, name: TopicName, authoritative: bool) -> Any:
        """Return the owner, as the broker knows it; sometimes one that was replaced."""
        owner = self.broker if authoritative else self.site.scene.broker_for(self.random, is_consumer=True)
        if not self.site.scene.network.is_healed and self.random.random() < OWNER_CHANGES:
            raise ServiceNotReadyError("the owner changes")
        url = self.site.url_of(owner)
        return SimpleNamespace(
            broker_id=owner.name, service_url=url, service_url_tls="", is_us=owner is self.broker, is_assigned=True
        )

    def is_begun(self, name: TopicName) -> bool:
        """Have each connection open the topic in its turn."""
        return False

    async def get(self, name: TopicName, **options: object) -> BrokerTopic:
        """Return the topic, if the broker serves it."""
        topic = self.broker.topic
        if topic is None or not self.broker.is_serving:
            raise ServiceNotReadyError("the topic is not open here")
        return topic


class WatchedProducers(ProducerCommands):
    """The producers of a connection. Entries are called by the order in which they came to a broker first."""

    def __init__(self, connection: PulsarConnection, door: Door) -> None:
        super().__init__(connection)
        self._door = door
        self._numbers: defaultdict[TopicProducer, deque[tuple[int, int]]] = defaultdict(deque)

    @override
    def _send(
        self, command: BaseCommand, section: memoryview | None, above_limit: BadRequestError | None = None
    ) -> None:
        found = self._producers.get(command.send.producer_id)
        if found is not None and section is not None:
            number = self._door.site.checkers.number_of(bytes(section))
            self._numbers[found[0]].append((command.send.sequence_id, number))
            self._door.site.checkers.on_publish(found[0].name, number)
        super()._send(command, section, above_limit)

    @override
    def receipt(self, producer: TopicProducer, sequence_id: int, highest: int, position: Position) -> None:
        waiting = self._numbers[producer]
        while waiting and waiting[0][0] != sequence_id:
            waiting.popleft()  # it was refused
        assert waiting, "a receipt is for an entry that came"
        number = waiting.popleft()[1]
        self._door.site.checkers.on_receipt(self._door.broker, cast(Any, producer), producer.name, number, position)
        super().receipt(producer, sequence_id, highest, position)


class WatchedConsumers(ConsumerCommands):
    """The consumers of a connection."""

    def __init__(self, connection: PulsarConnection, door: Door) -> None:
        super().__init__(connection)
        self._door = door
        self._checkers: ClientCheckers = door.site.checkers

    @override
    def _new_consumer(self, wanted: pb.CommandSubscribe, topic: BrokerTopic) -> SubscriptionConsumer:
        made = super()._new_consumer(wanted, topic)
        made.state.key = self._door.site.scene.next_key()  # a counter of the process would differ from run to run
        return made

    @override
    async def _join(
        self, wanted: pb.CommandSubscribe, topic: BrokerTopic, subscription: Subscription, is_last: bool
    ) -> Subscribed | None:
        found = await super()._join(wanted, topic, subscription, is_last)
        if found is None:
            return None
        watched = WatchedSubscription(found, self._door.broker, self._checkers)
        return found._replace(subscription=cast(Subscription, watched))

    @override
    def push(
        self,
        consumer: SubscriptionConsumer,
        position: Position,
        entry: TopicEntry,
        redelivery_count: int,
        bits: int | None,
        is_alone: bool,
        crashes: int,
        lone_crashes: int = 0,
    ) -> None:
        found = self.consumers.get(consumer.consumer_id)
        assert found is not None, "it has granted permits"
        broker, name = self._door.broker, found.subscription.name
        self._checkers.on_push(broker, name, consumer.state.key, position, entry, redelivery_count, bits)
        super().push(consumer, position, entry, redelivery_count, bits, is_alone, crashes, lone_crashes)

    @override
    def _forget(self, consumer_id: int) -> Subscribed | None:
        found = super()._forget(consumer_id)
        if found is not None:
            self._checkers.on_return(self._door.broker, found.subscription.name, found.consumer.state.key, None)
            self._checkers.messages.on_return(found.consumer.state.key)
        return found

    @override
    def _flow(self, command: BaseCommand, section: memoryview | None) -> None:
        found = self.consumers.get(command.flow.consumer_id)
        if found is not None:
            held = found.consumer.state.permits + command.flow.message_permits
            self._checkers.on_permits(found.consumer.state.name, found.subscription.name, held)
        super()._flow(command, section)


class WatchedSubscription:
    """A subscription as the connection of one consumer uses it."""

    def __init__(self, found: Subscribed, broker: TopicBroker, checkers: ClientCheckers) -> None:
        self._found = found
        self._real = found.subscription
        self._broker = broker
        self._checkers = checkers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def acknowledge(
        self, acks: Sequence[tuple[Position, int | None]], consumer: SubscriptionConsumer
    ) -> asyncio.Future[None] | None:
        """Note acknowledgements, and when they are durable."""
        noted = [self._arrived(Ack(position, bits or 0, False)) for position, bits in acks]
        return self._answered(noted, self._real.acknowledge(acks, consumer))

    def acknowledge_cumulative(self, position: Position, bits: int | None = None) -> asyncio.Future[None] | None:
        """Note a cumulative acknowledgement, and when it is durable."""
        noted = [self._arrived(Ack(position, bits or 0, True))]
        return self._answered(noted, self._real.acknowledge_cumulative(position, bits))

    def redeliver(
        self, consumer: SubscriptionConsumer, entries: Sequence[tuple[Position, int]], *how: Any, **options: Any
    ) -> asyncio.Future[None] | None:
        """Note what a consumer gives back."""
        broker, name, key = self._broker, self._real.name, consumer.state.key
        for position, bits in entries:
            self._checkers.on_return(broker, name, key, self._checkers.chunks_with(position), bits)
        if not entries:
            self._checkers.on_return(broker, name, key, None)
        return self._real.redeliver(consumer, entries, *how, **options)

    async def reset(self, mark: int, bits: int | None = None) -> None:
        """Note a seek, and that it is durable."""
        chain = self._real.chain
        mark, broker, name = max(mark, chain.first), self._broker, self._real.name
        ack = Ack(chain.position_at(mark), bits, is_cumulative=False) if bits else None
        move = self._checkers.on_seek(broker, name, chain.position_before(mark), ack)
        resets = self._real.cursor.resets
        try:
            await self._real.reset(mark, bits)
        except HeliographError:
            if self._real.cursor.resets == resets:
                self._checkers.on_seek_refused(name, move)
            raise
        self._checkers.on_seek_confirmed(broker, name, move)

    def _arrived(self, ack: Ack) -> tuple[Ack, int]:
        name = self._real.name
        self._checkers.check_asked(name, ack)
        self._checkers.on_ack(name, ack)
        return ack, self._checkers.on_ack_arrived(self._broker, name, ack)

    def _answered(
        self, noted: Sequence[tuple[Ack, int]], durable: asyncio.Future[None] | None
    ) -> asyncio.Future[None] | None:
        def answered(future: asyncio.Future[None]) -> None:
            if not future.cancelled() and future.exception() is None:
                for ack, number in noted:
                    self._checkers.on_ack_confirmed(self._broker, self._real.name, ack, number)

        if durable is not None:
            durable.add_done_callback(answered)
        return durable
