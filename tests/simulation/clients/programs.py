"""Applications that publish and consume by handles of our own client, at any time and in any order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.base.errors import AlreadyClosedError, HeliographError, ReceiveTimeoutError
from heliograph.client.aio.consumer.consumer import AsyncConsumer
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.protocol.message_id import MessageId
from tests.simulation.clients.checkers import EXPIRY_MS, QUEUES, Place, Taken, call_of, label
from tests.simulation.clients.door import MESSAGE_BYTES_MAX
from tests.simulation.clients.sites import Application, Site
from tests.simulation.topic.broker import NAME, TopicBroker
from tests.simulation.topic.consumer import CUMULATIVE, GIVES_BACK, IN_ORDER
from tests.simulation.topic.producer import KEYS

CALLS_MAX = 12  # without an outcome
FLUSHES, CLOSES, DEATHS = 0.06, 0.01, 0.005  # of the turns of a producer
LARGE = 0.1  # of the messages
RECEIVE_SECONDS = 0.5
RETRY_MS = 100
UNTIL_REOPENED_MS = 200

Call = Callable[[], Awaitable[Any]]


class PublishingProgram(Application):
    """Publishes by one producer. It flushes it, closes it and makes another of the same name, or is killed."""

    def __init__(self, name: str, site: Site) -> None:
        random = site.world.stream(f"{name}|options")
        self.options: dict[str, Any] = {
            "batch_messages": random.choice((1, 3, 1_000)),
            "linger_ms": random.choice((0, 5)),
            "pending_messages_max": random.choice((2, 6, 100)),
            "send_timeout_ms": random.choice((0, 0, 1_500)),
            "rejoin": random.choice(("at_once", "when_sending")),
            "batch_by_key": True,  # as Key_Shared subscriptions require
        }
        self.number = 0  # of the last message
        self._closing = False
        super().__init__(name, site)
        site.scene.producers.append(self)  # type: ignore[arg-type]

    @property
    def is_idle(self) -> bool:
        """Whether every call has its outcome."""
        return not self._closing and None not in self.checkers.calls[self.name].values()

    @override
    def begin(self) -> None:
        self._closing = False
        self.producer: AsyncProducer[Any] = self.client.producer(str(NAME), name=self.name, **self.options)
        self._go_on()

    def _go_on(self) -> None:
        self.world.after(self.random.randrange(1, self.scene.profile.add_every_ms_max + 1), self._turn, self)

    def _turn(self) -> None:
        is_calm = self.scene.network.is_healed
        if not is_calm and self.random.random() < DEATHS:
            self._die()
            return
        with self.loop.running():
            if self._closing:
                pass
            elif not is_calm and self.random.random() < CLOSES:
                self.close()
            elif self.random.random() < FLUSHES:
                self.flush()
            elif self.scene.may_publish() and len(self._waiting()) < CALLS_MAX:
                for _ in range(self.random.randrange(1, 4) if self.random.random() < self.scene.profile.bursts else 1):
                    self._publish()
        self._go_on()

    def flush(self) -> None:
        if not self._closing:
            with self.loop.running():
                self.loop.create_task(self._flush(self.producer, self._waiting()))

    def close(self) -> None:
        """Close the producer, and make another one later."""
        if not self._closing:
            self._closing = True
            with self.loop.running():
                self.loop.create_task(self._close(self.producer, self._waiting()))

    def _waiting(self) -> list[int]:
        return [number for number, outcome in self.checkers.calls[self.name].items() if outcome is None]

    def _die(self) -> None:
        for number in self._waiting():  # nobody learns what becomes of these
            del self.checkers.calls[self.name][number]
            self.checkers.abandoned.add((self.name, number))
        self.die()
        self.start()

    def _publish(self) -> None:
        count = self.random.choice((1, 1, 1, 3))
        numbers = list(range(self.number + 1, self.number + 1 + count))
        self.number += count
        self.scene.messages_taken += 1
        values = [label(self.name, number) for number in numbers]
        if self.random.random() < LARGE:
            values = [value * (1 + 2 * MESSAGE_BYTES_MAX // len(value)) for value in values]
        keys = [self.random.choice(KEYS) for _ in numbers]
        self.checkers.on_call(self.name, numbers, keys)
        producer = self.producer
        if count > 1:
            self.loop.create_task(self._send_many(producer, numbers, values, keys))
        else:
            self.loop.create_task(self._send(producer, numbers[0], values[0], keys[0]))

    async def _send(self, producer: AsyncProducer[Any], number: int, value: bytes, key: str) -> None:
        outcome: MessageId | HeliographError
        try:
            outcome = await producer.send(value, key=key)
        except HeliographError as error:
            self.world.note(f"{self.name}:{number}", "fails:", error)
            outcome = error
        self.checkers.on_outcome(self.name, number, outcome)

    async def _send_many(
        self, producer: AsyncProducer[Any], numbers: list[int], values: list[bytes], keys: list[str]
    ) -> None:
        outcomes: list[Any]
        try:
            outcomes = [*await producer.send_many(values, keys=keys)]
        except HeliographError as error:
            self.world.note(f"{self.name}:{numbers}", "fail:", error)
            outcomes = [error] * len(numbers)
        for number, outcome in zip(numbers, outcomes, strict=True):
            self.checkers.on_outcome(self.name, number, outcome)

    async def _flush(self, producer: AsyncProducer[Any], waiting: list[int]) -> None:
        self.world.count("flush")
        try:
            await producer.flush()
        except AlreadyClosedError:
            return
        self.checkers.check_settled(self.name, waiting, "flush")

    async def _close(self, producer: AsyncProducer[Any], waiting: list[int]) -> None:
        self.world.count("producer closed with calls under way", bool(waiting))
        await producer.close()
        await asyncio.sleep(0)  # the last calls tell their outcomes in this turn
        self.checkers.check_settled(self.name, waiting, "close")
        await asyncio.sleep(self.random.randrange(UNTIL_REOPENED_MS) / 1000)
        self.producer = self.client.producer(str(NAME), name=self.name, **self.options)
        self._closing = False


class ConsumingProgram(Application):
    """Consumes by one consumer. It acknowledges late and in any order, refuses, seeks, comes and goes."""

    def __init__(self, name: str, subscription: str, kind: SubscriptionType, site: Site) -> None:
        self.subscription = subscription
        self.kind = kind
        self.busy_until = 0
        self.away_until = 0
        self._options: dict[str, Any] = {
            "receiver_queue": QUEUES[subscription],
            "nack_delay_ms": 100,
            "ack_timeout_ms": site.world.stream(f"{name}|options").choice((0, 0, 1_000)),
            # A consumer in order that drops chunks receives later messages first.
            "chunked_messages_max": 16 if kind in IN_ORDER else site.world.stream(f"{name}|chunks").choice((1, 16)),
            "chunked_expiry_ms": EXPIRY_MS,
        }
        self._got: list[Taken] = []
        self.acknowledging = 0  # calls under way
        self._seeks = 0  # a message of before a seek is not handled
        self._is_seeking = False
        self._last: tuple[int, Place] | None = None  # epoch and place of the last message
        super().__init__(name, site)
        site.scene.consumers.append(self)  # type: ignore[arg-type]

    @override
    def begin(self) -> None:
        self._is_seeking = False
        self._last = None
        self.acknowledging = 0
        self.consumer = self._made()
        self.loop.create_task(self._receive(self.consumer))
        self.world.after(50 + self.random.randrange(150), self._turn, self)

    def leave(self, away_ms: int) -> None:
        """Close the consumer, lose its connection, or be killed, and come back."""
        how = self.random.random()
        if not self.is_up:
            return
        if how < 0.3:
            self.die()
            self.world.after(away_ms, self.start)
        elif how < 0.6:
            with self.loop.running():
                self.loop.create_task(self._close(self.consumer, away_ms))
        elif (link := self.link) is not None:
            link.cut()

    def is_at(self, broker: TopicBroker) -> bool:
        """Whether it is connected to this broker."""
        return self.is_up and any(socket.is_open and socket.link.broker is broker for socket in self.sockets)

    def seek_back(self) -> bool:
        """Seek to a message that it had, or to the oldest if it had none. Return False if it does not run."""
        if not self.is_up or not self.consumer.is_open or self._is_seeking:
            return False
        with self.loop.running():
            self.loop.create_task(self._seek(self.consumer, self.random.choice(self._got) if self._got else None, True))
        return True

    @property
    def permits(self) -> tuple[int, int]:
        """Return the permits that it owes its broker: those that it will grant later, and those of what waits."""
        part = next(iter(self.consumer._parts.values()), None)
        return (0, 0) if part is None else (part._permits_due, self.consumer._inbox.permits_of(part))

    def _made(self) -> AsyncConsumer[Any]:
        return self.client.consumer(
            str(NAME),
            self.subscription,
            type=self.kind.value.lower(),  # type: ignore[arg-type]
            name=self.name,
            initial_position="earliest",
            **self._options,
        )

    def _turn(self) -> None:
        if not self._is_seeking and self.consumer.is_open and self.random.random() < self.scene.seeks:
            with self.loop.running():
                taken = self.random.choice(self._got) if self._got and self.random.random() < 0.6 else None
                self.loop.create_task(self._seek(self.consumer, taken, self.random.random() < 0.5))
        self.world.after(50 + self.random.randrange(150), self._turn, self)

    async def _close(self, consumer: AsyncConsumer[Any], away_ms: int) -> None:
        await consumer.close()
        await asyncio.sleep(away_ms / 1000)
        if self.consumer is consumer:
            self._last = None
            self.consumer = self._made()
            self.loop.create_task(self._receive(self.consumer))

    # -- receiving

    async def _receive(self, consumer: AsyncConsumer[Any]) -> None:
        while True:
            try:
                messages = [await consumer.receive(RECEIVE_SECONDS)]
            except ReceiveTimeoutError:
                continue
            except AlreadyClosedError:
                return
            except HeliographError as error:
                self.world.note(self.name, "cannot receive:", error)
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            for message in messages:
                self._take(consumer, message)

    def _take(self, consumer: AsyncConsumer[Any], message: Message[Any]) -> None:
        delivery, found = message._delivery, message.message_id
        assert delivery is not None, "it was received"
        place = Place(Position(found.ledger_id, found.entry_id), found.batch_index)
        chunks = tuple(Position(*each) for each in delivery.earlier_chunks)
        taken = Taken(*call_of(message.data), place, chunks, found.batch_size)
        last = None
        if self.kind in IN_ORDER and self._last is not None and self._last[0] == delivery.epoch:
            last = self._last[1]
        self._last = delivery.epoch, place
        self.checkers.on_received(self.name, self.subscription, last, taken)
        self._got.append(taken)
        slow = 1_500 if self.random.random() < 0.1 else 60
        seeks = self._seeks
        self.world.after(self.random.randrange(slow), lambda: self._handle(consumer, message, taken, seeks), self)

    def _handle(self, consumer: AsyncConsumer[Any], message: Message[Any], taken: Taken, seeks: int) -> None:
        """Acknowledge a message, or refuse it."""
        if consumer is not self.consumer or not consumer.is_open or seeks != self._seeks:
            return
        if (busy_ms := self.busy_until - self.world.now) > 0:
            self.world.after(busy_ms, lambda: self._handle(consumer, message, taken, seeks), self)
            return
        with self.loop.running():
            if self.random.random() < GIVES_BACK:
                self.loop.create_task(self._refuse(consumer, message))
                return
            is_cumulative = self.kind in IN_ORDER and self.random.random() < CUMULATIVE
            self.loop.create_task(self._acknowledge(consumer, message, taken, seeks, is_cumulative))

    async def _refuse(self, consumer: AsyncConsumer[Any], message: Message[Any]) -> None:
        try:
            await consumer.nack(message)
        except HeliographError as error:
            self.world.note(self.name, "cannot refuse:", error)

    async def _acknowledge(
        self, consumer: AsyncConsumer[Any], message: Message[Any], taken: Taken, seeks: int, is_cumulative: bool
    ) -> None:
        """Acknowledge a message until that is confirmed, or a seek makes it void."""
        checkers, subscription = self.checkers, self.subscription
        while consumer is self.consumer and consumer.is_open and seeks == self._seeks:
            moves = checkers.moves_of(subscription)
            checkers.on_acknowledging(subscription, taken, is_cumulative=is_cumulative)
            self.acknowledging += 1
            try:
                await (consumer.ack_cumulative(message) if is_cumulative else consumer.ack(message))
            except HeliographError as error:
                self.world.note(self.name, "cannot acknowledge:", error)
                self.acknowledging -= 1
                await asyncio.sleep(RETRY_MS / 1000)
                continue
            self.acknowledging -= 1
            if seeks == self._seeks and not self._is_seeking and moves == checkers.moves_of(subscription):
                checkers.on_acknowledged(self.name, subscription, taken, is_cumulative=is_cumulative)
            return

    # -- seeking

    async def _seek(self, consumer: AsyncConsumer[Any], taken: Taken | None, is_inclusive: bool) -> None:
        """Seek to a message, an end of the topic, or a time."""
        self._seeks += 1
        self._is_seeking = True
        target: MessageId | int | str
        if taken is not None:
            position, index = taken.place
            target = MessageId(*position, batch_index=index, batch_size=taken.batch_size)
            self.checkers.on_seeking(self.subscription, taken.place, inclusive=is_inclusive)
        elif self.scene.network.is_healed:
            target = "earliest"
        else:
            ago_ms = self.random.randrange(4_000)
            target = self.random.choice(("earliest", "latest", self.scene.wall_ms() - ago_ms))
        nemesis = self.scene.nemesis
        if self.random.random() < 0.2 and nemesis.can_take_over():
            self.world.count("takeover right after a seek")
            nemesis.later(self.random.randrange(150), nemesis.take_over)
        try:
            await consumer.seek(target, inclusive=is_inclusive)
            self.world.count("seek of a handle ended")
        except HeliographError as error:
            self.world.note(self.name, "cannot seek:", error)
        finally:
            self._seeks += 1
            self._is_seeking = False
