"""A subscription of a topic: its cursor, its consumers, and the delivery loop between them.

The cursor and the dispatcher decide; this class fetches entries, pushes them and keeps the bounds. A turn of the loop
pushes at most ``TURN_ENTRIES_MAX`` entries and ``TURN_BYTES_MAX`` bytes, so that a subscription that catches up delays
neither the others nor the receipts of producers for long (I15). Read-ahead and delayed delivery have their own bounds.
"""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence

from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.log import CursorLog
from heliograph.actors.broker.delayed.delivery import DelayedDelivery
from heliograph.actors.broker.delayed.log import DelayedLog
from heliograph.actors.broker.dispatch.dispatcher import CrashBudget, Dispatcher
from heliograph.actors.broker.dispatch.exclusive import ExclusiveDispatcher
from heliograph.actors.broker.limits.dispatch_rate import DispatchRate, longest_wait, subscription_limits
from heliograph.actors.broker.limits.rates import RateWindow
from heliograph.actors.broker.managed_ledger.chain import Chain, NotLoadedError
from heliograph.actors.broker.managed_ledger.read_ahead import SubscriptionReadAhead
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.consumer import ConsumerChannel, SubscriptionConsumer
from heliograph.actors.broker.subscription.divided import DividedBatches
from heliograph.actors.broker.subscription.handover import Handover
from heliograph.actors.broker.subscription.setting import SubscriptionSetting
from heliograph.actors.broker.subscription.state import SUBSCRIPTION_LIFECYCLE, SubscriptionState
from heliograph.actors.broker.subscription.type import SubscriptionType, make_dispatcher
from heliograph.actors.broker.tracing import TracedDeliveries
from heliograph.base.clock import wall_ms
from heliograph.base.completion import shielded, weakly
from heliograph.base.errors import ConflictError, ConsumerBusyError, HeliographError, ServiceNotReadyError
from heliograph.metadata.model import Policies
from heliograph.metrics.metric import LATENCY_BOUNDS

TURN_ENTRIES_MAX = 200
TURN_BYTES_MAX = 256 << 10  # the entry that reaches it is the last: large ones are copied to a socket at once
DUE_MAX = 1_000  # entries whose delivery time has come and that wait in the dispatcher, before more are added
HOLD_CHECK_SECONDS = 0.1  # between two looks whether the topic is held, while it is not
FULL_DELAY_SECONDS = 1.0  # between attempts while the index of delayed entries is full
RATE_CHECK_SECONDS_MAX = 1.0  # a limit relative to the rate of publishing changes while the delivery waits
COMPACTION = "__compaction"  # the subscription that keeps ledgers until they are compacted
OWN_PROPERTIES = "heliograph."  # properties of the cursor's record that are not the user's

log = logging.getLogger(__name__)


