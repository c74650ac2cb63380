"""A topic that this broker serves: its managed ledger, its producers and its subscriptions."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from heliograph.actors.broker.compaction.compactor import READ_COMPACTED, Compaction
from heliograph.actors.broker.cursor.cursor import Cursor
from heliograph.actors.broker.cursor.log import CursorLog, CursorPlace
from heliograph.actors.broker.cursor.recovery import create_cursor, recover_cursor
from heliograph.actors.broker.dedup.log import DEDUP_CURSOR
from heliograph.actors.broker.dispatch.failover_choice import FailoverChoice
from heliograph.actors.broker.limits.dispatch_rate import DispatchRate, topic_limits
from heliograph.actors.broker.limits.subscribe_limit import SubscribeLimit
from heliograph.actors.broker.managed_ledger.chain import Chain
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.managed_ledger.retention import may_trim, trim_due_ms
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.properties import SUBSCRIPTION_BYTES_MAX, changed_properties, check_new_name
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.actors.broker.records.topic_record import deletable_ledgers
from heliograph.actors.broker.subscription.recovery import PendingSubscription, SubscriptionRecoveries
from heliograph.actors.broker.subscription.setting import SubscriptionSetting
from heliograph.actors.broker.subscription.subscription import (
    COMPACTION,
    OWN_PROPERTIES,
    Subscription,
    announce_termination,
)
from heliograph.actors.broker.topic.admission import PublishAdmission
from heliograph.actors.broker.topic.state import TOPIC_LIFECYCLE, TopicState
from heliograph.base.clock import NEVER_MS, wall_ms
from heliograph.base.completion import run_to_completion, weakly
from heliograph.base.errors import (
    BadRequestError,
    ConflictError,
    ConsumerBusyError,
    HeliographError,
    PolicyLimitError,
    ServiceNotReadyError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
)
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.metadata import paths
from heliograph.metadata.errors import NodeExistsError
from heliograph.metadata.model import Persistence, Policies
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName


class EntryDelivery:
    """Delivers the entries of one topic that were confirmed.

    Args:
        subscriptions: of the topic.
    """

    def __init__(self, subscriptions: Mapping[str, Subscription]) -> None:
        self._subscriptions = subscriptions
        self._is_due = False

    def confirmed(self, is_last: bool) -> None:
        """Deliver an entry. A lone entry goes to the only subscription at once: so it leaves with its
        receipt, and not after the producer's client, which the receipt wakes. Others go in the next turn.

        Args:
            is_last: no other entry of the topic is pending.
        """
        if is_last and len(self._subscriptions) == 1:
            self._pump()
        elif not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._is_due = False
        self._pump()

    def _pump(self) -> None:
        for subscription in list(self._subscriptions.values()):
            subscription.pump()


View = tuple[Chain, EntryReader]

SUBSCRIPTIONS_MAX = 10_000  # of a topic whose policies have no limit; they are read at once when it is opened  # I15
ABOVE_ALL_LEDGERS = 1 << 62  # greater than any ledger id
END_OF_TIME_MS = 1 << 62
IDLE_SECONDS_MAX = 300  # of a non-durable subscription, whose consumer reconnects after a seek

quiet = QuietLog(logging.getLogger(__name__), lines=100)  # a session that is lost takes all topics along


class BrokerTopic:
    """One topic. All calls on one event loop.

    Its parts refer to it weakly, so that a topic that was closed goes at once, and not when a collector looks at it.

    Attributes:
        state: changed by ``TOPIC_LIFECYCLE`` only.
        policies: the policies in force, changed by ``apply_policies`` only.
        recoveries: the durable subscriptions whose cursors are not loaded.
        delivers_by_key: whether a Key_Shared subscription had a consumer since the topic was opened.
        on_lost: called once when this broker does not own the topic any more, after producers and consumers were told.
    """

    def __init__(
        self,
        name: TopicName,
        path: str,
        bundle: str,
        ledger: ManagedLedger,
        reader: EntryReader,
        store: MetadataStore,
        ledgers: LedgersPort,
        policies: Policies,
        setting: SubscriptionSetting | None = None,
    ) -> None:
        self.name = name
        self.path = path
        self.bundle = bundle
        self.ledger = ledger
        self.reader = reader
        self.policies = policies
        self.subscriptions: dict[str, Subscription] = {}
        self.on_lost: Callable[[BrokerTopic], None] = lambda topic: None
        self.opened_ms = wall_ms()
        self.delivers_by_key = False
        self.expiry_hint = (-1, 0)  # index of the entry at the head of a backlog, and its publish time in ms
        choice = FailoverChoice.of(name)
        topic_rate = DispatchRate()
        self.setting = replace(
            setting or SubscriptionSetting(),
            choice=choice,
            topic_rate=topic_rate,
            topic=str(name),
            activity=ledger.activity,
        )
        self.activity = ledger.activity
        self.recoveries = SubscriptionRecoveries(str(name), self.setting.recoveries, weakly(self._recover))
        self.subscribe_limit = SubscribeLimit()
        self._store = store
        self._ledgers = ledgers
        self._subscribing = asyncio.Lock()
        self._creating: int | None = None  # the mark of the durable subscription that is being made
        self._deliver: Callable[[bool], None] = EntryDelivery(self.subscriptions).confirmed
        self.state = TopicState.OPEN
        self._closing: list[Subscription] = []  # not among ``subscriptions`` any more, and not closed yet
        self.admission = PublishAdmission(
            ledger, reader, self._place(DEDUP_CURSOR), self.subscriptions.values, store, ledgers
        )
        topic_rate.published, recoveries = self.admission.published, self.recoveries
        self.admission.are_cursors_known = lambda: not recoveries.pending
        ledger.on_lost = weakly(self._lost)
        self.compaction = Compaction(
            ledger,
            reader,
            ledgers,
            weakly(self._compaction_subscription),
            weakly(self._compacted),
            self.setting.consumers,
        )
        self.apply_policies(policies)

    @property
    def is_open(self) -> bool:
        """Return whether clients may publish and subscribe."""
        return self.state is TopicState.OPEN and self.ledger.state is not WriteState.CLOSED

    @property
    def created_with(self) -> Persistence | None:
        """Return the ensemble size and quorums that were asked for when the topic was created."""
        return self.ledger.record.persistence

    @property
    def has_consumers(self) -> bool:
        return any(subscription.consumers for subscription in self.subscriptions.values())

    @property
    def consumers(self) -> int:
        """Return how many consumers and readers are connected."""
        return sum(len(subscription.consumers) for subscription in self.subscriptions.values())

    @property
    def users(self) -> int:
        """Return how many subscriptions there are that are not the broker's own."""
        pending = len(self.recoveries.pending) - (COMPACTION in self.recoveries.pending)
        return pending + sum(not one.is_internal for one in self.subscriptions.values())

    def has_subscription(self, name: str) -> bool:
        """Return whether there is a subscription of that name, its cursor loaded or not."""
        return name in self.subscriptions or name in self.recoveries.pending

    @property
    def has_entries(self) -> bool:
        return self.ledger.chain.end > self.ledger.chain.first

    async def load_subscriptions(self) -> None:
        """Load the deduplication of the topic, and begin to recover every durable cursor in the background.

        Raises:
            LedgerRecoveryError: the deduplication ledger cannot be recovered now; try again.
            ServiceNotReadyError: another broker took the topic over meanwhile.
        """
        if not self.ledger.had_children:
            await self.ledger.check_ownership()  # which tells whether there are children now
        children = await self._store.children(self.path) if self.ledger.had_children else []
        names = [paths.last_part("/" + child) for child in children if paths.is_cursor(child)]
        await self.admission.load(is_deduplicated=DEDUP_CURSOR in names)
        if names or self.admission.dedup.current is not None:
            await self.ledger.check_ownership()  # I11: a later owner of the topic recovers them later
        for name in names:
            if name != DEDUP_CURSOR:
                self.recoveries.begin(name)

    async def _recover(self, pending: PendingSubscription) -> None:
        """Recover a durable cursor and add its subscription. Raises NoNodeError if it was deleted."""
        name, is_current = pending.name, False
        while not is_current:
            reads_compacted = await self.compaction.is_read_by(paths.cursor(self.path, name), self._store)
            view = await self._view_of(pending, reads_compacted)
            cursor_log = await recover_cursor(self._place(name), view[0], self._store, self._ledgers)
            await self.ledger.check_ownership()  # I11: a later owner of the topic recovers the cursors later
            reads_compacted = READ_COMPACTED in cursor_log.properties
            # If the topic was compacted meanwhile, the cursor counts by another chain.
            is_current = (await self._view_of(pending, reads_compacted))[0] is view[0]
        self._check_open()
        cursor_log.on_lost = self.ledger.lose
        self._keep(name, cursor_log.cursor, cursor_log, view, reads_compacted)

    async def _view_of(self, pending: PendingSubscription, reads_compacted: bool) -> View:
        if pending.is_to_be_deleted:
            return self.ledger.chain, self.reader
        try:
            return await self.view(reads_compacted)
        except HeliographError:
            pending.needs_head = False  # readers of the compacted form need nothing before its horizon
            raise

    # -- producers

    @property
    def producers(self) -> Mapping[str, TopicProducer]:
        return self.admission.producers.connected

    @property
    def messages_in(self) -> int:
        return self.admission.messages_in

    def publish(self, entry: TopicEntry, publication: Publication) -> None:
        """Append an entry after all others; ``publication`` gets the outcome."""
        self.admission.publish(entry, publication)

    # -- subscriptions

    async def subscribe(
        self,
        name: str,
        *,
        start: int | None,
        is_durable: bool = True,
        properties: Mapping[str, str] | None = None,
        may_create: bool = True,
        is_internal: bool = False,
        view: View | None = None,
    ) -> Subscription:
        """Return the subscription of that name; create it if there is none.

        Args:
            start: index of the first entry that a new subscription gets, None for the next entry published.
            properties: the user's, of a new subscription.
            may_create: False to fail when there is none.
            is_internal: True for a subscription of the broker's own.
            view: the compacted form, as ``view`` returned it, for a subscription that reads it; ``start`` is an index
                of its chain.

        Raises:
            BadRequestError: the name is reserved or too long, or properties are too large or the broker's own.
            SubscriptionExistsError: it exists with the other durability.
            SubscriptionNotFoundError: there is none, and it may not be created.
            PolicyLimitError: the topic has as many subscriptions as its policies allow.
            ServiceNotReadyError: the topic is being closed or trimmed, or was compacted since ``view`` was returned.
            QuorumLostError, BookieError, CompactedLostError: it reads the compacted form, which cannot be read.
        """
        await self.recoveries.recovered(name)
        async with self._subscribing:
            self._check_open()
            if name == DEDUP_CURSOR or (name == COMPACTION and not is_internal):
                raise BadRequestError(f"the subscription name {name} is reserved", field="subscription")
            found = self._find(name)
            if found is not None:
                if found.is_durable != is_durable:
                    raise SubscriptionExistsError(f"{name} exists and is {'not ' * (not found.is_durable)}durable")
                return found
            if not may_create:
                raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}", field="subscription")
            check_new_name(name, "subscription", SUBSCRIPTION_BYTES_MAX)
            kept = changed_properties({}, properties or {}, OWN_PROPERTIES)
            if name != COMPACTION:
                self._check_subscriptions()
            if view is not None and view[0] is not (await self.view(True))[0]:
                raise ServiceNotReadyError(f"{self.name} was compacted meanwhile, try again")
            chain, reader = view or (self.ledger.chain, self.reader)
            if view is not None:
                kept[READ_COMPACTED] = "true"
            mark = chain.end if start is None else min(max(start, chain.first), chain.end)
            await chain.load_index(mark)
            if not is_durable:
                return self._keep(name, Cursor(mark), None, (chain, reader), view is not None)
            self._creating = chain.to_base(mark)  # I14
            try:
                cursor_log = await self._create_cursor(self._place(name), mark, chain, kept)
                return self._keep(name, cursor_log.cursor, cursor_log, (chain, reader), view is not None)
            finally:
                self._creating = None
                self.activity.note()

    async def _create_cursor(
        self, place: CursorPlace, mark: int, chain: Chain, properties: Mapping[str, str]
    ) -> CursorLog:
        try:
            cursor_log = await create_cursor(place, mark, chain, self._store, self._ledgers, properties)
        except NodeExistsError:  # created by an attempt whose reply was lost, or by the previous owner
            cursor_log = await recover_cursor(place, chain, self._store, self._ledgers)
            await self.ledger.check_ownership()
        self._check_open()  # I13: the topic may have been lost meanwhile
        cursor_log.on_lost = self.ledger.lose
        return cursor_log

    async def subscription(self, name: str) -> Subscription:
        """Return a subscription, once its cursor is recovered. Raises SubscriptionNotFoundError, or why it cannot be
        used."""
        await self.recoveries.recovered(name)
        found = self._find(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}", field="subscription")
        return found

    def _find(self, name: str) -> Subscription | None:
        pending = self.recoveries.pending.get(name)
        if pending is not None:
            raise pending.error
        return self.subscriptions.get(name)

    async def unsubscribe(self, name: str, *, force: bool = False) -> None:
        """Delete a subscription, to completion even if the caller is cancelled: half deleted, it would refuse every
        consumer. ``force`` disconnects its consumers.

        With ``__compaction`` the compacted form is deleted; its readers read the topic itself from then on. If the
        deletion fails, the topic is abandoned, and its next owner finds out what is left.

        Raises:
            SubscriptionNotFoundError: there is none of that name.
            ConflictError: it has consumers, or it is ``__compaction`` while the topic is being compacted.
        """
        await run_to_completion(self._unsubscribe(name, force))

    async def _unsubscribe(self, name: str, force: bool) -> None:
        with contextlib.suppress(HeliographError):
            await self.recoveries.recovered(name)
        async with self._subscribing:
            pending = self.recoveries.pending.get(name)
            if pending is not None:  # perhaps because the compacted form cannot be read, which it does not need now
                pending.is_to_be_deleted = True
                try:
                    await self.recoveries.recovered(name)
                finally:
                    pending.is_to_be_deleted = False
            subscription = await self.subscription(name)
            if subscription.consumers and not force:  # checked now: a consumer may have come while we waited
                raise ConflictError(f"subscription {name} has consumers: close them, or force it", field="subscription")
            if subscription.is_internal and self.compaction.is_running:
                raise ConflictError(f"{self.name} is being compacted", field="subscription")
            try:
                if subscription.is_internal:
                    await self.compaction.forget()
                    await self._reload_compacted_readers()
                await subscription.delete()
            except HeliographError as error:
                self.ledger.lose(error)
                raise
            self.subscriptions.pop(name, None)
            self.activity.note()

    def check_consumers(self) -> None:
        """Check that one more consumer may connect. Raises ConsumerBusyError when the topic has as many as its policies
        allow."""
        limit = self.policies.max_consumers
        if limit and self.consumers >= limit:
            raise ConsumerBusyError(f"{self.name} has {limit} consumers", field="max_consumers", limit=f"{limit}")

    def drop_if_idle(self, subscription: Subscription) -> None:
        """Remove a non-durable subscription without consumers."""
        if subscription.is_durable or subscription.consumers:
            return
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
            self.activity.note()
        subscription.abandon(ServiceNotReadyError(f"{subscription.name} has no consumers any more"))

    # -- reading

    async def view(self, is_compacted: bool) -> View:
        """Return chain and reader of the topic, or of its compacted form. Raises as ``Compaction.view`` does."""
        return await self.compaction.view() if is_compacted else (self.ledger.chain, self.reader)

    async def last_message(self, *, is_compacted: bool = False) -> tuple[Position, TopicEntry | None]:
        """Return the position of the newest entry and the entry; (-1, -1) and None when there is none."""
        chain, reader = await self.view(is_compacted)
        if chain.end == chain.first:
            return Position(-1, -1), None
        index = chain.end - 1
        return chain.position_at(index), await reader.entry(index)

    async def index_at_time(self, time_ms: int) -> int:
        return await self.reader.index_at_time(time_ms, stored=self.ledger.seeks_by_storage)

    # -- policies and trimming

    def apply_policies(self, policies: Policies) -> None:
        self.policies = policies
        self.ledger.policies = policies
        self.activity.note()
        self.admission.apply_policies(policies)
        self.setting.topic_rate.set(*topic_limits(policies))
        self.subscribe_limit.set(policies.subscribes_per_second, policies.subscribe_period_seconds)
        for subscription in self.subscriptions.values():
            subscription.apply_policies(policies)

    async def trim(self, *, keeps_retained: bool = True) -> int:
        """Delete ledgers that neither a cursor nor, unless told otherwise, retention needs (I14); return how many."""
        count = await self.ledger.trim(self._needed_from, self.ledger.ages.now_ms(), keeps_retained=keeps_retained)
        for subscription in self.subscriptions.values():
            if count and subscription.chain is self.ledger.chain and not subscription.is_durable:
                subscription.skip_to(self.ledger.chain.first)  # what is gone is no backlog of a reader
        return count

    def has_old_ledgers(self) -> bool:
        """Return whether there are ledgers that only retention keeps, and not for ever."""
        record, last = self.ledger.record, self.ledger.chain.last_ledger_id
        return may_trim(record, last, self._needed_from(), END_OF_TIME_MS, self.policies)

    def _trim_due_ms(self, now_ms: int) -> int:
        record = self.ledger.record
        if deletable_ledgers(record):  # whose deletion failed
            return now_ms
        return trim_due_ms(record, self.ledger.chain.last_ledger_id, self._needed_from(), now_ms, self.policies)

    def _needed_from(self) -> int:
        """Return the oldest ledger that is needed, as ``needed_mark`` says."""
        if (mark := self.needed_mark()) is None:
            return ABOVE_ALL_LEDGERS
        return 0 if mark < 0 else self.ledger.chain.position_at(max(mark, self.ledger.chain.first)).ledger_id

    def needed_mark(self) -> int | None:
        """Return the oldest entry that a durable cursor, one that is being made, compaction or deduplication needs;
        None if nothing is needed, -1 if that is not known."""
        if not self.is_open or self.recoveries.needs_head:  # ``subscriptions`` has not all that there are
            return -1
        marks = [s.topic_mark for s in self.subscriptions.values() if s.is_durable and not s.is_internal]
        compacted = self.compaction.needed_from(is_kept=COMPACTION in self.subscriptions)
        marks += [mark for mark in (compacted, self._creating) if mark is not None]
        if self.admission.needed_from < self.ledger.chain.end:
            marks.append(self.admission.needed_from)
        return min(marks, default=None)

    async def terminate(self) -> Position:
        """Terminate the topic as ``ManagedLedger.terminate`` does, to completion even if the caller is cancelled.
        Consumers that have everything are notified."""
        return await run_to_completion(self._terminate())

    async def _terminate(self) -> Position:
        position = await self.admission.terminate()
        for subscription in self.subscriptions.values():
            self._announce_termination_of(subscription)
        return position

    async def housekeep(self) -> None:
        """Check quotas, snapshot deduplication, repeat recoveries of cursors that failed, and drop non-durable
        subscriptions that stay unused."""
        before = self.ledger.ages.now_ms() - 1_000 * IDLE_SECONDS_MAX
        for subscription in [one for one in self.subscriptions.values() if one.idle_since_ms < before]:
            self.drop_if_idle(subscription)
        self.recoveries.repeat()
        await self.admission.housekeep()

    def due_ms(self, now_ms: int) -> int:
        """Return when the topic itself has something to do, if nothing happens until then, by the clock of ages: a
        ledger to roll or to trim, a compaction, or what ``housekeep`` does."""
        if self.recoveries.pending or self.compaction.is_due(self.policies.compaction_threshold_bytes):
            return now_ms
        unused = [one.idle_since_ms for one in self.subscriptions.values() if not one.is_durable and not one.consumers]
        idle_ms = min(unused) + 1_000 * IDLE_SECONDS_MAX if unused else NEVER_MS
        return min(idle_ms, self.ledger.roll_due_ms(now_ms), self._trim_due_ms(now_ms), self.admission.due_ms(now_ms))

    def begin_close(self) -> None:
        """Refuse producers, consumers and entries from now on; ``close`` has to follow."""
        if self.state is TopicState.OPEN:
            self._move(TopicState.CLOSING)
        self.admission.stop()

    async def close(self) -> None:
        """Stop serving the topic: finish what is in flight, then tell clients to look the topic up again."""
        self.begin_close()
        await self.recoveries.stop(ServiceNotReadyError(f"{self.name} is not served here any more"))
        async with self._subscribing:
            self._closing = list(self.subscriptions.values())
            self.subscriptions.clear()
        await self.compaction.stop()
        await self.ledger.close()
        if self.state is TopicState.CLOSING:  # otherwise it was lost meanwhile
            await self.admission.close()
            await asyncio.gather(*(subscription.close() for subscription in self._closing))
        await self.reader.close()
        if self.state is TopicState.CLOSING:
            self._move(TopicState.CLOSED)

    def abandon(self, error: HeliographError) -> None:
        """Stop serving the topic at once: nothing is confirmed and nothing dispatched from now on (I13)."""
        self.ledger.lose(error)
        self._lost(error)  # the ledger does not report this while it is closing or closed

    def _lost(self, error: HeliographError) -> None:
        if self.state in (TopicState.CLOSED, TopicState.LOST):
            return
        self._move(TopicState.LOST)
        quiet.warning("lost", "%s is no longer served here: %s", self.name, error)
        self.compaction.abandon()
        self.recoveries.abandon(error)
        subscriptions = [*self.subscriptions.values(), *self._closing]
        self.subscriptions.clear()
        self._closing = []
        for subscription in subscriptions:
            subscription.abandon(error)
        self.admission.abandon()
        self.on_lost(self)

    def _move(self, to: TopicState) -> None:
        self.state = TOPIC_LIFECYCLE.move(self.state, to)

    def _check_subscriptions(self) -> None:
        limit = self.policies.max_subscriptions or SUBSCRIPTIONS_MAX
        if self.users >= limit:
            raise PolicyLimitError(
                f"{self.name} has {limit} subscriptions", field="max_subscriptions", limit=f"{limit} subscriptions"
            )

    def _check_open(self) -> None:
        if not self.is_open:
            raise ServiceNotReadyError(f"{self.name} is not served here any more")

    def _keep(
        self, name: str, cursor: Cursor, cursor_log: CursorLog | None, view: View, reads_compacted: bool
    ) -> Subscription:
        setting = replace(self.setting, policies=self.policies)
        subscription = Subscription(name, *view, cursor, cursor_log, setting, self._ledgers)
        subscription.reads_compacted = reads_compacted
        self.subscriptions[name] = subscription
        self.activity.note()
        self.ledger.on_confirmed = self._deliver
        if self.admission.is_terminated:
            self._announce_termination_of(subscription)
        return subscription

    def _announce_termination_of(self, subscription: Subscription) -> None:
        """Tell every consumer of the subscription as soon as it has everything that will ever be published."""
        subscription.on_progress = announce_termination
        subscription.schedule_pump()

    async def _compaction_subscription(self) -> Subscription:
        return await self.subscribe(COMPACTION, start=self.ledger.chain.first, is_internal=True)

    async def _compacted(self) -> None:
        """Move the subscriptions that read the compacted form to the new one."""
        async with self._subscribing:
            self._check_open()
            await self._reload_compacted_readers()

    async def _reload_compacted_readers(self) -> None:
        for old in [s for s in self.subscriptions.values() if s.reads_compacted]:
            await old.close()
            if self.subscriptions.pop(old.name, None) is old and old.is_durable:
                self.recoveries.begin(old.name)
                self.activity.note()
                with contextlib.suppress(HeliographError):  # it is tried again
                    await self.recoveries.recovered(old.name)

    def _place(self, subscription: str) -> CursorPlace:
        path, ledger = paths.cursor(self.path, subscription), self.ledger
        return CursorPlace(str(self.name), subscription, path, lambda: ledger.policies)
