"""A subscription of a topic: its cursor, its consumers, and the loop that brings the one to the others.

The decisions are the cursor's and the dispatcher's; this shell fetches entries, pushes them and keeps the bounds: a
turn of the loop pushes at most ``TURN_ENTRIES_MAX`` entries so that nobody waits for one subscription that catches up
(I15). What is read ahead and what waits for its time have bounds of their own.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from actors.broker.chain import Chain
from actors.broker.consumer import Consumer, ConsumerChannel
from actors.broker.cursor import Cursor
from actors.broker.cursor_log import CursorLog
from actors.broker.delayed_delivery import DelayedDelivery
from actors.broker.delayed_log import DelayedLog
from actors.broker.dispatch import ConsumerState, Dispatcher
from actors.broker.dispatch_exclusive import ExclusiveDispatcher
from actors.broker.dispatch_rate import DispatchRate, longest_wait
from actors.broker.failover_choice import FailoverChoice
from actors.broker.ledgers import Ledgers
from actors.broker.position import Position
from actors.broker.read_ahead import ReadAhead
from actors.broker.subscription_type import SubscriptionType, make_dispatcher
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from actors.broker.topic_record import now_ms
from heliograph.errors import ConflictError, ConsumerBusyError, HeliographError, ServiceNotReadyError
from metadata.model import Policies

TURN_ENTRIES_MAX = 200
DUE_MAX = 1_000  # entries whose time has come that nobody looked at yet, before more join them
FULL_DELAY_SECONDS = 1.0  # between looks while no further entry can be held back
COMPACTION = "__compaction"  # the subscription that holds ledgers until they are compacted
OWN_PROPERTIES = "heliograph."  # properties of the cursor's record that are not the user's

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SubscriptionSetting:
    """What a subscription has from its topic and broker.

    Args:
        failover_delay_seconds: from a change of the active consumer to its first delivery.
        splits_keys: whether Key_Shared halves ranges for newcomers instead of using a ring.
        topic_rate: shared by all subscriptions of the topic.
    """

    policies: Policies = field(default_factory=Policies)
    choice: FailoverChoice = field(default_factory=lambda: FailoverChoice(0))
    failover_delay_seconds: float = 1.0
    splits_keys: bool = False
    topic_rate: DispatchRate = field(default_factory=DispatchRate)


class Subscription:
    """One subscription. All calls on one event loop.

    Args:
        cursor_log: None for a non-durable one, whose acknowledgements live as long as it does.
        ledgers: where the index of delayed entries is kept.
    """

    def __init__(
        self,
        name: str,
        chain: Chain,
        reader: TopicReader,
        cursor: Cursor,
        cursor_log: CursorLog | None,
        setting: SubscriptionSetting,
        ledgers: Ledgers,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.log = cursor_log
        self.kind = SubscriptionType.EXCLUSIVE
        self.reads_compacted = False
        self.consumers: dict[int, Consumer] = {}  # by the key of their state
        self.entries_out = 0
        self.messages_out = 0
        self.bytes_out = 0
        self.messages_acknowledged = 0
        self.messages_dropped = 0  # of a topic that stores nothing: nobody could take them
        self.on_progress: Callable[[Subscription], None] | None = None  # somebody waits for it to come to the end
        self.entries_expired = 0
        self.expired_ms = 0
        self.idle_since_ms = now_ms()  # of the last consumer's end, or of the opening
        self.chain = chain
        self._policies = setting.policies
        self._setting = setting
        self._rate = DispatchRate()
        self._is_limited = False
        self.dispatcher: Dispatcher = ExclusiveDispatcher(cursor)
        delayed_log = None if cursor_log is None else DelayedLog(cursor_log, chain, ledgers)
        self.delays = DelayedDelivery(chain, cursor, delayed_log, self.schedule_pump)
        self._ahead = ReadAhead(chain, reader, self.pump)
        self._pump_due = False
        self._timer: asyncio.TimerHandle | None = None  # for the limits on rates, and what else waits for time
        self._handover: asyncio.TimerHandle | None = None  # from one active consumer to the next
        self._is_resetting = False
        self._is_closed = False
        self.apply_policies(setting.policies)

    def apply_policies(self, policies: Policies) -> None:
        """Go by these from now on."""
        self._policies = policies
        self._rate.set(
            policies.subscription_dispatch_messages_per_second, policies.subscription_dispatch_bytes_per_second
        )
        self.dispatcher.set_limits(policies.max_unacked_per_consumer, policies.max_unacked_per_subscription)
        if self.consumers:
            self.schedule_pump()

    @property
    def properties(self) -> Mapping[str, str]:
        """What its user attached to it."""
        stored = self.log.properties if self.log is not None else {}
        return {name: value for name, value in stored.items() if not name.startswith(OWN_PROPERTIES)}

    @property
    def is_durable(self) -> bool:
        """Whether acknowledgements survive."""
        return self.log is not None

    @property
    def is_internal(self) -> bool:
        """Whether it is the broker's own, which no policy ends or expires."""
        return self.name == COMPACTION

    @property
    def topic_mark(self) -> int:
        """Where the cursor stands, as an index of the topic's own chain."""
        return self.chain.to_base(self.cursor.mark)

    @property
    def backlog(self) -> int:
        """Entries that are not acknowledged."""
        return self.cursor.backlog(self.chain.end)

    # Consumers

    def add_consumer(self, consumer: Consumer, kind: SubscriptionType) -> None:
        """Connect a consumer.

        Raises:
            ConsumerBusyError: the type differs from that of the consumers connected, or there is no place for it.
            ServiceNotReadyError: the subscription is being reset; try again.
            ConsumerAssignError: its key ranges overlap with those of another consumer.
        """
        if self._is_resetting or self._is_closed:
            raise ServiceNotReadyError(f"subscription {self.name} is being changed, try again")
        if not self.consumers and kind is not self.kind:
            setting, policies = self._setting, self._policies
            self.dispatcher = make_dispatcher(
                kind, self.cursor, setting.choice, self.delays.index, splits_keys=setting.splits_keys
            )
            self.dispatcher.set_limits(policies.max_unacked_per_consumer, policies.max_unacked_per_subscription)
            self.kind = kind
        elif kind is not self.kind:
            raise ConsumerBusyError(f"subscription {self.name} has consumers of type {self.kind.value}")
        limit = self._policies.max_consumers_per_subscription
        if limit and len(self.consumers) >= limit:
            raise ConsumerBusyError(
                f"subscription {self.name} has {limit} consumers, as many as it may",
                field="max_consumers_per_subscription",
                limit=f"{limit} consumers",
            )
        before = self.dispatcher.active
        self.dispatcher.add(consumer.state)
        self.consumers[consumer.state.key] = consumer
        self._active_changed(before, consumer)
        self.schedule_pump()

    def rivals(self, consumer: Consumer, kind: SubscriptionType) -> list[ConsumerChannel]:
        """Whose place a consumer wants that was refused. Who asks himself is there."""
        if kind is not self.kind or (kind is not SubscriptionType.EXCLUSIVE and consumer.state.key_ranges is None):
            return []
        others = (other.channel for other in self.consumers.values())
        return [channel for channel in dict.fromkeys(others) if channel is not consumer.channel]

    def remove_consumer(self, consumer: Consumer) -> None:
        """Disconnect a consumer; what it did not acknowledge goes to others."""
        if self.consumers.pop(consumer.state.key, None) is None:
            return
        before = self.dispatcher.active
        self.dispatcher.remove(consumer.state)
        self._active_changed(before, None)
        if self.consumers:
            self.schedule_pump()
        else:
            self.idle_since_ms = now_ms()
            self._ahead.drop()

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
            index = self.chain.find(position)
            if index is None:
                continue
            cursor = self.cursor
            if cursor.acknowledge_messages(index, bits) if bits else cursor.acknowledge(index):
                self.messages_acknowledged += 1
                self.dispatcher.acknowledged(index)
                if self.delays.index.count:
                    self.delays.forget(index)
            elif bits and (left := cursor.unacknowledged_bits(index)) is not None:
                self.dispatcher.partly_acknowledged(index, left.bit_count())
        return self._after_acknowledging()

    def acknowledge_cumulative(self, position: Position, bits: int | None = None) -> asyncio.Future[None] | None:
        """Acknowledge everything up to and with ``position`` (of its batch: all but ``bits``). A position behind the
        last entry is ignored."""
        if self.chain.end == self.chain.first or position > self.chain.position_at(self.chain.end - 1):
            return self._after_acknowledging()
        mark = min(self.chain.after(position), self.chain.end)
        if bits and (index := self.chain.find(position)) is not None:
            self._skip_to(index)
            return self.acknowledge([(position, bits)])
        self._skip_to(mark)
        return self._after_acknowledging()

    def skip(self, entries: int | None) -> asyncio.Future[None] | None:
        """Acknowledge the next ``entries`` unacknowledged entries, or all there are."""
        return self.skip_to(self.chain.end if entries is None else self.cursor.after_open(entries))

    def skip_to(self, mark: int) -> asyncio.Future[None] | None:
        """Count everything before the entry ``mark`` as acknowledged (skip, expiry, eviction)."""
        self._skip_to(min(mark, self.chain.end))
        return self._after_acknowledging()

    def persist(self) -> asyncio.Future[None] | None:
        """A future that resolves when every acknowledgement made so far is durable; None for a non-durable one."""
        return self.log.persist() if self.log is not None else None

    def redeliver(self, consumer: Consumer, positions: Sequence[Position], epoch: int | None = None) -> None:
        """The consumer gives these entries back (none named: all that it holds).

        Args:
            epoch: from now on the consumer drops what was pushed in an older one; a redelivery of an older one is late.
        """
        if epoch is not None:
            if consumer.epoch is not None and epoch < consumer.epoch:
                return
            consumer.epoch = epoch
        indexes = [index for position in positions if (index := self.chain.find(position)) is not None]
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
            self.cursor.reset(min(max(mark, self.chain.first), self.chain.end))
            if bits and mark == self.cursor.mark and mark < self.chain.end:
                self.cursor.acknowledge_messages(mark, bits)
            self.dispatcher.rewind()
            self.delays.forget_below(self.cursor.mark)
            self._ahead.drop()
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
        await self.delays.close()
        if self.log is not None:
            await self.log.close()

    async def delete(self) -> None:
        """Disconnect everybody and forget the cursor for good."""
        self._stop()
        if self.log is not None:
            await self.log.delete()
            await self.delays.delete()

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
        end, dispatcher, delays = self.chain.end, self.dispatcher, self.delays
        is_limited = self._is_limited = self._rate.is_limited or self._setting.topic_rate.is_limited
        if self.kind.is_shared:
            if self._policies.delayed_delivery and not delays.ensure_loaded():
                return
            if delays.index.count and dispatcher.due_count < DUE_MAX:
                dispatcher.make_due(delays.take_due())
        for _ in range(TURN_ENTRIES_MAX):
            index = dispatcher.next_wanted(end)
            if index is None:
                break
            if index < self.chain.first:  # trimmed away meanwhile
                self._skip_to(self.chain.first)
                continue
            if is_limited and self._must_wait():
                return
            entry = self._ahead.take(index)
            if entry is None:
                self._ahead.start_at(index, is_replay=index < dispatcher.read_index)
                return
            if entry.deliver_at_ms and self.kind.is_shared and self._policies.delayed_delivery:
                if delays.index.is_full:
                    self._pump_later(FULL_DELAY_SECONDS)
                    return
                if delays.hold_back(index, entry.deliver_at_ms):
                    dispatcher.skip(index)
                    continue
            self._deliver(index, entry)
        else:
            self.schedule_pump()
        self._ahead.go_on()
        if self.on_progress is not None:
            self.on_progress(self)

    def _must_wait(self) -> bool:
        """Whether a limit on rates is reached; delivery goes on by itself."""
        wait = longest_wait((self._rate, self._setting.topic_rate), time.monotonic())
        if wait > 0:
            self._pump_later(wait)
        return wait > 0

    def _pump_later(self, seconds: float) -> None:
        if self._timer is None and not self._is_closed:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._run_timer)

    def _run_timer(self) -> None:
        self._timer = None
        self.pump()

    def _deliver(self, index: int, entry: TopicEntry) -> None:
        if entry.is_marker:
            self.dispatcher.skip(index)
            self.cursor.acknowledge(index)
            return
        bits = self.cursor.unacknowledged_bits(index)
        if entry.live is not None:  # clients skip what is not among the bits
            bits = entry.live if bits is None else bits & entry.live
            if not bits:
                self.dispatcher.skip(index)
                self.cursor.acknowledge(index)
                return
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
        if self._is_limited:
            now = time.monotonic()
            self._rate.take(messages, len(entry.payload), now)
            self._setting.topic_rate.take(messages, len(entry.payload), now)
        consumer.channel.push(consumer, self.chain.position_at(index), entry, redelivery_count, bits)

    def _skip_to(self, mark: int) -> None:
        if self.cursor.skip_to(mark):
            self.messages_acknowledged += 1
            self.dispatcher.acknowledged_up_to(mark - 1)
            self.delays.forget_below(mark)

    def _after_acknowledging(self) -> asyncio.Future[None] | None:
        if self.kind is not SubscriptionType.EXCLUSIVE:
            self.schedule_pump()  # a limit on unacknowledged messages may have held delivery back
        if self.on_progress is not None:
            self.on_progress(self)
        return self.log.persist() if self.log is not None else None

    def _active_changed(self, before: ConsumerState | None, joined: Consumer | None) -> None:
        """Failover: tell who is active, and give what the one before acknowledges the time to arrive."""
        dispatcher = self.dispatcher
        if self.kind is not SubscriptionType.FAILOVER or not isinstance(dispatcher, ExclusiveDispatcher):
            return
        active, loop = dispatcher.active, asyncio.get_running_loop()
        for consumer in self.consumers.values():
            if active is not before or consumer is joined:  # not before the answer to a SUBSCRIBE under way
                loop.call_soon(consumer.channel.active_changed, consumer, consumer.state is active)
        delay = self._setting.failover_delay_seconds
        if active is None:
            self._resume()
        elif active is not before and before is not None and delay > 0:
            dispatcher.is_held_off = True
            if self._handover is not None:
                self._handover.cancel()
            self._handover = loop.call_later(delay, self._resume)

    def _resume(self) -> None:
        if self._handover is not None:
            self._handover.cancel()
            self._handover = None
        if isinstance(self.dispatcher, ExclusiveDispatcher) and self.dispatcher.is_held_off:
            self.dispatcher.resume()
            self.schedule_pump()

    def _stop(self) -> None:
        self._is_closed = True
        self._ahead.stop()
        self.delays.stop()
        for timer in (self._timer, self._handover):
            if timer is not None:
                timer.cancel()
        self.disconnect()
        self._ahead.drop()
