"""The producers of one topic: names, admission, exclusive ownership."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable

from actors.broker.producer import Producer
from actors.broker.producer_access import Admission, ProducerAccess
from heliograph.errors import HeliographError, ProducerBusyError, ProducerFencedError, ServiceNotReadyError

_numbers = itertools.count()  # of the names given by this process; never twice, or deduplication would mix producers

log = logging.getLogger(__name__)


class TopicProducers:
    """All calls on one event loop.

    Args:
        topic: its name, for messages.
        access: with the epoch that is stored.
        store_epoch: makes an epoch durable before its owner may send.

    Attributes:
        connected: by name.
        on_joined: awaited with each producer that is among ``connected`` now, before it may send.
        on_left: called with each producer that is no longer among them.
    """

    def __init__(self, topic: str, access: ProducerAccess, store_epoch: Callable[[int], Awaitable[None]]) -> None:
        self.access = access
        self.connected: dict[str, Producer] = {}
        self.on_joined: Callable[[Producer], Awaitable[None]] = _nothing_to_do
        self.on_left: Callable[[Producer], None] = lambda producer: None
        self._topic = topic
        self._store_epoch = store_epoch
        self._promoting: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def admit(self, producer: Producer, unique_prefix: str, producers_max: int = 0) -> None:
        """Let a producer in, giving it a name when it has none. Afterwards ``is_ready`` says whether it may send; one
        that may not hears by its channel when it may.

        Args:
            producers_max: of the topic, waiting ones included; 0 for no limit.

        Raises:
            ProducerBusyError: the name, or the topic, is taken, or there are too many.
            ProducerFencedError: it can never have the topic as it wants it.
            ServiceNotReadyError: the topic was lost while its new owner was being stored.
        """
        if not producer.name:
            producer.name = f"{unique_prefix}-{next(_numbers)}"
        self._supersede(producer)
        try:
            admission = self._admission(producer, producers_max)
        except HeliographError:
            self._promote()  # it may have superseded its former self, and made room for others
            raise
        if admission is Admission.WAIT:
            producer.is_ready = False
            self.access.waiting.append(producer)
            return
        if admission is Admission.FENCE:
            self._fence_everybody()
        if admission is not Admission.ENTER:
            await self._claim(producer)
        await self._join(producer)

    def remove(self, producer: Producer) -> None:
        """A producer left. Its entries under way are stored all the same."""
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
        """Nobody may produce here any more; clients are told to look the topic up again."""
        self._is_closed = True
        self._close_connected()
        waiting, self.access.waiting = self.access.waiting, []
        for producer in waiting:
            producer.channel.refused(producer, ServiceNotReadyError(f"{self._topic} is not served here any more"))

    def disconnect(self, error: HeliographError) -> None:
        """Close everybody for a reason that newcomers hear as well; those who wait hear it now."""
        waiting, self.access.waiting = self.access.waiting, []
        for producer in waiting:
            producer.channel.refused(producer, error)
        self._close_connected()

    def _admission(self, producer: Producer, producers_max: int) -> Admission:
        if producers_max and len(self.connected) + len(self.access.waiting) >= producers_max:
            raise ProducerBusyError(
                f"{self._topic} has its producers", field="max_producers", limit=f"{producers_max} producers"
            )
        return self.access.admission(producer, self.connected.values())

    def _supersede(self, producer: Producer) -> None:
        """Make room for a client that comes back before its old connection was found to be dead."""
        other = self.connected.get(producer.name)
        if other is None:
            return
        is_newer = (
            other.channel is producer.channel
            and other.producer_id == producer.producer_id
            and producer.epoch > other.epoch
        )
        if not is_newer and not self.access.returns(producer):
            other.channel.probe()
            raise ProducerBusyError(f"a producer named {producer.name} is connected to {self._topic}")
        self._drop(other)
        if not is_newer:
            other.channel.close_producer(other)

    def _drop(self, producer: Producer) -> None:
        producer.is_closed = True
        del self.connected[producer.name]
        self.on_left(producer)
        if self.access.owner is producer:
            self.access.owner = None

    def _fence_everybody(self) -> None:
        waiting, self.access.waiting = self.access.waiting, []
        for producer in waiting:
            producer.channel.refused(producer, ProducerFencedError(f"{self._topic} was taken by another producer"))
        self._close_connected()

    def _close_connected(self) -> None:
        for producer in list(self.connected.values()):
            self._drop(producer)
            producer.channel.close_producer(producer)

    async def _claim(self, producer: Producer) -> None:
        """Make it the exclusive owner; nobody else gets in from now on."""
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

    async def _join(self, producer: Producer) -> None:
        self.connected[producer.name] = producer
        try:
            await self.on_joined(producer)
            if producer.is_closed:
                raise ServiceNotReadyError(f"{self._topic} or its producer was closed meanwhile")
        except BaseException:
            self.remove(producer)
            raise

    def _promote(self) -> None:
        """Whoever waits longest has its turn, if it is."""
        producer = None if self._is_closed else self.access.next_in_line(self.connected.values())
        if producer is not None:
            task = asyncio.get_running_loop().create_task(self._promote_one(producer))
            self.access.owner = producer  # until the task has begun to claim
            self._promoting.add(task)
            task.add_done_callback(self._promoting.discard)

    async def _promote_one(self, producer: Producer) -> None:
        try:
            await self._claim(producer)
            await self._join(producer)
        except HeliographError as error:
            log.info("%s: producer %s cannot be promoted: %s", self._topic, producer.name, error)
            producer.channel.refused(producer, error)
        else:
            producer.channel.became_ready(producer)


async def _nothing_to_do(producer: Producer) -> None:
    """Nobody prepares anything for a newcomer."""
