"""A topic that this broker serves: its managed ledger, its producers and its subscriptions."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace

from actors.broker.chain import Chain
from actors.broker.compaction import READ_COMPACTED, Compaction
from actors.broker.cursor import Cursor
from actors.broker.cursor_log import CursorLog, CursorPlace
from actors.broker.cursor_recovery import create_cursor, recover_cursor
from actors.broker.dedup_log import DEDUP_CURSOR
from actors.broker.dispatch_rate import DispatchRate
from actors.broker.end_of_topic import tell_end
from actors.broker.failover_choice import FailoverChoice
from actors.broker.ledgers import Ledgers
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.position import Position
from actors.broker.producer import Producer
from actors.broker.publication import Publication, WriteState
from actors.broker.subscription import COMPACTION, Subscription, SubscriptionSetting
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from actors.broker.topic_record import now_ms
from actors.broker.whole import whole
from actors.broker.write_side import WriteSide
from heliograph.errors import (
    BadRequestError,
    ConflictError,
    ConsumerBusyError,
    HeliographError,
    ServiceNotReadyError,
    SubscriptionExistsError,
    SubscriptionNotFoundError,
    UnsupportedError,
)
from heliograph.protocol.topic_name import TopicName
from metadata import paths
from metadata.errors import NodeExistsError
from metadata.model import CursorRecord, Persistence, Policies
from metadata.store import MetadataStore
from metadata.update_loop import read

View = tuple[Chain, TopicReader]

NEEDED_BY_NOBODY = 1 << 62  # greater than any ledger id
END_OF_TIME_MS = 1 << 62
RETURN_SECONDS_MAX = 300  # for the consumer of a subscription that is not durable to come back after a seek

log = logging.getLogger(__name__)


class Topic:
    """One topic. All calls on one event loop.

    Attributes:
        policies: what holds for it now; changed by ``apply_policies`` only.
        unavailable: durable subscriptions that read the compacted form, while that cannot be read, and why.
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
        self.unavailable: dict[str, HeliographError] = {}
        self.on_lost: Callable[[], None] = lambda: None
        self.opened_ms = now_ms()
        self.expiry_hint = (-1, 0)  # an entry at the head of a backlog and its publish time
        choice = FailoverChoice.of(name)
        self.setting = replace(setting or SubscriptionSetting(), choice=choice, topic_rate=DispatchRate())
        self._store = store
        self._ledgers = ledgers
        self._subscribing = asyncio.Lock()
        self._is_closing = False
        self._is_over = False  # closed in good order, or lost and everybody told
        self._leaving: list[Subscription] = []  # off the list, and not closed yet
        self.write_side = WriteSide(
            ledger, reader, self._place(DEDUP_CURSOR), lambda: self.subscriptions.values(), store, ledgers
        )
        ledger.on_confirmed = self._entries_confirmed
        ledger.on_lost = self._lost
        self.compaction = Compaction(ledger, reader, ledgers, self._compaction_mark, self._compacted)
        self.apply_policies(policies)

    @property
    def is_open(self) -> bool:
        """Whether it can be published to and subscribed to."""
        return not self._is_closing and self.ledger.state is not WriteState.CLOSED

    @property
    def created_with(self) -> Persistence | None:
        """The numbers of copies that were asked for when it was created."""
        return self.ledger.record.persistence

    @property
    def has_consumers(self) -> bool:
        """Whether anybody consumes it now."""
        return any(subscription.consumers for subscription in self.subscriptions.values())

    @property
    def users(self) -> int:
        """How many subscriptions it has that are not the broker's own."""
        return len(self.unavailable) + sum(not one.is_internal for one in self.subscriptions.values())

    @property
    def has_entries(self) -> bool:
        """Whether anything that was published is still there."""
        return self.ledger.chain.end > self.ledger.chain.first

    async def load_subscriptions(self) -> None:
        """Take over every durable cursor of the topic."""
        names = [paths.last_part("/" + child) for child in await self._store.children(self.path)]
        is_deduplicated = DEDUP_CURSOR in names
        if is_deduplicated:
            names.remove(DEDUP_CURSOR)
        # All of them to their end: one still under way would take its cursor from the next opening.
        outcomes = await asyncio.gather(*(self._load_subscription(name) for name in names), return_exceptions=True)
        for outcome in outcomes:
            if outcome is not None:
                raise outcome
        await self.write_side.load(is_deduplicated=is_deduplicated)
        await self.ledger.check_ownership()  # I11: whoever takes the topic over later, takes the cursors over later

    async def _load_subscription(self, name: str, view: View | None = None) -> None:
        """Take a durable cursor over, which counts by ``view``; where that cannot be had, by and by."""
        if view is None:
            try:
                view = await self.view(await self._reads_compacted(name))
            except HeliographError as error:
                log.error("%s: subscription %s cannot be used: %s", self.name, name, error)
                self.unavailable[name] = error
                return
        cursor_log = await recover_cursor(self._place(name), view[0], self._store, self._ledgers)
        cursor_log.on_lost = self.ledger.lose
        self.unavailable.pop(name, None)
        self._keep(name, cursor_log.cursor, cursor_log, view, READ_COMPACTED in cursor_log.properties)

    async def _reads_compacted(self, name: str) -> bool:
        if self.ledger.record.compacted is None:
            return False
        record = (await read(self._store, paths.cursor(self.path, name), CursorRecord)).record
        return READ_COMPACTED in record.properties

    async def _load_unavailable(self) -> None:
        """Look again whether what could not be used can be."""
        async with self._subscribing:
            for name in list(self.unavailable):
                await self._load_late(name)

    async def _load_late(self, name: str, view: View | None = None) -> None:
        self._check_open()
        try:
            await self._load_subscription(name, view)
        except HeliographError as error:  # its cursor is still where it was
            self.unavailable[name] = error
        await self.ledger.check_ownership()

    # Producers

    @property
    def producers(self) -> Mapping[str, Producer]:
        """Everybody who may publish, by name."""
        return self.write_side.members.connected

    @property
    def messages_in(self) -> int:
        """Published since the topic was opened."""
        return self.write_side.messages_in

    def publish(self, entry: TopicEntry, publication: Publication) -> None:
        """Append an entry after all others; ``publication`` hears its fate."""
        self.write_side.publish(entry, publication)

    # Subscriptions

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
        """The subscription of that name; a new one starts at the entry ``start``, None: behind the last.

        Args:
            is_internal: it is the broker's own.
            view: what ``view`` gave for a subscription that reads the compacted form; ``start`` counts by its chain.

        Raises:
            SubscriptionExistsError: it exists with the other durability.
            SubscriptionNotFoundError: there is none, and it may not be created.
            UnsupportedError: the topic has as many as it may.
            ServiceNotReadyError: the topic is being closed, or was compacted anew since ``view`` was given.
            QuorumLostError, BookieError, CompactedLostError: it reads the compacted form, which cannot be read.
        """
        async with self._subscribing:
            self._check_open()
            if name == DEDUP_CURSOR or (name == COMPACTION and not is_internal):
                raise BadRequestError(f"{name} is no name for a subscription", field="subscription")
            if name in self.unavailable:
                await self._load_late(name)
            found = self._find(name)
            if found is not None:
                if found.is_durable != is_durable:
                    raise SubscriptionExistsError(f"{name} exists and is {'not ' * (not found.is_durable)}durable")
                return found
            if not may_create:
                raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}", field="subscription")
            if name != COMPACTION:
                self._check_subscriptions()
            if view is not None and view[0] is not (await self.view(True))[0]:
                raise ServiceNotReadyError(f"{self.name} was compacted just now, try again")
            chain, reader = view or (self.ledger.chain, self.reader)
            kept = dict(properties or {})
            if view is not None:
                kept[READ_COMPACTED] = "true"
            mark = chain.end if start is None else min(max(start, chain.first), chain.end)
            if not is_durable:
                return self._keep(name, Cursor(mark), None, (chain, reader), view is not None)
            place = self._place(name)
            try:
                cursor_log = await create_cursor(place, mark, chain, self._store, self._ledgers, kept)
            except NodeExistsError:  # made by a try whose reply was lost, or by the previous owner at the last moment
                cursor_log = await recover_cursor(place, chain, self._store, self._ledgers)
                await self.ledger.check_ownership()
            self._check_open()  # I13: the topic may have been lost meanwhile
            cursor_log.on_lost = self.ledger.lose
            return self._keep(name, cursor_log.cursor, cursor_log, (chain, reader), view is not None)

    def subscription(self, name: str) -> Subscription:
        """Raises SubscriptionNotFoundError; or what keeps it from being used."""
        found = self._find(name)
        if found is None:
            raise SubscriptionNotFoundError(f"{self.name} has no subscription {name}", field="subscription")
        return found

    def _find(self, name: str) -> Subscription | None:
        if name in self.unavailable:
            raise self.unavailable[name]
        return self.subscriptions.get(name)

    async def unsubscribe(self, name: str, *, force: bool = False) -> None:
        """Remove a subscription for good; with ``__compaction`` the compacted form, whose readers read the topic itself
        from then on. Where that fails, the topic is given up: the next to open it finds out. A caller that is cancelled
        does not stop it: half deleted, a subscription would refuse everybody.

        Args:
            force: also while it has consumers, which are disconnected.

        Raises:
            SubscriptionNotFoundError.
            ConflictError: it has consumers; or it is ``__compaction``, and the topic is being compacted.
        """
        await whole(self._unsubscribe(name, force))

    async def _unsubscribe(self, name: str, force: bool) -> None:
        async with self._subscribing:
            if name in self.unavailable:
                await self._load_late(name, (self.ledger.chain, self.reader))  # to be deleted, never to be read
            subscription = self.subscription(name)
            if subscription.consumers and not force:  # asked now: somebody may have come while we waited
                raise ConflictError(f"subscription {name} has consumers: close them, or force it", field="subscription")
            if subscription.is_internal and self.compaction.is_running:
                raise ConflictError(f"{self.name} is being compacted", field="subscription")
            try:
                if subscription.is_internal:
                    await self.compaction.forget()
                    await self._start_anew()
                await subscription.delete()
            except HeliographError as error:
                self.ledger.lose(error)
                raise
            self.subscriptions.pop(name, None)

    def check_consumers(self) -> None:
        """Raises ConsumerBusyError when the topic has as many consumers as it may."""
        limit = self.policies.max_consumers
        if limit and sum(len(subscription.consumers) for subscription in self.subscriptions.values()) >= limit:
            raise ConsumerBusyError(f"{self.name} has {limit} consumers", field="max_consumers", limit=f"{limit}")

    def drop_if_idle(self, subscription: Subscription) -> None:
        """A non-durable subscription ends with its last consumer."""
        if subscription.is_durable or subscription.consumers:
            return
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]
        subscription.abandon(ServiceNotReadyError(f"nobody uses {subscription.name} any more"))

    # Places in the topic

    async def view(self, is_compacted: bool) -> View:
        """Chain and reader of the topic, or of its compacted form.

        Raises:
            QuorumLostError, BookieError: the compacted form cannot be read now.
        """
        return await self.compaction.view() if is_compacted else (self.ledger.chain, self.reader)

    async def last_message(self, *, is_compacted: bool = False) -> tuple[Position, TopicEntry | None]:
        """The position of the newest entry with the entry, or the place before the first one."""
        chain, reader = await self.view(is_compacted)
        if chain.end == chain.first:
            return Position(-1, -1), None
        index = chain.end - 1
        return chain.position_at(index), await reader.entry(index)

    async def index_at_time(self, publish_time_ms: int) -> int:
        """The first entry published at or after a time."""
        return await self.reader.index_at_time(publish_time_ms)

    # Life

    def apply_policies(self, policies: Policies) -> None:
        """Go by these from now on."""
        self.policies = policies
        self.ledger.policies = policies
        self.write_side.follow_policies(policies)
        self.setting.topic_rate.set(policies.dispatch_messages_per_second, policies.dispatch_bytes_per_second)
        for subscription in self.subscriptions.values():
            subscription.apply_policies(policies)

    async def trim(self) -> int:
        """Delete ledgers that nobody needs (I14); returns how many."""
        return await self.ledger.trim(self._needed_from, now_ms())

    def has_old_ledgers(self) -> bool:
        """Whether there are ledgers that retention alone still holds, and will not for ever."""
        return self.ledger.expendable_at(self._needed_from(), END_OF_TIME_MS) > 0

    def _needed_from(self) -> int:
        """The oldest ledger that a durable cursor or deduplication needs."""
        if not self.is_open:  # its subscriptions are not on the list any more
            return 0
        marks = [s.topic_mark for s in self.subscriptions.values() if s.is_durable and not s.is_internal]
        compacted = self.compaction.needed_from(is_kept=COMPACTION in self.subscriptions)
        if compacted is not None:  # those that read it and are not available need nothing before it either
            marks.append(compacted)
        if self.write_side.needed_from < self.ledger.chain.end:
            marks.append(self.write_side.needed_from)
        if not marks:
            return NEEDED_BY_NOBODY
        return self.ledger.chain.position_at(max(min(marks), self.ledger.chain.first)).ledger_id

    async def terminate(self) -> Position:
        """End the topic: nothing is published any more, and consumers that have everything are told so. That goes on
        if the caller is cancelled.

        Returns:
            the position of the last entry; entry id -1 when there is none.

        Raises:
            ServiceNotReadyError, PersistenceError: not now; nothing was decided.
        """
        return await whole(self._terminate())

    async def _terminate(self) -> Position:
        position = await self.write_side.terminate()
        for subscription in self.subscriptions.values():
            self._watch_end(subscription)
        return position

    async def housekeep(self) -> None:
        """What producers wait for, quotas and the state of deduplication; what could not be used so far, and what was
        made for consumers that did not come back."""
        before = now_ms() - 1_000 * RETURN_SECONDS_MAX
        for subscription in [one for one in self.subscriptions.values() if one.idle_since_ms < before]:
            self.drop_if_idle(subscription)
        await self.write_side.housekeep()
        if self.unavailable:
            await self._load_unavailable()

    def begin_close(self) -> None:
        """Take no more producers, consumers and entries; ``close`` has to follow."""
        self._is_closing = True
        self.write_side.stop()

    async def close(self) -> None:
        """Stop serving: what is under way is finished, then clients are told to look the topic up again."""
        self.begin_close()
        async with self._subscribing:
            self._leaving, self.subscriptions = list(self.subscriptions.values()), {}
        await self.compaction.stop()
        await self.ledger.close()
        if not self._is_over:  # otherwise it was lost meanwhile
            await self.write_side.close()
            await asyncio.gather(*(subscription.close() for subscription in self._leaving))
        await self.reader.close()
        self._is_over = True

    def abandon(self, error: HeliographError) -> None:
        """Stop serving at once: nothing is confirmed and nothing dispatched from now on (I13)."""
        self.ledger.lose(error)
        self._lost(error)  # the ledger says nothing when it is being closed, or was

    def _lost(self, error: HeliographError) -> None:
        if self._is_over:
            return
        self._is_over = True
        log.warning("%s is no longer served here: %s", self.name, error)
        self.compaction.abandon()
        subscriptions, self.subscriptions = [*self.subscriptions.values(), *self._leaving], {}
        self._leaving = []
        for subscription in subscriptions:
            subscription.abandon(error)
        self.write_side.abandon()
        self.on_lost()

    def _entries_confirmed(self) -> None:
        for subscription in self.subscriptions.values():
            subscription.pump()

    def _check_subscriptions(self) -> None:
        limit = self.policies.max_subscriptions
        if limit and self.users >= limit:
            raise UnsupportedError(
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
        if self.write_side.is_terminated:
            self._watch_end(subscription)
        return subscription

    def _watch_end(self, subscription: Subscription) -> None:
        """Have every consumer of the subscription told when it has all that there will ever be."""
        subscription.on_progress = tell_end
        subscription.schedule_pump()

    async def _compaction_mark(self) -> Subscription:
        return await self.subscribe(COMPACTION, start=self.ledger.chain.first, is_internal=True)

    async def _compacted(self) -> None:
        """Have those who read the compacted form read the new one, from where they are."""
        async with self._subscribing:
            self._check_open()
            try:
                await self._start_anew()
            except HeliographError as error:
                self.ledger.lose(error)
                raise

    async def _start_anew(self) -> None:
        for old in [s for s in self.subscriptions.values() if s.reads_compacted]:
            await old.close()
            if self.subscriptions.pop(old.name, None) is old and old.is_durable:
                await self._load_subscription(old.name)

    def _place(self, subscription: str) -> CursorPlace:
        path = paths.cursor(self.path, subscription)
        return CursorPlace(str(self.name), subscription, path, lambda: self.ledger.policies)
