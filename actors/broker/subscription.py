"""A subscription of a topic: its cursor, its consumers, and the loop that brings the one to the others.

The decisions are the cursor's and the dispatcher's; this shell fetches entries, pushes them and keeps the bounds: at
most ``READ_AHEAD_BYTES_MAX`` of entries read from bookies wait here, and a turn of the loop pushes at most
``TURN_ENTRIES_MAX`` entries so that nobody waits for one subscription that catches up (I15).
"""

from __future__ import annotations

import asyncio
import enum
import logging
from collections.abc import Iterable, Sequence

from actors.broker.chain import Chain
from actors.broker.consumer import Consumer
from actors.broker.cursor import Cursor
from actors.broker.cursor_log import CursorLog
from actors.broker.dispatch import Dispatcher
from actors.broker.dispatch_exclusive import ExclusiveDispatcher
from actors.broker.dispatch_key_shared import KeySharedDispatcher
from actors.broker.dispatch_shared import SharedDispatcher
from actors.broker.position import Position
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from heliograph.errors import (
    ConflictError,
    ConsumerBusyError,
    HeliographError,
    ServiceNotReadyError,
)

TURN_ENTRIES_MAX = 200
READ_ENTRIES_MAX = 200  # of one read from the bookies
REPLAY_READ_ENTRIES_MAX = 16  # of one read for entries that are delivered again
READ_BYTES_MAX = 4 << 20
READ_AHEAD_BYTES_MAX = 8 << 20  # entries of one subscription that were read and not pushed yet
READ_RETRY_SECONDS = 0.2

log = logging.getLogger(__name__)


