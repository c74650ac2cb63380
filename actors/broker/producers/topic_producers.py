"""The producers of one topic: their names, the connected and the waiting ones, and exclusive ownership."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

from heliograph.actors.broker.producers.access import Admission, ProducerAccess
from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.base.errors import HeliographError, ProducerBusyError, ProducerFencedError, ServiceNotReadyError

_numbers = itertools.count()  # in generated names; never used twice, or deduplication would mix producers up

log = logging.getLogger(__name__)


class TopicProducers:
    """The producers of one topic. All calls on one event loop.

    Args:
        topic: its name, for messages.
        access: the exclusive ownership, with the stored epoch.
        store_epoch: makes an epoch durable before its owner may send.

    Attributes:
        connected: by name.
        on_joined: awaited with each producer that was added to ``connected``, before it may send.
        on_left: called with each producer that was removed from ``connected``.
    """

    def __init__(self, topic: str, access: ProducerAccess, store_epoch: Callable[[int], Awaitable[None]]) -> None:
        self.access = access
        self.connected: dict[str, TopicProducer] = {}
        self.on_joined: Callable[[TopicProducer], Awaitable[None]] = _nothing_to_do
        self.on_left: Callable[[TopicProducer], None] = lambda producer: None
        self._topic = topic
        self._store_epoch = store_epoch
        self._promoting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def admit(self, producer: TopicProducer, unique_prefix: str, producers_max: int = 0) -> None:
        """Admit a producer and give it a name if it has none. ``is_ready`` then says whether it may send; if not, its
        channel tells it when it may.

        Args:
            producers_max: the limit of the topic, waiting producers included; 0 for no limit.

        Raises:
            ProducerBusyError: the name or the topic is taken, or there are too many producers.
            ProducerFencedError: it can never have the topic with this access mode and epoch.
            ServiceNotReadyError: the topic was lost while its new epoch was being stored.
        """
        if not producer.name:
            producer.name = f"{unique_prefix}-{next(_numbers)}"
        self._supersede(producer)
        try:
            admission = self._admission(producer, producers_max)
        except HeliographError:
            self._promote()  # it may have superseded its former connection, which makes room for others
            raise
        if admission is Admission.WAIT:
            producer.is_ready = False
            self.access.waiting.append(producer)
            return
        if admission is Admission.FENCE:
            self._fence_others()
        if admission is not Admission.ENTER:
            await self._claim(producer)
        await self._join(producer)

    def remove(self, producer: TopicProducer) -> None:
        """Remove a producer that left. Its entries in flight are stored all the same."""
        producer.is_closed = True
        if producer in self.access.waiting:
            self.access.waiting.remove(producer)
        if self.connected.get(producer.name) is producer:
            del self.connected[producer.name]
            self.on_left(producer)
        if self.access.owner is producer and producer.is_ready:
            self.access.owner = None
        self._promote()

    def close(self) -> None:
        """Refuse producers from now on, and tell the clients to look the topic up again."""
        self._is_closed = True
        self._close_connected()
        waiting, self.access.waiting = self.access.waiting, []
        for producer in waiting:
            producer.channel.refused(producer, ServiceNotReadyError(f"{self._topic} is not served here any more"))

    def disconnect(self, error: HeliographError) -> None:
        """Disconnect every producer, and refuse the waiting ones, for a reason that refuses new ones as well."""
        waiting, self.access.waiting = self.access.waiting, []
        for producer in waiting:
            producer.channel.refused(producer, error)
        self._close_connected()

    def _admission(self, producer: TopicProducer, producers_max: int) -> Admission:
        if producers_max and len(self.connected) + len(self.access.waiting) >= producers_max:
            raise ProducerBusyError(
                f"{self._topic} has as many producers as its policies allow",
                field="max_producers",
                limit=f"{producers_max} producers",
            )
        return self.access.admission(producer, self.connected.values())

    def _supersede(self, producer: TopicProducer) -> None:
        """Remove the producer of the same name if the client comes back before its old connection was found to be
        dead."""
        other = self.connected.get(producer.name)
        if other is None:
            return
        is_newer = (
            other.channel is producer.channel
            and other.producer_id == producer.producer_id
            and producer.epoch > other.epoch
        )
        if not is_newer and not self.access.is_returning_owner(producer):
            other.channel.probe()
            raise ProducerBusyError(f"a producer named {producer.name} is connected to {self._topic}")
        self._drop(other)
        if not is_newer:
            other.channel.close_producer(other)

    def _drop(self, producer: TopicProducer) -> None:
        producer.is_closed = True
        del self.connected[producer.name]
        self.on_left(producer)
        if self.access.owner is producer:
            self.access.owner = None

    def _fence_others(self) -> None:
        waiting, self.access.waiting = self.access.waiting, []
        for producer in waiting:
            producer.channel.refused(producer, ProducerFencedError(f"{self._topic} was taken by another producer"))
        self._close_connected()

    def _close_connected(self) -> None:
        for producer in list(self.connected.values()):
            self._drop(producer)
            producer.channel.close_producer(producer)

    async def _claim(self, producer: TopicProducer) -> None:
        """Make the producer the exclusive owner; no other is admitted from now on."""
        access, epoch = self.access, self.access.next_epoch(producer)
        access.owner = producer
        producer.is_ready = False
        try:
            if epoch != access.epoch:
                await self._store_epoch(epoch)
                access.epoch = max(access.epoch, epoch)
            if self._is_closed or producer.is_closed or access.owner is not producer or epoch < access.epoch:
                raise ServiceNotReadyError(f"{self._topic} or its producer was closed meanwhile")
        except BaseException:
            if access.owner is producer:
                access.owner = None
                self._promote()
            raise
        producer.topic_epoch, producer.is_ready = epoch, True

    async def _join(self, producer: TopicProducer) -> None:
        self.connected[producer.name] = producer
        try:
            await self.on_joined(producer)
            if producer.is_closed:
                raise ServiceNotReadyError(f"{self._topic} or its producer was closed meanwhile")
        except BaseException:
            self.remove(producer)
            raise

    def _promote(self) -> None:
        """Let the producer that waits longest claim the topic, if the topic is free."""
        producer = None if self._is_closed else self.access.next_in_line(self.connected.values())
        if producer is not None:
            task = asyncio.get_running_loop().create_task(self._promote_one(producer))
            self.access.owner = producer  # so that no other claims before the task does
            self._promoting.add(task)
            task.add_done_callback(self._promoting.discard)

    async def _promote_one(self, producer: TopicProducer) -> None:
        try:
            await self._claim(producer)
            await self._join(producer)
        except HeliographError as error:
            log.info("%s: producer %s cannot become the owner: %s", self._topic, producer.name, error)
            producer.channel.refused(producer, error)
        else:
            producer.channel.became_ready(producer)


async def _nothing_to_do(producer: TopicProducer) -> None:
    """Do nothing for a producer that joined."""
