"""A consumer. It acknowledges entries at times and in an order of its own, gives some back, comes and goes."""

from __future__ import annotations

import asyncio
from functools import partial

from heliograph.actors.broker.dispatch.dispatcher import CrashBudget
from heliograph.actors.broker.protocol.subscribe_options import index_of
from heliograph.actors.broker.records.position import EARLIEST, LATEST, Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.errors import ConsumerBusyError, HeliographError
from tests.simulation.checkers.messages import Of
from tests.simulation.topic.broker import TopicBroker
from tests.simulation.topic.history import Ack
from tests.simulation.topic.keeping import COMPACTED, messages_of
from tests.simulation.topic.scene import Client, Link, Scene

PERMITS = 6
PATIENCE_MS = 2_500
GIVES_BACK = 0.08  # of what it gets
TELLS_ALONE = 0.4  # of the single messages that it gets, it says that callers have nothing else
CUMULATIVE = 0.4  # of its acknowledgements, where that is allowed
IN_ORDER = (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class SimulatedConsumer(Client):
    """The client of one consumer."""

    def __init__(self, name: str, subscription: str, kind: SubscriptionType, scene: Scene) -> None:
        super().__init__(name)
        self.subscription = subscription
        self.kind = kind
        self.scene = scene
        self.world = scene.cluster.world
        self.random = self.world.stream(name)
        self.link = None
        self.end: ConsumerEnd | None = None
        self.is_ready = False
        self.away_until = 0
        self._seeking = self.world.stream(f"{name}|seeks")
        self.table: dict[str, tuple[Position, str | None]] = {}  # of a reader of the compacted form: values by key
        self.parts = self.world.stream(f"{name}|parts")
        self.hands = self.world.stream(f"{name}|hands")
        all_take_parts = (
            kind is SubscriptionType.KEY_SHARED and self.world.stream(f"{subscription}|parts").random() < 0.8
        )
        self.takes_parts = self.parts.random() < 0.8 or all_take_parts
        if not self.takes_parts:
            scene.checkers.undivided.add(subscription)
        self.permits = self.parts.choice((1, 2, PERMITS)) if kind.is_shared else PERMITS
        self._got: list[tuple[Position, int]] = []  # entries to seek to, with their numbers of messages
        self.busy_until = 0  # until then it acknowledges nothing and gives nothing back
        scene.consumers.append(self)
        self._turn()

    @property
    def reads_compacted(self) -> bool:
        """Whether it reads the compacted form."""
        return self.subscription == COMPACTED

    def leave(self, away_ms: int) -> None:
        """Disconnect, and come back later."""
        self.away_until = self.world.now + away_ms
        if self.link is not None:
            self.link.cut()
        self.link = None

    def seek_back(self) -> bool:
        """Seek to an entry that it had, or to the oldest if it had none. Return False if it is not connected."""
        if not self.is_ready or self.end is None or self.link is not self.end.link:
            return False
        end, target = self.end, self._seeking.choice(self._got)[0] if self._got else EARLIEST
        end.link.ask(lambda: end.seek(target, 0))
        return True

    def is_at(self, broker: TopicBroker) -> bool:
        """Whether it is connected to this broker."""
        return self.is_ready and self.link is not None and self.link.broker is broker

    def _turn(self) -> None:
        if self.link is None and self.world.now >= self.away_until:
            self._connect()
        elif (
            self.is_ready
            and self.end is not None
            and not self.reads_compacted
            and self._seeking.random() < self.scene.seeks
        ):
            self._seek(self.end)
        self.world.after(50 + self.random.randrange(150), self._turn, self)

    def _connect(self) -> None:
        link = self.link = Link(
            self.world, self.scene.cluster.network, self, self.scene.broker_for(self.random, is_consumer=True)
        )
        self.is_ready = False
        link.on_broken = lambda: self._broken(link)
        link.ask(lambda: self._at_broker(link))
        self.world.after(PATIENCE_MS, lambda: None if self.is_ready else self._broken(link), self)

    def _broken(self, link: Link) -> None:
        if self.link is link:
            link.cut()
            self.link = None

    def _connected(self, end: ConsumerEnd) -> None:
        if self.link is end.link:
            self.is_ready = True
            self.end = end
            end.link.ask(lambda: end.flow(self.permits))

    def _pushed(self, end: ConsumerEnd, position: Position, entry: TopicEntry, bits: int | None) -> None:
        """Handle one entry after a while."""
        messages = entry.messages
        if self.reads_compacted:
            for message in messages_of(entry.payload):
                if message is not None and self.table.get(message[0], (position, None))[0] <= position:
                    self.table[message[0]] = position, message[1]
        self._got.append((position, messages))
        slow = 1_500 if self.random.random() < 0.1 else 60
        open_bits = (1 << messages) - 1 if bits is None else bits
        self.world.after(self.random.randrange(slow), lambda: self._handle(end, position, messages, open_bits), self)

    def _handle(self, end: ConsumerEnd, position: Position, messages: int, open_bits: int) -> None:
        if self.link is not end.link:
            return
        if (busy_ms := self.busy_until - self.world.now) > 0:
            self.world.after(busy_ms, lambda: self._handle(end, position, messages, open_bits), self)
            return
        others = (1 << messages) - 1 & ~open_bits  # of other consumers, or acknowledged before
        end.link.ask(lambda: end.flow(open_bits.bit_count()))
        if self.random.random() < GIVES_BACK and not self.scene.network.is_healed:
            returned = self._refused(open_bits)
            end.link.ask(lambda: end.give_back(position, returned))
            if open_bits & ~returned and returned:
                left = others | returned
                self.world.after(
                    self.random.randrange(100), lambda: self._acknowledge(end, Ack(position, left, False)), self
                )
            return
        is_cumulative = self.kind in IN_ORDER and self.random.random() < CUMULATIVE
        if messages > 1 and open_bits.bit_count() > 1 and self.random.random() < 0.5:
            left = open_bits & (open_bits - 1)  # all but the first that is open
            self._acknowledge(end, Ack(position, left if is_cumulative else left | others, is_cumulative))
            last = Ack(position, others, False)
            self.world.after(self.random.randrange(100), lambda: self._acknowledge(end, last), self)
        else:
            is_plain = not is_cumulative and self.parts.random() < 0.3
            self._acknowledge(end, Ack(position, 0 if is_cumulative else others, is_cumulative), is_plain)

    def _refused(self, open_bits: int) -> int:
        """Return some of the messages, a bit each; 0 for the entry, as clients refuse it that know of no parts."""
        if not self.kind.is_shared or not self.takes_parts or self.parts.random() < 0.3:
            return 0
        return open_bits & self.parts.randrange(1, 1 << open_bits.bit_length()) or open_bits

    def _acknowledge(self, end: ConsumerEnd, ack: Ack, is_plain: bool = False) -> None:
        """Acknowledge messages of an entry; if ``is_plain``, without naming those that it did not get."""
        if self.link is end.link:
            self.scene.checkers.on_ack(self.subscription, ack)
            end.link.ask(lambda: end.acknowledge(ack, is_plain))

    def _seek(self, end: ConsumerEnd) -> None:
        """Seek to an end of the topic, to a time, or to an entry that it had, perhaps into a batch. Sometimes the topic
        is taken over meanwhile."""
        random, bits = self._seeking, 0
        target: Position | int = random.choice((EARLIEST, LATEST, self.scene.wall_ms() - random.randrange(4_000)))
        if self._got and random.random() < 0.6:
            target, messages = random.choice(self._got)
            if messages > 1 and random.random() < 0.5:
                bits = (1 << messages) - 2  # all but the first
        end.link.ask(lambda: end.seek(target, bits))
        nemesis = self.scene.nemesis
        if random.random() < 0.2 and nemesis.can_take_over():
            self.world.count("takeover right after a seek")
            nemesis.later(random.randrange(150), nemesis.take_over)

    # -- at the broker

    def _at_broker(self, link: Link) -> None:
        topic = link.broker.topic
        if topic is None or not link.broker.is_serving:
            link.tell(lambda: self._broken(link))
        else:
            link.broker.loop.create_task(self._subscribe(link, topic))

    async def _subscribe(self, link: Link, topic: BrokerTopic) -> None:
        try:
            view = await topic.view(is_compacted=True) if self.reads_compacted else None
            subscription = await topic.subscribe(self.subscription, start=view[0].first if view else 0, view=view)
            if link.is_broken:
                return
            end = ConsumerEnd(self, link, subscription)
            end.consumer.state.takes_parts = self.takes_parts
            try:
                subscription.add_consumer(end.consumer, self.kind)
            except ConsumerBusyError:
                for rival in subscription.holders(end.consumer, self.kind):
                    rival.probe()
                raise
        except HeliographError as error:
            self.world.note(self.name, "cannot subscribe:", error)
            link.tell(lambda: self._broken(link))
            return
        link.on_gone = end.gone
        link.tell(lambda: self._connected(end))


class ConsumerEnd:
    """The broker's end of a consumer's connection, a ConsumerChannel."""

    peer = client_version = "simulated"

    def __init__(self, client: SimulatedConsumer, link: Link, subscription: Subscription) -> None:
        self.client = client
        self.link = link
        self.subscription = subscription
        self.consumer = SubscriptionConsumer(1, client.name, 0, -1, self)
        self.consumer.state.key = client.scene.next_key()  # a counter of the process would differ from run to run
        self.key = self.consumer.state.key
        self._checkers = client.scene.checkers
        self._is_closed = False
        self._all: dict[Position, int] = {}  # the messages of entries, a bit each

    # -- ConsumerChannel

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
        broker, client = self.link.broker, self.client
        self._all[position] = (1 << entry.messages) - 1
        counts = redelivery_count, bits, (crashes, lone_crashes)
        self._checkers.on_push(broker, client.subscription, self.key, position, entry, *counts)
        open_bits = self._all[position] if bits is None else bits
        if client.hands.random() < TELLS_ALONE and open_bits.bit_count() == 1:  # the client's note comes at once
            self._checkers.messages.on_in_hand(self.key, position, open_bits.bit_length() - 1)
            consumer.note_in_hand(self.subscription.chain.find(position), open_bits.bit_length() - 1)
        self.link.tell(lambda: client._pushed(self, position, entry, bits))

    def close_consumer(self, consumer: SubscriptionConsumer) -> None:
        self._forget()
        self.link.tell(lambda: self.client._broken(self.link))

    def probe(self) -> asyncio.Future[None]:
        """Notice that the client has another connection now. Nobody waits for the result here."""
        loop = self.link.broker.loop
        if self.client.link is not self.link:
            loop.call_soon(self.gone)
        return loop.create_future()

    def reached_end(self, consumer: SubscriptionConsumer) -> None:
        """Do nothing: no topic is terminated."""

    def active_changed(self, consumer: SubscriptionConsumer, is_active: bool) -> None:
        """Do nothing: the simulated client does not ask which consumer is active."""

    # -- commands

    def flow(self, permits: int) -> None:
        """Take permits of the client."""
        if not self._is_closed:
            self._checkers.messages.on_flow(self.key, permits)
            self.subscription.flow(self.consumer, permits)

    def give_back(self, position: Position, bits: int) -> None:
        """Take a negative acknowledgement of messages of an entry, of all of it if ``bits`` is 0."""
        if not self._is_closed:
            returned = [position] if self.client.kind not in IN_ORDER else None
            self._checkers.on_return(self.link.broker, self.client.subscription, self.key, returned, bits)
            self._checkers.messages.on_return(self.key, position, bits)
            stored = self.subscription.redeliver(self.consumer, [(position, bits)])
            if stored is not None and (index := self.subscription.chain.find(position)) is not None:
                count = self.subscription.cursor.refused.of(index).entry
                number = self._checkers.returns.number_of(self.client.subscription)
                stored.add_done_callback(lambda future: self._counted(position, count, number, future))

    def acknowledge(self, ack: Ack, is_plain: bool = False) -> None:
        """Take an acknowledgement, and tell the client once it is durable."""
        if self._is_closed:
            return
        broker, name = self.link.broker, self.client.subscription
        is_plain = is_plain and (held := self._checkers.held_by(broker, name, self.key, ack.position)) != 0
        if is_plain:  # all of the entry that it got counts
            ack = Ack(ack.position, self._all[ack.position] & ~held, False)
            self._checkers.on_ack(name, ack)
        number = self._checkers.on_ack_arrived(broker, name, ack)
        bits = None if is_plain else ack.left or None
        if ack.is_cumulative:
            durable = self.subscription.acknowledge_cumulative(ack.position, bits)
        else:
            durable = self.subscription.acknowledge([(ack.position, bits)], self.consumer)
        if durable is not None:
            durable.add_done_callback(lambda future: self._answered(ack, number, future))

    def seek(self, target: Position | int, bits: int) -> None:
        """Move the subscription to an entry, or to the first of a time; of its batch to the messages in ``bits``."""
        if not self._is_closed:
            self.link.broker.loop.create_task(self._seek(target, bits))

    def gone(self) -> None:
        """Remove the client: the connection is broken."""
        name, held = self.client.subscription, list[tuple[Position, list[int]]]()
        if not self._is_closed:
            held = self._checkers.on_crash(self.link.broker, name, self.key)
        self._forget()
        self.subscription.remove_consumer(self.consumer, CrashBudget())
        stored, number = self.subscription.persist(), self._checkers.returns.number_of(name)
        for position, places in held:
            index = self.subscription.chain.find(position)
            if index is not None and stored is not None:
                entry, messages = self.subscription.cursor.crashed.of(index)
                counts = {place: entry + (messages >> 8 * place & 255) for place in places}
                stored.add_done_callback(partial(self._crash_stored, (name, position), counts, number))

    async def _seek(self, target: Position | int, bits: int) -> None:
        """Do what a SEEK does: find the entry, and reset the subscription."""
        broker, subscription, name = self.link.broker, self.subscription, self.client.subscription
        chain, topic = subscription.chain, broker.topic
        assert topic is not None, "the consumer came to it"
        try:
            if isinstance(target, Position):
                mark = await index_of(chain, target)
            else:
                mark = chain.from_base(await topic.index_at_time(target))
            mark = max(mark, chain.first)
            ack = Ack(chain.position_at(mark), bits, is_cumulative=False) if bits else None
            move = self._checkers.on_seek(broker, name, chain.position_before(mark), ack)
            resets = subscription.cursor.resets
            try:
                await subscription.reset(mark, bits or None)
            except HeliographError:
                if subscription.cursor.resets == resets:
                    self._checkers.on_seek_refused(name, move)
                raise
        except HeliographError as error:
            broker.world.note(broker.name, "does not seek:", error)
        else:
            self._checkers.on_seek_confirmed(broker, name, move)

    def _answered(self, ack: Ack, number: int, durable: asyncio.Future[None]) -> None:
        if not durable.cancelled() and durable.exception() is None:
            self._checkers.on_ack_confirmed(self.link.broker, self.client.subscription, ack, number)

    def _counted(self, position: Position, count: int, number: int, stored: asyncio.Future[None]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._checkers.returns.on_stored(self.link.broker, self.client.subscription, position, count, number)

    def _crash_stored(self, of: Of, counts: dict[int, int], number: int, stored: asyncio.Future[None]) -> None:
        if not stored.cancelled() and stored.exception() is None:
            self._checkers.messages.on_crash_stored(of, counts, self.link.broker.rank, number)

    def _forget(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._checkers.on_return(self.link.broker, self.client.subscription, self.key, None)
            self._checkers.messages.on_return(self.key)
