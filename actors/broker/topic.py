"""A topic that this broker serves: its managed ledger, its producers and its subscriptions."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping

from actors.broker.cursor import Cursor
from actors.broker.cursor_log import CursorLog, CursorPlace
from actors.broker.cursor_recovery import create_cursor, recover_cursor
from actors.broker.ledgers import Ledgers
from actors.broker.managed_ledger import ManagedLedger, Publication, WriteState
from actors.broker.position import Position
from actors.broker.producer import Producer
from actors.broker.subscription import Subscription
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from actors.broker.topic_record import now_ms
from heliograph.errors import (
    HeliographError,
    ProducerBusyError,
    ServiceNotReadyError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
)
from heliograph.protocol.hashing import murmur3_hash
from heliograph.protocol.topic_name import TopicName
from metadata import paths
from metadata.errors import NodeExistsError
from metadata.store import MetadataStore

NEEDED_BY_NOBODY = 1 << 62  # greater than any ledger id

log = logging.getLogger(__name__)


class Topic:
    """One topic. All calls on one event loop.

    Attributes:
        on_lost: called once when the topic is not ours any more and everybody was told.
    """

    def __init__(
        self,
        name: TopicName,
        path: str,
        bundle: str,
        ledger: ManagedLedger,
        reader: TopicReader,
        store: MetadataStore,
        ledgers: Ledgers,
    ) -> None:
        self.name = name
        self.path = path
        self.bundle = bundle
        self.ledger = ledger
        self.reader = reader
        self.producers: dict[str, Producer] = {}
        self.subscriptions: dict[str, Subscription] = {}
        self.on_lost: Callable[[], None] = lambda: None
        self.messages_in = 0
        self.opened_ms = now_ms()
        self._store = store
        self._ledgers = ledgers
        self._subscribing = asyncio.Lock()
        self._names = itertools.count()
        self._is_closing = False
        ledger.on_confirmed = self._entries_confirmed
        ledger.on_lost = self._lost

    @property
    def is_open(self) -> bool:
        """Whether it can be published to and subscribed to."""
        return not self._is_closing and self.ledger.state is not WriteState.CLOSED

    async def load_subscriptions(self) -> None:
        """Take over every durable cursor of the topic."""
        names = [paths.last_part("/" + child) for child in await self._store.children(self.path)]
        logs = await asyncio.gather(
            *(recover_cursor(self._place(name), self.ledger.chain, self._store, self._ledgers) for name in names)
        )
        for name, cursor_log in zip(names, logs, strict=True):
            cursor_log.on_lost = self.ledger.lose
            self._keep(name, cursor_log.cursor, cursor_log)

    # Producers

    def add_producer(self, producer: Producer, unique_prefix: str) -> None:
        """Connect a producer, giving it a name when it has none.

        Raises:
            ProducerBusyError: a producer of that name is connected.
            ServiceNotReadyError: the topic is being closed.
        """
        self._check_open()
        if not producer.name:
            producer.name = f"{unique_prefix}-{next(self._names)}"
        other = self.producers.get(producer.name)
        if other is not None:
            supersedes = (
                other.channel is producer.channel
                and other.producer_id == producer.producer_id
                and producer.epoch > other.epoch
            )
            if not supersedes:
                other.channel.probe()
                raise ProducerBusyError(f"a producer named {producer.name} is connected to {self.name}")
            other.is_closed = True
        self.producers[producer.name] = producer

    def remove_producer(self, producer: Producer) -> None:
        """Disconnect a producer. Its entries under way are stored all the same."""
        producer.is_closed = True
        if self.producers.get(producer.name) is producer:
            del self.producers[producer.name]

    def publish(self, entry: TopicEntry, publication: Publication) -> None:
        """Append an entry after all others; ``publication`` hears its fate."""
        if self._is_closing:
            publication.failed(ServiceNotReadyError(f"{self.name} is being closed"))
            return
        self.messages_in += entry.messages
        self.ledger.add(entry, publication)

    # Subscriptions

    async def subscribe(
        self, name: str, *, start: int | None, is_durable: bool = True, properties: Mapping[str, str] | None = None
    ) -> Subscription:
        """The subscription of that name; a new one starts at the entry ``start``, None: behind the last.

        Raises:
            SubscriptionExistsError: it exists with the other durability.
            ServiceNotReadyError: the topic is being closed.
        """
        async with self._subscribing:
            self._check_open()
            found = self.subscriptions.get(name)
            if found is not None:
                if found.is_durable != is_durable:
                    raise SubscriptionExistsError(f"{name} exists and is {'not ' * (not found.is_durable)}durable")
                return found
            chain = self.ledger.chain
            mark = chain.end if start is None else min(max(start, chain.first), chain.end)
            if not is_durable:
                return self._keep(name, Cursor(mark), None)
            try:
                cursor_log = await create_cursor(
                    self._place(name), mark, chain, self._store, self._ledgers, properties or {}
                )
            except NodeExistsError as error:
                raise ServiceNotReadyError(f"subscription {name} was made by another broker") from error
            cursor_log.on_lost = self.ledger.lose
            return self._keep(name, cursor_log.cursor, cursor_log)

    def subscription(self, name: str) -> Subscription:
        """Raises SubscriptionNotFoundError."""
        try:
            return self.subscriptions[name]
        except KeyError:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}", field="subscription") from None

    async def unsubscribe(self, name: str) -> None:
        """Remove a subscription for good."""
        subscription = self.subscription(name)
        await subscription.delete()
        self.subscriptions.pop(name, None)

    def drop_if_idle(self, subscription: Subscription) -> None:
        """A non-durable subscription ends with its last consumer."""
        if not subscription.is_durable and not subscription.consumers:
            self.subscriptions.pop(subscription.name, None)

    # Places in the topic

    async def last_message(self) -> tuple[Position, TopicEntry | None]:
        """The position of the newest entry with the entry, or the place before the first one."""
        chain = self.ledger.chain
        if chain.end == chain.first:
            return Position(-1, -1), None
        index = chain.end - 1
        return chain.position_at(index), await self.reader.entry(index)

    async def index_at_time(self, publish_time_ms: int) -> int:
        """The first entry published at or after a time, by bisection: publish times hardly ever go back."""
        low, high = self.ledger.chain.first, self.ledger.chain.end
        while low < high:
            middle = (low + high) // 2
            entry = await self.reader.entry(middle)
            if entry.publish_time_ms < publish_time_ms:
                low = middle + 1
            else:
                high = middle
        return low

    # Life

    async def trim(self) -> int:
        """Delete ledgers that nobody needs (I14); returns how many."""
        marks = [s.cursor.mark for s in self.subscriptions.values() if s.is_durable]
        needed = NEEDED_BY_NOBODY
        if marks:
            needed = self.ledger.chain.position_at(max(min(marks), self.ledger.chain.first)).ledger_id
        return await self.ledger.trim(needed, now_ms())

    async def close(self) -> None:
        """Stop serving: what is under way is finished, then clients are told to look the topic up again."""
        self._is_closing = True
        async with self._subscribing:
            subscriptions, self.subscriptions = list(self.subscriptions.values()), {}
        await self.ledger.close()
        self._disconnect_producers()
        await asyncio.gather(*(subscription.close() for subscription in subscriptions))
        await self.reader.close()

    def abandon(self, error: HeliographError) -> None:
        """Stop serving at once: nothing is confirmed and nothing dispatched from now on (I13)."""
        self.ledger.lose(error)

    def _lost(self, error: HeliographError) -> None:
        log.warning("%s is no longer served here: %s", self.name, error)
        subscriptions, self.subscriptions = list(self.subscriptions.values()), {}
        for subscription in subscriptions:
            subscription.abandon(error)
        self._disconnect_producers()
        self.on_lost()

    def _disconnect_producers(self) -> None:
        producers, self.producers = list(self.producers.values()), {}
        for producer in producers:
            producer.channel.close_producer(producer)

    def _entries_confirmed(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.pump()

    def _check_open(self) -> None:
        if not self.is_open:
            raise ServiceNotReadyError(f"{self.name} is not served here any more")

    def _keep(self, name: str, cursor: Cursor, cursor_log: CursorLog | None) -> Subscription:
        choice = self.name.partition if self.name.partition >= 0 else murmur3_hash(str(self.name))
        subscription = Subscription(name, self.ledger.chain, self.reader, cursor, cursor_log, choice)
        self.subscriptions[name] = subscription
        return subscription

    def _place(self, subscription: str) -> CursorPlace:
        return CursorPlace(str(self.name), subscription, paths.cursor(self.path, subscription), self.ledger.persistence)