class Subscription:
    """One subscription. All calls on one event loop.

    Args:
        chain: the topic's own chain, or its compacted form's.
        cursor_log: None for a non-durable subscription, whose acknowledgements are kept in memory only.
        ledgers: stores the index of delayed entries.

    Attributes:
        state: changed by ``SUBSCRIPTION_LIFECYCLE`` only.
    """

    def __init__(
        self,
        name: str,
        chain: Chain,
        reader: EntryReader,
        cursor: Cursor,
        cursor_log: CursorLog | None,
        setting: SubscriptionSetting,
        ledgers: LedgersPort,
    ) -> None:
        self.name = name
        self.cursor = cursor
        self.log = cursor_log
        if cursor_log is not None:
            cursor_log.latency = setting.traffic.acknowledgement_latency
        self.kind = SubscriptionType.EXCLUSIVE
        self.consumers: dict[int, SubscriptionConsumer] = {}  # by the key of their state
        self.entries_out = self.messages_out = self.bytes_out = 0
        self.entries_acknowledged = 0  # wholly, one by one or by skipping
        self.messages_dropped = 0  # of a non-persistent topic: no consumer could take them
        self.on_progress: Callable[[Subscription], None] | None = None  # of a terminated topic
        self.messages_expired = self.expired_ms = 0
        self.idle_since_ms = wall_ms()  # when the last consumer left, or the subscription was opened
        self.oldest = (-1, 0)  # index of the first entry of the backlog, and when it was stored, for its metrics
        self.chain = chain
        self.reader = reader
        self._counted_after = -1 if chain.count is None else chain.count.after
        self._setting = setting
        self._activity = setting.activity
        self.window = RateWindow(time.monotonic(), 4)  # of the counters above
        self._rate = DispatchRate(setting.topic_rate.published)
        self._is_limited = self._pump_due = self.reads_compacted = False
        self.dispatcher: Dispatcher = ExclusiveDispatcher(cursor)
        delayed_log = None if cursor_log is None else DelayedLog(cursor_log, chain, ledgers)
        self.delays = DelayedDelivery(chain, cursor, delayed_log, weakly(self.schedule_pump))
        self._ahead = SubscriptionReadAhead(chain, reader, weakly(self.pump))
        self._divided = DividedBatches(reader.budget)
        self._timer: asyncio.TimerHandle | None = None  # the next delivery, when a rate limit or a full index delays it
        self._handover = Handover(setting.consumers, weakly(self.schedule_pump))
        self._traced: TracedDeliveries | None = None  # made for the first followed entry
        self.state = SubscriptionState.OPEN
        self.apply_policies(setting.policies)

    def apply_policies(self, policies: Policies) -> None:
        """Apply new policies of the topic to the open subscription."""
        policies = self._policies = policies.of_subscription(self.name)
        self._rate.set(*subscription_limits(policies))
        self.dispatcher.set_limits(policies.max_unacked_per_consumer, policies.max_unacked_per_subscription)
        if self.consumers:
            self.schedule_pump()

    @property
    def properties(self) -> Mapping[str, str]:
        stored = self.log.properties if self.log is not None else {}
        return {name: value for name, value in stored.items() if not name.startswith(OWN_PROPERTIES)}

    @property
    def is_durable(self) -> bool:
        return self.log is not None

    @property
    def is_internal(self) -> bool:
        """Return whether it is the broker's own, which no policy expires or evicts."""
        return self.name == COMPACTION

    @property
    def topic_mark(self) -> int:
        """Return the cursor's mark as an index of the topic's own chain."""
        return self.chain.to_base(self.cursor.mark)

    @property
    def backlog(self) -> int:
        return self.cursor.backlog(self.chain.end)

    # -- consumers

    def add_consumer(self, consumer: SubscriptionConsumer, kind: SubscriptionType) -> None:
        """Connect a consumer.

        Raises:
            ConsumerBusyError: the type differs from the connected consumers', or there are as many as allowed.
            ServiceNotReadyError: the subscription is being reset or closed; try again.
            ConsumerAssignError: its key ranges overlap another consumer's.
        """
        if self.state is not SubscriptionState.OPEN:
            raise ServiceNotReadyError(f"subscription {self.name} is being changed, try again")
        if not self.consumers and kind is not self.kind:
            setting, policies = self._setting, self._policies
            self.dispatcher = make_dispatcher(
                kind, self.cursor, setting.choice, self.delays.index, splits_keys=setting.consumers.splits_keys
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
        self._activity.note()
        if kind is SubscriptionType.FAILOVER:
            self._handover.begin(self.dispatcher, before, self.consumers.values(), consumer)
        self.schedule_pump()

    def holders(self, consumer: SubscriptionConsumer, kind: SubscriptionType) -> list[ConsumerChannel]:
        """Return the connections whose consumers hold what the caller was refused. The caller's own does not count."""
        if kind is not self.kind or (kind is not SubscriptionType.EXCLUSIVE and consumer.state.key_ranges is None):
            return []
        others = (other.channel for other in self.consumers.values())
        return [channel for channel in dict.fromkeys(others) if channel is not consumer.channel]

    def remove_consumer(self, consumer: SubscriptionConsumer, crashes: CrashBudget | None = None) -> None:
        """Disconnect a consumer. Its unacknowledged messages are delivered to others.

        Args:
            crashes: its connection was lost, so each of these messages counts as crashed, up to this budget of the
                connection.
        """
        if self.consumers.pop(consumer.state.key, None) is None:
            return
        self._activity.note()
        before = self.dispatcher.active
        if crashes is not None:
            self.dispatcher.count_crash(consumer.state, crashes)
            self.persist()  # whichever broker serves the messages next
        self.dispatcher.remove(consumer.state)
        if self.kind is SubscriptionType.FAILOVER:
            self._handover.begin(self.dispatcher, before, self.consumers.values(), None)
        if self.consumers:
            self.schedule_pump()
        else:
            self.idle_since_ms = wall_ms()
            self._forget_read()

    def flow(self, consumer: SubscriptionConsumer, permits: int, *, takes_back: bool = False) -> None:
        """Let the consumer take ``permits`` more messages; if ``takes_back``, these and no others."""
        consumer.state.flow(permits, takes_back=takes_back)
        consumer.flow_ms = wall_ms()
        self.pump()

    def set_writable(self, consumer: SubscriptionConsumer, is_writable: bool) -> None:
        """Note whether the consumer's connection takes more bytes."""
        consumer.state.set_writable(is_writable)
        if is_writable:
            self.schedule_pump()

    # -- acknowledgements

    def acknowledge(
        self, acks: Iterable[tuple[Position, int | None]], consumer: SubscriptionConsumer | None = None
    ) -> asyncio.Future[None] | None:
        """Acknowledge single entries, or messages of batches.

        Args:
            acks: positions with None for a whole entry, else with the bits of the messages that stay unacknowledged.
                Positions that are not in the topic (any more) are ignored.
            consumer: the one that acknowledges. Of an entry that was divided, None means its part.

        Returns:
            a shared future that resolves when the acknowledgements are durable; None when there is nothing to wait for.
        """
        cursor, divided = self.cursor, self.dispatcher.divided
        state = None if consumer is None else consumer.state
        pending = {} if state is None else state.pending
        for position, bits in acks:
            index = self.chain.find(position)
            if index is None:
                continue
            messages = pending.get(index)
            if bits or messages is None or index in divided:  # else its consumer acknowledges all that it was sent
                bits, messages = self.dispatcher.left_after(index, bits, messages, state)
            if position.ledger_id <= self._counted_after:
                cursor.forget_count()
            if cursor.acknowledge_messages(index, bits, messages) if bits else cursor.acknowledge(index, messages):
                self.entries_acknowledged += 1
                if self._traced is not None:
                    self._traced.acknowledged(position)
                self.dispatcher.acknowledged(index)
                if self.delays.index.count:
                    self.delays.forget(index)
            elif bits and (left := cursor.unacknowledged_bits(index)) is not None:
                self.dispatcher.partly_acknowledged(index, left, state)
        return self._after_acknowledging()

    def acknowledge_cumulative(self, position: Position, bits: int | None = None) -> asyncio.Future[None] | None:
        """Acknowledge everything up to and including ``position``; of its batch all messages but ``bits``. A position
        after the last entry is ignored."""
        if self.chain.end == self.chain.first or position > self.chain.position_at(self.chain.end - 1):
            return self._after_acknowledging()
        try:
            mark = min(self.chain.after(position), self.chain.end)
        except NotLoadedError:  # before the cursor's mark, from which on the chain is in memory
            return self._after_acknowledging()
        if bits and (index := self.chain.find(position)) is not None:
            self._skip_to(index)
            return self.acknowledge([(position, bits)])
        self._skip_to(mark)
        return self._after_acknowledging()

    def skip(self, entries: int | None) -> asyncio.Future[None] | None:
        """Acknowledge the next ``entries`` unacknowledged entries, None for all."""
        return self.skip_to(self.chain.end if entries is None else self.cursor.after_open(entries))

    def skip_to(self, mark: int) -> asyncio.Future[None] | None:
        """Acknowledge everything before the index ``mark`` (skip, expiry, eviction)."""
        self._skip_to(min(mark, self.chain.end))
        return self._after_acknowledging()

    def persist(self) -> asyncio.Future[None] | None:
        """Return a future that resolves when every acknowledgement made so far is durable; None for a non-durable
        subscription."""
        self._activity.note()
        if self.log is None:
            self.cursor.take_delta()
            return None
        return self.log.persist()

    def redeliver(
        self,
        consumer: SubscriptionConsumer,
        entries: Sequence[tuple[Position, int]],
        epoch: int | None = None,
        *,
        is_unhandled: bool = False,
    ) -> asyncio.Future[None] | None:
        """Deliver entries again that a consumer gives back: these, or all that it holds if none is named.

        Args:
            entries: positions with the bits of the messages, 0 for all of the entry that it holds.
            epoch: the consumer drops entries that were pushed in an older epoch. A request with an older epoch is late
                and ignored.
            is_unhandled: no caller had them, so this is no refusal.

        Returns:
            a shared future that resolves when the redelivery counts are durable; None if there is nothing to wait for.
        """
        if epoch is not None:
            if consumer.epoch is not None and epoch < consumer.epoch:
                return None
            consumer.epoch = epoch
        found: dict[int, int] = {}
        for position, bits in entries:
            index = self.chain.find(position)
            if index is not None:  # a client may name an entry twice
                found[index] = bits | found.get(index, bits) if bits and found.get(index, bits) else 0
        consumer.messages_redelivered += len(found)
        index, bit = consumer.state.in_hand or (-1, 0)
        if not entries or (index in found and (found[index] or bit) & bit):
            consumer.state.in_hand = None  # its client notes it when a caller has it again
        self.dispatcher.redeliver(consumer.state, found if entries else None, is_unhandled=is_unhandled)
        self.schedule_pump()
        return self.persist()  # the counts go on, whichever broker serves the entries next

    # -- seek and end

    async def reset(self, mark: int, bits: int | None = None) -> None:
        """Seek: the next entry to deliver is ``mark``; of its batch only the messages in ``bits``.

        Every consumer is disconnected first and its client told so; then the cursor moves, durably.

        Raises:
            ConflictError: another reset is in progress.
            ServiceNotReadyError: the subscription is closed here, or the topic is being trimmed at ``mark``.
            PersistenceError: the new mark could not be stored; the seek may take effect or not.
        """
        await self.chain.load_index(max(mark, self.chain.first))
        self._begin_reset()
        try:
            self.disconnect()
            self.cursor.reset(min(max(mark, self.chain.first), self.chain.end))
            if bits and mark == self.cursor.mark and mark < self.chain.end:
                self.cursor.acknowledge_messages(mark, bits)
            self.dispatcher.rewind()
            self.delays.forget_below(self.cursor.mark)
            self._forget_read()
            self._activity.note()
            if self.log is not None:
                await shielded(self.log.persist())
        finally:
            if self.state is SubscriptionState.RESETTING:
                self._move(SubscriptionState.OPEN)

    def _begin_reset(self) -> None:
        if self.state is SubscriptionState.RESETTING:
            raise ConflictError(f"subscription {self.name} is being reset already")
        if self.state is SubscriptionState.CLOSED:
            raise ServiceNotReadyError(f"subscription {self.name} is not served here any more")
        self._move(SubscriptionState.RESETTING)

    def disconnect(self) -> None:
        """Close every consumer; the clients subscribe again."""
        for consumer in list(self.consumers.values()):
            self.remove_consumer(consumer)
            consumer.channel.close_consumer(consumer)

    async def close(self) -> None:
        """Disconnect every consumer and make the last acknowledgements durable."""
        self._stop()
        await self.delays.close()
        if self.log is not None:
            await self.log.close()

    async def delete(self) -> None:
        """Disconnect every consumer and delete the cursor for good."""
        self._stop()
        if self.log is not None:
            await self.log.delete()
            await self.delays.delete()

    def abandon(self, error: HeliographError) -> None:
        """Dispatch nothing and confirm nothing from now on: another broker owns the topic (I13)."""
        self._stop()
        if self.log is not None:
            self.log.abandon(error)

    # -- delivery

    def schedule_pump(self) -> None:
        """Deliver in the next turn of the loop."""
        if not self._pump_due and self.state is not SubscriptionState.CLOSED:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._run_pump)

    def _run_pump(self) -> None:
        self._pump_due = False
        self.pump()

    def pump(self) -> None:
        """Deliver what can be delivered now."""
        self._setting.traffic.dispatch(self._dispatch)

    def _dispatch(self) -> None:
        if self.state is SubscriptionState.CLOSED or not self.consumers:
            return
        self._is_limited = self._rate.is_limited or self._setting.topic_rate.is_limited
        if self.kind.is_shared and not self._prepare_shared():
            return
        end, dispatcher = self.chain.end, self.dispatcher
        bytes_left = TURN_BYTES_MAX
        for number in range(TURN_ENTRIES_MAX):
            index = dispatcher.next_wanted(end)
            if index is None:
                break
            if index < self.chain.first:  # trimmed away meanwhile
                self._skip_to(self.chain.first)
                continue
            entry = self._entry(index)
            if entry is None:
                return
            if entry.deliver_at_ms and self._hold_back(index, entry):
                continue
            if entry.is_batch and dispatcher.wants_keys(index) and not self._ahead.has_keys(index, entry):
                break
            self._deliver(index, entry, number == 0 and index + 1 == end)
            bytes_left -= len(entry.payload)
            if bytes_left <= 0:
                self.schedule_pump()
                break
        else:
            self.schedule_pump()
        self._ahead.go_on()
        if self.on_progress is not None:
            self.on_progress(self)

    def _prepare_shared(self) -> bool:
        """Have the dispatcher deliver what is due. Return False if nothing can be delivered now; ``pump`` is called
        again when that is over."""
        if self.kind is SubscriptionType.KEY_SHARED and not self._setting.witness.holds():
            self._pump_later(HOLD_CHECK_SECONDS)  # I16: another broker may deliver entries of the same keys
            return False
        delays = self.delays
        if self._policies.delayed_delivery and not delays.ensure_loaded():
            return False
        if delays.index.count and self.dispatcher.due_count < DUE_MAX:
            self.dispatcher.make_due(delays.take_due())
        return True

    def _entry(self, index: int) -> TopicEntry | None:
        """Return an entry. None if it cannot be delivered now; ``pump`` is called again when that is over."""
        if self._is_limited and self._must_wait():
            return None
        divided = self._divided.batch
        entry = divided.entry if divided is not None and divided.index == index else self._ahead.take(index)
        if entry is None:
            self._ahead.start_at(index, is_replay=index < self.dispatcher.read_index)
        elif entry.deliver_at_ms and self.delays.index.is_full and self._honours_times:
            self._pump_later(FULL_DELAY_SECONDS)
            return None
        return entry

    @property
    def _honours_times(self) -> bool:
        return self.kind.is_shared and self._policies.delayed_delivery

    def _hold_back(self, index: int, entry: TopicEntry) -> bool:
        """Return whether the time of an entry has not come. If so, it is delivered then."""
        tick_ms = self._policies.delayed_tick_ms
        is_early = self._honours_times and self.delays.hold_back(index, entry.deliver_at_ms, tick_ms)
        if is_early:
            self.dispatcher.skip(index)
        return is_early

    def _must_wait(self) -> bool:
        """Return whether a rate limit is reached. A timer then continues the delivery."""
        wait = longest_wait((self._rate, self._setting.topic_rate), time.monotonic())
        if wait > 0:
            self._pump_later(min(wait, RATE_CHECK_SECONDS_MAX))
        return wait > 0

    def _pump_later(self, seconds: float) -> None:
        if self._timer is None and self.state is not SubscriptionState.CLOSED:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._run_timer)

    def _run_timer(self) -> None:
        self._timer = None
        self.pump()

    def _deliver(self, index: int, entry: TopicEntry, is_alone: bool) -> None:
        if not self._activity.is_noted:
            self._activity.note()
        if entry.is_marker:
            self.dispatcher.skip(index)
            self.cursor.acknowledge(index, entry.messages)
            return
        bits = self.cursor.unacknowledged_bits(index)
        if bits is not None or entry.live is not None:  # clients skip the messages that are not among the bits
            whole = (1 << entry.messages) - 1 if entry.live is None else entry.live
            if bits is not None and bits >> entry.messages:  # an acknowledgement named more than the batch has
                self.cursor.acknowledge_messages(index, (1 << entry.messages) - 1)
            bits = whole if bits is None else bits & whole
            if entry.live is not None:  # no client acknowledges what compaction took out
                self.cursor.acknowledge_messages(index, bits)
            if not bits:
                self.dispatcher.skip(index)
                self.cursor.acknowledge(index)
                return
        messages = entry.messages if bits is None else bits.bit_count()
        delivery = self.dispatcher.deliver(index, entry, messages, bits)
        if delivery is None:
            return
        state, redelivery_count, messages, bits, left, crashes, lone_crashes = delivery
        if state.returns_skipped:
            state.permits -= entry.messages - messages
        if bits is not None:
            entry = self._divided.part(index, entry, bits, messages, left)
        consumer, size = self.consumers[state.key], len(entry.payload)
        consumer.entries_out += 1
        consumer.delivered_ms = now_ms = wall_ms()
        consumer.messages_out += messages
        consumer.bytes_out += size
        self.entries_out += 1
        self.messages_out += messages
        self.bytes_out += size
        traffic = self._setting.traffic
        traffic.messages_out += messages
        traffic.bytes_out += size
        if entry.stored_ms and not redelivery_count:
            took = max(now_ms - entry.stored_ms, 0) / 1000  # a topic's clock may be ahead of ours
            latency = traffic.delivery_latency
            latency.counts[bisect_left(LATENCY_BOUNDS, took)] += 1
            latency.total += took
        if self._is_limited:
            now = time.monotonic()
            self._rate.take(messages, size, now)
            self._setting.topic_rate.take(messages, size, now)
        position = self.chain.position_at(index)
        consumer.channel.push(consumer, position, entry, redelivery_count, bits, is_alone, crashes, lone_crashes)
        if entry.trace is not None:
            self._traced = self._traced or TracedDeliveries(self._setting.topic, self.name)
            self._traced.dispatched(position, entry.trace, state.name, redelivery_count)

    def _skip_to(self, mark: int) -> None:
        before = self.backlog
        if self.cursor.skip_to(mark):
            self.entries_acknowledged += before - self.backlog
            if self._traced is not None:
                self._traced.acknowledged_before(self.chain.position_at(mark))
            self.dispatcher.acknowledged_up_to(mark - 1)
            self.delays.forget_below(mark)

    def _after_acknowledging(self) -> asyncio.Future[None] | None:
        if self.kind is not SubscriptionType.EXCLUSIVE:
            self.schedule_pump()  # a limit on unacknowledged messages may have delayed delivery
        if self.on_progress is not None:
            self.on_progress(self)
        done = self.persist()
        if self._traced is not None:
            self._traced.settle(done)
        return done

    def _move(self, to: SubscriptionState) -> None:
        self.state = SUBSCRIPTION_LIFECYCLE.move(self.state, to)

    def _stop(self) -> None:
        if self.state is not SubscriptionState.CLOSED:
            self._move(SubscriptionState.CLOSED)
        self._ahead.stop()
        self.delays.stop()
        self._handover.stop()
        if self._timer is not None:
            self._timer.cancel()
        self.disconnect()
        self._forget_read()

    def _forget_read(self) -> None:
        """Drop the entries in memory that are not delivered yet."""
        self._ahead.drop()
        self._divided.drop()


def announce_termination(subscription: Subscription) -> None:
    """Tell each consumer once, when its subscription has acknowledged everything; for a non-durable subscription, as
    that of a reader, when everything was delivered."""
    end = subscription.chain.end
    dispatcher = subscription.dispatcher
    is_delivered = dispatcher.read_index >= end and not dispatcher.replay_count
    if subscription.backlog and (subscription.is_durable or not is_delivered):
        return
    loop = asyncio.get_running_loop()
    for consumer in subscription.consumers.values():
        if not consumer.is_termination_announced:
            consumer.is_termination_announced = True
            loop.call_soon(consumer.channel.reached_end, consumer)  # not before the answer to a SUBSCRIBE under way
