"""Non-persistent topics: an entry goes to the consumers that can take it at that moment, and to no others.

Producers, consumers and subscriptions of every type work as on any topic. Only the ledger differs: it confirms at once,
keeps the newest entry while it is dispatched, and writes nothing. The topic's record in metadata says that the topic
exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from typing_extensions import override

from heliograph.actors.broker.managed_ledger.chain import Chain, LedgerChain
from heliograph.actors.broker.managed_ledger.closed_writer import ClosedLedgerWriter
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.read_budget import ReadBudget
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.managed_ledger.state import WriteState
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.actors.broker.subscription.setting import SubscriptionSetting
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.completion import weakly
from heliograph.base.errors import HeliographError, ServiceNotReadyError, UnsupportedError
from heliograph.metadata.model import LedgerMetadata, LedgerState, Policies, Segment, TopicRecord, Versioned
from heliograph.metadata.store import MetadataStore
from heliograph.protocol.topic_name import TopicName

RECEIPT = Position(0, 0)  # of every entry: no entry can be read by its position


class NonPersistentChain(LedgerChain):
    """One ledger that holds the newest entry while it is dispatched, and nothing otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.is_dispatching = False
        self.append(0)

    @property
    @override
    def first(self) -> int:
        return self.end - 1 if self.is_dispatching else self.end

    def append_newest(self) -> None:
        """Add an entry, which is there while it is dispatched."""
        self.end += 1
        self.is_dispatching = True


class NonPersistentReader(EntryReader):
    """Returns the entry that is being dispatched."""

    def __init__(self, chain: NonPersistentChain) -> None:
        super().__init__(chain, ReadBudget())
        self.newest: TopicEntry | None = None

    @override
    def cached(self, index: int) -> TopicEntry | None:
        return self.newest

    @override
    async def read(self, first: int, entries_max: int, bytes_max: int) -> list[tuple[int, TopicEntry]]:
        raise UnsupportedError("a non-persistent topic keeps no messages", field="topic")

    @override
    async def index_at_time(self, time_ms: int, *, stored: bool = False) -> int:
        return self._chain.end

    @override
    async def close(self) -> None:
        self.newest = None


class NonPersistentLedger(ManagedLedger):
    """A ledger that confirms every entry at once and stores nothing."""

    def __init__(
        self, name: str, store: MetadataStore, record: TopicRecord, ledgers: LedgersPort, policies: Policies
    ) -> None:
        self._newest_only = NonPersistentChain()
        owned = OwnedTopicRecord(store, "", Versioned(record, 0))
        super().__init__(name, owned, self._newest_only, ClosedLedgerWriter(_NOTHING), ledgers, TailCache(1), policies)
        self.state = WriteState.WRITING
        self.reader = NonPersistentReader(self._newest_only)
        self._record = record

    @property
    @override
    def record(self) -> TopicRecord:
        return self._record

    @override
    def add(self, entry: TopicEntry, publication: Publication) -> None:
        """Dispatch an entry. Its receipt does not say whether a consumer got it."""
        if self.state is WriteState.CLOSED:
            publication.failed(ServiceNotReadyError(f"{self.name} is not served here any more"))
            return
        self.activity.note()
        self.entries_added += 1
        self.bytes_added += len(entry.payload)
        entry.payload = bytes(entry.payload)  # consumers that are slow keep it, and not all that it came in  # I15
        self.reader.newest = entry
        self._newest_only.append_newest()
        if self.on_confirmed is not None:
            self.on_confirmed(True)
        self._newest_only.is_dispatching = False
        self.reader.newest = None
        self.traffic.messages_in += entry.messages
        self.traffic.bytes_in += len(entry.payload)
        publication.confirmed(RECEIPT)

    @override
    def roll_if_due(self) -> None:
        """Do nothing: there is nothing to roll."""

    @override
    async def trim(self, needed_from: Callable[[], int], now_ms: int, *, keeps_retained: bool = True) -> int:
        """Return 0: there is nothing to trim."""
        return 0

    @override
    async def store_property(self, name: str, value: str) -> None:
        """Keep a property for as long as the topic is loaded."""
        self._record = replace(self._record, properties={**self._record.properties, name: value})

    @override
    async def terminate(self) -> Position:
        """Raise UnsupportedError."""
        raise UnsupportedError("a non-persistent topic cannot be terminated", field="topic")

    @override
    async def close(self) -> None:
        """Refuse everything from now on. Idempotent."""
        if self.state is not WriteState.CLOSED:
            self._move(WriteState.CLOSED)

    @override
    async def check_ownership(self) -> None:
        """Do nothing: there is nothing that another broker could have changed."""

    @override
    def lose(self, error: HeliographError) -> None:
        if self.state is not WriteState.CLOSED:
            self._move(WriteState.CLOSED)
            self.on_lost(error)


class NonPersistentTopic(BrokerTopic):
    """A topic without storage."""

    def __init__(
        self,
        name: TopicName,
        path: str,
        bundle: str,
        ledger: NonPersistentLedger,
        store: MetadataStore,
        ledgers: LedgersPort,
        policies: Policies,
        setting: SubscriptionSetting | None = None,
    ) -> None:
        self._reader = ledger.reader
        super().__init__(name, path, bundle, ledger, ledger.reader, store, ledgers, _without_storage(policies), setting)
        self._deliver = weakly(self._deliver_or_drop)

    @override
    async def load_subscriptions(self) -> None:
        """Do nothing: subscriptions last as long as their consumers."""

    @override
    async def subscribe(
        self,
        name: str,
        *,
        start: int | None,
        is_durable: bool = True,
        properties: Mapping[str, str] | None = None,
        may_create: bool = True,
        is_internal: bool = False,
        view: tuple[Chain, EntryReader] | None = None,
    ) -> Subscription:
        """Return the subscription of that name, whether durable is asked for or not: it gets what comes while it has
        consumers."""
        return await super().subscribe(name, start=None, is_durable=False, properties=properties, may_create=may_create)

    @override
    def apply_policies(self, policies: Policies) -> None:
        """Apply new policies as far as they make sense without storage."""
        super().apply_policies(_without_storage(policies))

    @override
    async def trim(self, *, keeps_retained: bool = True) -> int:
        """Return 0: there is nothing to trim."""
        return 0

    def _deliver_or_drop(self, is_last: bool) -> None:
        newest = self._reader.newest
        assert newest is not None, "an entry is being dispatched"
        end = self.ledger.chain.end
        for subscription in list(self.subscriptions.values()):
            before = subscription.entries_out
            subscription.pump()
            if subscription.entries_out == before:
                subscription.messages_dropped += newest.messages
            subscription.skip_to(end)  # delivered or not, it is never delivered again


def _without_storage(policies: Policies) -> Policies:
    return replace(policies, delayed_delivery=False, deduplication=False, compaction_threshold_bytes=0)


_NOTHING = LedgerMetadata(0, 1, 1, 1, (Segment(0, ("",)),), state=LedgerState.CLOSED)