class SubscriptionType(enum.Enum):
    """Pulsar's names."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"
    FAILOVER = "Failover"
    KEY_SHARED = "Key_Shared"


def make_dispatcher(kind: SubscriptionType, cursor: Cursor, choice: int) -> Dispatcher:
    """The dispatcher of a type."""
    if kind is SubscriptionType.EXCLUSIVE:
        return ExclusiveDispatcher(cursor)
    if kind is SubscriptionType.FAILOVER:
        return ExclusiveDispatcher(cursor, choice)
    if kind is SubscriptionType.SHARED:
        return SharedDispatcher(cursor)
    assert kind is SubscriptionType.KEY_SHARED, "every type has its dispatcher"
    return KeySharedDispatcher(cursor)  # I16


class Subscription:
    """One subscription. All calls on one event loop.

    Args:
        cursor_log: None for a non-durable one, whose acknowledgements live as long as it does.
        failover_choice: see ExclusiveDispatcher.
    """

    def __init__(
        self,
        name: str,
        chain: Chain,
        reader: TopicReader,
        cursor: Cursor,
        cursor_log: CursorLog | None,
        failover_choice: int = 0,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.log = cursor_log
        self.kind = SubscriptionType.EXCLUSIVE
        self.consumers: dict[int, Consumer] = {}  # by the key of their state
        self.entries_out = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_acknowledged = 0
        self._chain = chain
        self._reader = reader
        self._choice = failover_choice
        self.dispatcher: Dispatcher = ExclusiveDispatcher(cursor)
        self._ahead: dict[int, TopicEntry] = {}  # read from bookies, not pushed yet
        self._ahead_bytes = 0
        self._ahead_end = 0  # reading ahead goes on here
        self._reading: asyncio.Task[None] | None = None
        self._pump_due = False
        self._is_resetting = False
        self._is_closed = False

    @property
    def is_durable(self) -> bool:
        """Whether acknowledgements survive."""
        return self.log is not None

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog(self._chain.end)

    # Consumers

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Connect a consumer.

        Raises:
            ConsumerBusyError: the type differs from that of the consumers connected, or there is no place for it.
            ServiceNotReadyError: the subscription is being reset; try again.
            ConflictError: its key ranges overlap with those of another consumer.
        """
        if self._is_resetting or self._is_closed:
            raise ServiceNotReadyError(f"subscription {self.name} is being changed, try again")
        if not self.consumers and kind is not self.kind:
            self.dispatcher = make_dispatcher(kind, self.cursor, self._choice)
            self.kind = kind
        elif kind is not self.kind:
            raise ConsumerBusyError(f"subscription {self.name} has consumers of type {self.kind.value}")
        before = self.dispatcher.active
        try:
            self.dispatcher.add(consumer.state)
        except ConsumerBusyError:
            for other in self.consumers.values():
                other.channel.probe()
            raise
        self.consumers[consumer.state.key] = consumer
        self._tell_active(before is not self.dispatcher.active, consumer)
        self.schedule_pump()

    def remove_consumer(self, consumer: Consumer) -> None:
        """Disconnect a consumer; what it did not acknowledge goes to others."""
        if self.consumers.pop(consumer.state.key, None) is None:
            return
        before = self.dispatcher.active
        self.dispatcher.remove(consumer.state)
        self._tell_active(before is not self.dispatcher.active, None)
        if self.consumers:
            self.schedule_pump()
        else:
            self._drop_ahead()

    def flow(self, consumer: Consumer, permits: int) -> None:
        """The consumer takes ``permits`` messages more."""
        consumer.state.permits += permits
        self.pump()

    def set_writable(self, consumer: Consumer, is_writable: bool) -> None:
        """The consumer's connection has room again, or none."""
        consumer.state.is_writable = is_writable
        if is_writable:
            self.schedule_pump()

    # Acknowledgements

    def acknowledge(self, acks: Iterable[tuple[Position, int | None]]) -> asyncio.Future[None] | None:
        """Individual acknowledgements; the second of each pair is None, or the bits of the messages still open.

        Returns:
            a shared future that resolves when they are durable, None when nothing has to be awaited. Ids that are not
            of this topic (any more) are ignored.
        """
        for position, bits in acks:
            index = self._chain.find(position)
            if index is None:
                continue
            cursor = self.cursor
            if cursor.acknowledge_messages(index, bits) if bits else cursor.acknowledge(index):
                self.messages_acknowledged += 1
                self.dispatcher.acknowledged(index)
        return self._after_acknowledging()

    def acknowledge_cumulative(self, position: Position, bits: int | None = None) -> asyncio.Future[None] | None:
        """Acknowledge everything up to and with ``position`` (of its batch: all but ``bits``)."""
        mark = min(self._chain.after(position), self._chain.end)
        if bits and (index := self._chain.find(position)) is not None:
            self._skip_to(index)
            return self.acknowledge([(position, bits)])
        self._skip_to(mark)
        return self._after_acknowledging()

    def skip(self, entries: int | None) -> asyncio.Future[None] | None:
        """Acknowledge the next ``entries`` unacknowledged entries, or all there are."""
        mark = self._chain.end
        if entries is not None:
            mark = self.cursor.mark
            for _ in range(min(entries, self.backlog)):
                mark = self.cursor.next_unacknowledged(mark) + 1
        self._skip_to(min(mark, self._chain.end))
        return self._after_acknowledging()

    def redeliver(self, consumer: Consumer, positions: Sequence[Position]) -> None:
        """The consumer gives these entries back (none named: all that it holds)."""
        indexes = [index for position in positions if (index := self._chain.find(position)) is not None]
        consumer.messages_redelivered += len(indexes)
        self.dispatcher.redeliver(consumer.state, indexes if positions else None)
        self.schedule_pump()

    # Moving

    async def reset(self, mark: int, bits: int | None = None) -> None:
        """Seek: the next entry to deliver is ``mark`` (of its batch: the messages in ``bits``).

        Every consumer is disconnected first and its client told so, then the cursor moves, durably.

        Raises:
            PersistenceError: the new place could not be stored; it may hold or not.
        """
        if self._is_resetting:
            raise ConflictError(f"subscription {self.name} is being reset already")
        self._is_resetting = True
        try:
            self.disconnect()
            self.cursor.reset(min(max(mark, self._chain.first), self._chain.end))
            if bits and mark == self.cursor.mark and mark < self._chain.end:
                self.cursor.acknowledge_messages(mark, bits)
            self.dispatcher.rewind()
            self._drop_ahead()
            if self.log is not None:
                await asyncio.shield(self.log.persist())
        finally:
            self._is_resetting = False

    def disconnect(self) -> None:
        """Close every consumer; their clients subscribe again."""
        for consumer in list(self.consumers.values()):
            self.remove_consumer(consumer)
            consumer.channel.close_consumer(consumer)

    async def close(self) -> None:
        """Disconnect everybody and make the last acknowledgements durable."""
        self._stop()
        if self.log is not None:
            await self.log.close()

    async def delete(self) -> None:
        """Disconnect everybody and forget the cursor for good."""
        self._stop()
        if self.log is not None:
            await self.log.delete()

    def abandon(self, error: HeliographError) -> None:
        """The topic is another's: dispatch nothing, confirm nothing (I13)."""
        self._stop()
        if self.log is not None:
            self.log.abandon(error)

    # Delivery

    def schedule_pump(self) -> None:
        """Deliver on the next turn of the loop."""
        if not self._pump_due and not self._is_closed:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._run_pump)

    def _run_pump(self) -> None:
        self._pump_due = False
        self.pump()

    def pump(self) -> None:
        """Deliver what can be delivered now."""
        if self._is_closed or not self.consumers:
            return
        end, dispatcher = self._chain.end, self.dispatcher
        for _ in range(TURN_ENTRIES_MAX):
            index = dispatcher.next_wanted(end)
            if index is None:
                break
            if index < self._chain.first:  # trimmed away meanwhile
                self._skip_to(self._chain.first)
                continue
            entry = self._take(index)
            if entry is None:
                self._read_ahead(index)
                return
            self._deliver(index, entry)
        else:
            self.schedule_pump()
        if self._ahead:
            self._read_on()

    def _deliver(self, index: int, entry: TopicEntry) -> None:
        if entry.is_marker:
            self.dispatcher.skip(index)
            self.cursor.acknowledge(index)
            return
        bits = self.cursor.unacknowledged_bits(index)
        messages = entry.messages if bits is None else bits.bit_count()
        delivery = self.dispatcher.deliver(index, entry, messages)
        if delivery is None:
            return
        state, redelivery_count = delivery
        consumer = self.consumers[state.key]
        consumer.entries_out += 1
        consumer.messages_out += messages
        consumer.bytes_out += len(entry.payload)
        self.entries_out += 1
        self.messages_out += messages
        self.bytes_out += len(entry.payload)
        consumer.channel.push(consumer, self._chain.position_at(index), entry, redelivery_count, bits)

    def _take(self, index: int) -> TopicEntry | None:
        entry = self._ahead.pop(index, None) if self._ahead else None
        if entry is not None:
            self._ahead_bytes -= len(entry.payload)
            return entry
        return self._reader.cached(index)

    # Reading ahead

    def _read_ahead(self, index: int) -> None:
        """``index`` is wanted and is in no cache: read from there on."""
        if self._reading is None:
            self._drop_ahead()
            self._ahead_end = index
            self._start_reading()

    def _read_on(self) -> None:
        """Have the next read under way while what was read is being pushed."""
        if self._reading is None and self._ahead_bytes <= READ_AHEAD_BYTES_MAX - READ_BYTES_MAX:
            at = self._ahead_end
            if self._chain.first <= at < self._chain.end and self._reader.cached(at) is None:
                self._start_reading()

    def _start_reading(self) -> None:
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def _read(self) -> None:
        first = self._ahead_end
        is_replay = first < self.dispatcher.read_index
        entries_max = REPLAY_READ_ENTRIES_MAX if is_replay else READ_ENTRIES_MAX
        try:
            if first >= self._chain.first:
                found = await self._reader.read(first, entries_max, READ_BYTES_MAX)
                if first == self._ahead_end:  # nobody moved meanwhile
                    for index, entry in found:
                        self._ahead[index] = entry
                        self._ahead_bytes += len(entry.payload)
                    self._ahead_end = found[-1][0] + 1
        except HeliographError as error:
            log.warning("subscription %s: reading: %s", self.name, error)
            await asyncio.sleep(READ_RETRY_SECONDS)
        finally:
            self._reading = None
        self.pump()

    def _drop_ahead(self) -> None:
        self._ahead.clear()
        self._ahead_bytes = 0
        self._ahead_end = -1

    def _skip_to(self, mark: int) -> None:
        if self.cursor.skip_to(mark):
            self.messages_acknowledged += 1
            self.dispatcher.acknowledged_up_to(mark - 1)

    def _after_acknowledging(self) -> asyncio.Future[None] | None:
        if self.kind is not SubscriptionType.EXCLUSIVE:
            self.schedule_pump()  # a limit on unacknowledged messages may have held delivery back
        return self.log.persist() if self.log is not None else None

    def _tell_active(self, changed: bool, joined: Consumer | None) -> None:
        if self.kind is not SubscriptionType.FAILOVER:
            return
        active, loop = self.dispatcher.active, asyncio.get_running_loop()
        for consumer in self.consumers.values():
            if changed or consumer is joined:  # not before the answer to a SUBSCRIBE under way
                loop.call_soon(consumer.channel.active_changed, consumer, consumer.state is active)

    def _stop(self) -> None:
        self._is_closed = True
        if self._reading is not None:
            self._reading.cancel()
        self.disconnect()
        self._drop_ahead()
