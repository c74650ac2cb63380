"""Admission of producers and entries to a topic: access modes, rate limits, backlog quota, deduplication,
termination."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

from heliograph.actors.broker.cursor.log import CursorPlace
from heliograph.actors.broker.dedup.switch import DedupSwitch
from heliograph.actors.broker.limits.dispatch_rate import DispatchRate
from heliograph.actors.broker.limits.rates import RateWindow
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.producers.access import ProducerAccess
from heliograph.actors.broker.producers.producer import PublishRequest, TopicProducer
from heliograph.actors.broker.producers.topic_producers import TopicProducers
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.actors.broker.subscription.backlog_quota import BacklogQuota
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.base.clock import NEVER_MS
from heliograph.base.completion import weakly
from heliograph.base.errors import ProducerBusyError, ServiceNotReadyError, TopicTerminatedError
from heliograph.metadata.model import Policies
from heliograph.metadata.store import MetadataStore

TOPIC_EPOCH = "topic_epoch"  # property of the topic's record: the number of its last exclusive producer


class PublishAdmission:
    """Admits the producers of one topic and the entries that they publish. All calls on one event loop.

    Attributes:
        messages_in: messages published since the topic was opened.
        rate: the topic's limits on publishing.
        window: the rates of messages and bytes that are published.
        producers: the producers that were admitted.
        are_cursors_known: returns whether every durable cursor is loaded; until then no quota is checked (I14).
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        reader: EntryReader,
        dedup_place: CursorPlace,
        subscriptions: Callable[[], Collection[Subscription]],
        store: MetadataStore,
        ledgers: LedgersPort,
    ) -> None:
        self.messages_in = 0
        self.are_cursors_known: Callable[[], bool] = lambda: True
        self._last_publish_ns = 0  # wall time
        self.rate = DispatchRate()
        self.window = RateWindow(time.monotonic(), 2)
        self.producers = TopicProducers(ledger.name, ProducerAccess(_stored_epoch(ledger)), weakly(self._store_epoch))
        self.producers.on_joined = weakly(self._joined)
        self.producers.on_left = weakly(self._left)
        self.dedup = DedupSwitch(dedup_place, ledger, reader, self.producers.connected, store, ledgers)
        self.quota = BacklogQuota(ledger, reader, subscriptions)
        self._ledger = ledger
        self._is_stopped = False
        self.apply_policies(ledger.policies)

    @property
    def is_terminated(self) -> bool:
        """Return whether the topic was terminated: nothing is ever published to it again."""
        return self._ledger.state is WriteState.TERMINATED

    @property
    def last_publish_ms(self) -> int:
        """Return the wall time at which the last entry was published; 0 before the first."""
        return self._last_publish_ns // 1_000_000

    @property
    def needed_from(self) -> int:
        """Return the index of the first entry that a takeover reads again (I14)."""
        current = self.dedup.current
        return self._ledger.chain.end if current is None else current.mark

    def published(self, now: float) -> tuple[float, float]:
        """Return the messages and bytes that are published each second.

        Args:
            now: seconds of the monotonic clock.
        """
        messages, size = self.window.rates(now, self.messages_in, self._ledger.bytes_added)
        return messages, size

    async def load(self, *, is_deduplicated: bool) -> None:
        """Load the state that a previous owner left, before any producer is admitted."""
        await self.dedup.load(is_recorded=is_deduplicated)

    async def admit(self, producer: TopicProducer, unique_prefix: str) -> None:
        """Admit a producer and give it a name if it has none. ``is_ready`` then says whether it may send at once.

        Raises:
            TopicTerminatedError, ProducerBusyError, ProducerFencedError, ProducerHeldError, QuotaExceededError: the
                topic does not take the producer.
            ServiceNotReadyError: the topic is being closed.
        """
        self._check_writable()
        await self.producers.admit(producer, unique_prefix, self._ledger.policies.max_producers)

    def send(self, entry: TopicEntry, request: PublishRequest) -> None:
        """Publish a producer's entry after all others, unless it is a duplicate; ``request`` gets the outcome."""
        publication: Publication | None = request
        dedup = self.dedup.current
        if dedup is not None:
            publication = dedup.admit(entry, request)
        if publication is not None:
            self.publish(entry, publication)
        else:
            self._ledger.activity.note()  # the producer's counters
        if self.rate.is_limited:
            now = time.monotonic()
            self.rate.take(entry.messages, len(entry.payload), now)
            request.producer.channel.throttle(self.rate.wait(now))

    def publish(self, entry: TopicEntry, publication: Publication) -> None:
        """Append an entry after all others; ``publication`` gets the outcome."""
        if self._is_stopped:
            publication.failed(ServiceNotReadyError(f"{self._ledger.name} is being closed"))
            return
        self.messages_in += entry.messages
        self._last_publish_ns = time.time_ns()
        self._ledger.add(entry, publication)

    async def terminate(self) -> Position:
        """Terminate the topic as ``ManagedLedger.terminate`` does. Producers are disconnected and refused when they
        come back."""
        position = await self._ledger.terminate()
        self.producers.disconnect(TopicTerminatedError(f"{self._ledger.name} was terminated"))
        return position

    def apply_policies(self, policies: Policies) -> None:
        """Apply new policies to rates and deduplication."""
        self.dedup.apply_policies()
        self.rate.set(policies.publish_messages_per_second, policies.publish_bytes_per_second)

    async def housekeep(self) -> None:
        """Check the backlog quota, and keep the state of deduplication small."""
        self.dedup.housekeep()
        await self.check_quota()

    def due_ms(self, now_ms: int) -> int:
        """Return when ``housekeep`` has something to do, if nothing happens until then, by the clock of ages."""
        quota_ms = NEVER_MS if self.is_terminated else self.quota.due_ms(now_ms)
        return min(self.dedup.due_ms(now_ms), quota_ms)

    async def check_quota(self) -> None:
        """Check the backlog quota, and disconnect producers that it refuses."""
        if self.is_terminated or not self.are_cursors_known():
            return
        await self.quota.check()
        refusal = self.quota.refusal()
        if refusal is not None and (self.producers.connected or self.producers.access.waiting):
            self.producers.disconnect(refusal)

    def stop(self) -> None:
        """Refuse producers and entries from now on; entries in flight are finished."""
        self._is_stopped = True

    async def close(self) -> None:
        """Tell clients to look the topic up again and make everything durable. No entry is in flight any more."""
        self.producers.close()
        await self.dedup.close()

    def abandon(self) -> None:
        """Refuse producers and entries, and write nothing: another broker owns the topic (I13)."""
        self._is_stopped = True
        self.producers.close()
        self.dedup.abandon()

    def check_open_to_all(self) -> None:
        """Check that an entry of no producer, which comes from inside the cluster, may be published. Raises as
        ``admit`` does."""
        self._check_writable()
        if self.producers.access.owner is not None or self.producers.access.waiting:
            raise ProducerBusyError(f"{self._ledger.name} has an exclusive producer", field="topic")

    def _check_writable(self) -> None:
        if self.is_terminated:
            raise TopicTerminatedError(f"{self._ledger.name} was terminated: it can only be read", field="topic")
        if self._is_stopped or self._ledger.state is WriteState.CLOSED:
            raise ServiceNotReadyError(f"{self._ledger.name} is not served here any more")
        refusal = self.quota.refusal()
        if refusal is not None:
            raise refusal

    async def _store_epoch(self, epoch: int) -> None:
        await self._ledger.store_property(TOPIC_EPOCH, str(epoch))

    async def _joined(self, producer: TopicProducer) -> None:
        """Wait until every entry sent under the producer's name has its outcome, before it may send more."""
        dedup = self.dedup.current
        self._ledger.activity.note()
        if dedup is None:
            return
        dedup.core.connected(producer.name)
        await dedup.settled(producer.name)
        producer.last_sequence_id = dedup.core.last(producer.name)

    def _left(self, producer: TopicProducer) -> None:
        self._ledger.activity.note()
        dedup = self.dedup.current
        if dedup is not None:
            dedup.left(producer.name, forget=producer.is_gone_for_good)


def _stored_epoch(ledger: ManagedLedger) -> int:
    with suppress(ValueError):
        return int(ledger.record.properties.get(TOPIC_EPOCH, "-1"))
    return -1
