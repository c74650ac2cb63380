"""What producers meet at a topic: admission, limits, deduplication, and the topic's end."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import suppress

from actors.broker.backlog_quota import BacklogQuota
from actors.broker.cursor_log import CursorPlace
from actors.broker.dedup_switch import DedupSwitch
from actors.broker.dispatch_rate import DispatchRate
from actors.broker.ledgers import Ledgers
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.position import Position
from actors.broker.producer import Producer, Send
from actors.broker.producer_access import ProducerAccess
from actors.broker.publication import Publication, WriteState
from actors.broker.subscription import Subscription
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_producers import TopicProducers
from actors.broker.topic_reader import TopicReader
from actors.broker.topic_record import now_ms
from heliograph.errors import ProducerBusyError, ServiceNotReadyError, TopicTerminatedError
from metadata.model import Policies
from metadata.store import MetadataStore

TOPIC_EPOCH = "topic_epoch"  # property of the topic's record: the number of its last exclusive producer


class WriteSide:
    """The write side of one topic. All calls on one event loop.

    Attributes:
        messages_in: published since the topic was opened.
        rate: the limits on publishing that the topic has.
    """

    def __init__(
        self,
        ledger: ManagedLedger,
        reader: TopicReader,
        dedup_place: CursorPlace,
        subscriptions: Callable[[], Collection[Subscription]],
        store: MetadataStore,
        ledgers: Ledgers,
    ) -> None:
        self.messages_in = 0
        self.rate = DispatchRate()
        self.members = TopicProducers(ledger.name, ProducerAccess(_stored_epoch(ledger)), self._store_epoch)
        self.members.on_joined = self._joined
        self.members.on_left = self._left
        self.dedup = DedupSwitch(dedup_place, ledger, reader, self.members.connected, store, ledgers)
        self.quota = BacklogQuota(ledger, reader, subscriptions)
        self._ledger = ledger
        self._is_closing = False
        self.follow_policies(ledger.policies)

    @property
    def is_terminated(self) -> bool:
        """Whether nothing is published here any more, for good."""
        return self._ledger.state is WriteState.TERMINATED

    @property
    def needed_from(self) -> int:
        """The first entry that a takeover reads again (I14)."""
        current = self.dedup.current
        return self._ledger.chain.end if current is None else current.mark

    async def load(self, *, is_deduplicated: bool) -> None:
        """Take over what a previous owner left, before anybody is admitted."""
        await self.dedup.load(is_recorded=is_deduplicated)

    async def admit(self, producer: Producer, unique_prefix: str) -> None:
        """Let a producer in, giving it a name when it has none; ``is_ready`` says whether it may send at once.

        Raises:
            TopicTerminatedError, ProducerBusyError, ProducerFencedError, ProducerHeldError, QuotaExceededError.
            ServiceNotReadyError: the topic is being closed.
        """
        self._check_writable()
        await self.members.admit(producer, unique_prefix, self._ledger.policies.max_producers)

    def send(self, entry: TopicEntry, send: Send) -> None:
        """A producer publishes an entry after all others; ``send`` hears its fate."""
        publication: Publication | None = send
        dedup = self.dedup.current
        if dedup is not None:
            publication = dedup.admit(entry, send)
        if publication is not None:
            self.publish(entry, publication)
        if self.rate.is_limited:
            now = time.monotonic()
            self.rate.take(entry.messages, len(entry.payload), now)
            send.producer.channel.throttle(self.rate.wait(now))

    def publish(self, entry: TopicEntry, publication: Publication) -> None:
        """Append an entry after all others; ``publication`` hears its fate."""
        if self._is_closing:
            publication.failed(ServiceNotReadyError(f"{self._ledger.name} is being closed"))
            return
        self.messages_in += entry.messages
        self._ledger.add(entry, publication)

    async def terminate(self) -> Position:
        """See ``ManagedLedger.terminate``; producers learn it when they come back."""
        position = await self._ledger.terminate()
        self.members.disconnect(TopicTerminatedError(f"{self._ledger.name} was terminated"))
        return position

    def follow_policies(self, policies: Policies) -> None:
        """Go by these from now on."""
        self.dedup.follow_policies()
        self.rate.set(policies.publish_messages_per_second, policies.publish_bytes_per_second)

    async def housekeep(self) -> None:
        """Watch the quota, keep deduplication's state short."""
        self.dedup.housekeep()
        if self.is_terminated:
            return
        await self.quota.check()
        refusal = self.quota.refusal()
        if refusal is not None and (self.members.connected or self.members.access.waiting):
            self.members.disconnect(refusal)

    def stop(self) -> None:
        """Take nothing more; what is under way is finished."""
        self._is_closing = True

    async def close(self) -> None:
        """Nothing is under way any more: tell clients to look the topic up again, and leave everything durable."""
        self.members.close()
        await self.dedup.close()

    def abandon(self) -> None:
        """The topic is another's (I13)."""
        self._is_closing = True
        self.members.close()
        self.dedup.abandon()

    def check_open_to_all(self) -> None:
        """For entries that come from inside the cluster, of no producer: raise what ``admit`` would."""
        self._check_writable()
        if self.members.access.owner is not None or self.members.access.waiting:
            raise ProducerBusyError(f"{self._ledger.name} has an exclusive producer", field="topic")

    def _check_writable(self) -> None:
        if self.is_terminated:
            raise TopicTerminatedError(f"{self._ledger.name} was terminated: it can only be read", field="topic")
        if self._is_closing or self._ledger.state is WriteState.CLOSED:
            raise ServiceNotReadyError(f"{self._ledger.name} is not served here any more")
        refusal = self.quota.refusal()
        if refusal is not None:
            raise refusal

    async def _store_epoch(self, epoch: int) -> None:
        await self._ledger.store_property(TOPIC_EPOCH, str(epoch))

    async def _joined(self, producer: Producer) -> None:
        """Everything that was sent under its name has to have a verdict before more comes."""
        dedup = self.dedup.current
        if dedup is None:
            return
        dedup.core.connected(producer.name)
        await dedup.settled(producer.name)
        producer.last_sequence_id = dedup.core.last(producer.name)

    def _left(self, producer: Producer) -> None:
        dedup = self.dedup.current
        if dedup is not None:
            dedup.core.disconnected(producer.name, now_ms(), forget=producer.is_gone_for_good)


def _stored_epoch(ledger: ManagedLedger) -> int:
    with suppress(ValueError):
        return int(ledger.record.properties.get(TOPIC_EPOCH, "-1"))
    return -1
