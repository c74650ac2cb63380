"""Non-persistent topics: an entry goes to the consumers that can take it at that moment, and to nobody else.

Everything that clients see of such a topic, its producers, its subscriptions of every type, is that of any topic. Only
the ledger is none: it confirms at once, keeps the newest entry while it is handed out, and writes nothing. Its record
in metadata says that the topic exists.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from actors.broker.chain import Chain
from actors.broker.ended_writer import EndedWriter
from actors.broker.ledgers import Ledgers
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.owned_record import OwnedRecord
from actors.broker.position import Position
from actors.broker.publication import Publication, WriteState
from actors.broker.subscription import Subscription, SubscriptionSetting
from actors.broker.tail_cache import TailCache
from actors.broker.topic import Topic
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_reader import TopicReader
from heliograph.errors import HeliographError, ServiceNotReadyError, UnsupportedError
from heliograph.protocol.topic_name import TopicName
from metadata.model import LedgerMetadata, LedgerState, Policies, Segment, TopicRecord, Versioned
from metadata.store import MetadataStore

RECEIPT = Position(0, 0)  # of every entry: it has no place that it could be found at


class PassingChain(Chain):
    """One ledger that holds the newest entry while it is handed out, and nothing otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.is_passing = False
        self.append(0)

    @property
    def first(self) -> int:
        """See Chain."""
        return self.end - 1 if self.is_passing else self.end

    def pass_on(self) -> None:
        """An entry comes by."""
        self.end += 1
        self.is_passing = True


class PassingReader(TopicReader):
    """Knows the entry that is being handed out."""

    def __init__(self, chain: PassingChain, ledgers: Ledgers) -> None:
        super().__init__(chain, TailCache(1), ledgers)
        self.newest: TopicEntry | None = None

    def cached(self, index: int) -> TopicEntry | None:
        """See TopicReader."""
        return self.newest

    async def read(self, first: int, entries_max: int, bytes_max: int) -> list[tuple[int, TopicEntry]]:
        """Raises UnsupportedError: nothing is kept."""
        raise UnsupportedError("a non-persistent topic keeps no messages", field="topic")


class PassingLedger(ManagedLedger):
    """Confirms at once and stores nothing."""

    def __init__(
        self, name: str, store: MetadataStore, record: TopicRecord, ledgers: Ledgers, policies: Policies
    ) -> None:
        self.passing = PassingChain()
        owned = OwnedRecord(store, "", Versioned(record, 0))
        super().__init__(name, owned, self.passing, EndedWriter(_NOTHING), ledgers, TailCache(1), policies)
        self.reader = PassingReader(self.passing, ledgers)
        self._record = record

    @property
    def record(self) -> TopicRecord:
        """As it was when the topic was opened, with what was changed since."""
        return self._record

    def add(self, entry: TopicEntry, publication: Publication) -> None:
        """Hand an entry out. Its receipt says nothing of whether anybody got it."""
        if self.state is WriteState.CLOSED:
            publication.failed(ServiceNotReadyError(f"{self.name} is not served here any more"))
            return
        self.entries_added += 1
        self.bytes_added += len(entry.payload)
        self.reader.newest = entry
        self.passing.pass_on()
        self.on_confirmed()
        self.passing.is_passing = False
        self.reader.newest = None
        publication.confirmed(RECEIPT)

    def roll_if_due(self) -> None:
        """There is nothing to roll."""

    async def trim(self, needed_from: Callable[[], int], now_ms: int) -> int:
        """There is nothing to trim."""
        return 0

    async def store_property(self, name: str, value: str) -> None:
        """Keep a property for as long as the topic is loaded."""
        self._record = replace(self._record, properties={**self._record.properties, name: value})

    async def terminate(self) -> Position:
        """Raises UnsupportedError."""
        raise UnsupportedError("a non-persistent topic cannot be terminated", field="topic")

    async def close(self) -> None:
        """Take nothing more."""
        self.state = WriteState.CLOSED

    def lose(self, error: HeliographError) -> None:
        """The topic is another's."""
        if self.state is not WriteState.CLOSED:
            self.state = WriteState.CLOSED
            self.on_lost(error)


class NonPersistentTopic(Topic):
    """A topic without storage."""

    def __init__(
        self,
        name: TopicName,
        path: str,
        bundle: str,
        ledger: PassingLedger,
        store: MetadataStore,
        ledgers: Ledgers,
        policies: Policies,
        setting: SubscriptionSetting | None = None,
    ) -> None:
        self._reader = ledger.reader
        super().__init__(name, path, bundle, ledger, ledger.reader, store, ledgers, _without_storage(policies), setting)

    async def load_subscriptions(self) -> None:
        """There are none: they last as long as their consumers."""

    async def subscribe(
        self,
        name: str,
        *,
        start: int | None,
        is_durable: bool = True,
        properties: Mapping[str, str] | None = None,
        may_create: bool = True,
        is_internal: bool = False,
        view: tuple[Chain, TopicReader] | None = None,
    ) -> Subscription:
        """The subscription of that name, durable or not: it gets what comes while it has consumers."""
        return await super().subscribe(name, start=None, is_durable=False, properties=properties, may_create=may_create)

    def apply_policies(self, policies: Policies) -> None:
        """Go by these from now on, as far as they make sense without storage."""
        super().apply_policies(_without_storage(policies))

    async def trim(self) -> int:
        """There is nothing to trim."""
        return 0

    def _entries_confirmed(self) -> None:
        newest = self._reader.newest
        assert newest is not None, "an entry is being handed out"
        end = self.ledger.chain.end
        for subscription in self.subscriptions.values():
            before = subscription.entries_out
            subscription.pump()
            if subscription.entries_out == before:
                subscription.messages_dropped += newest.messages
            subscription.skip_to(end)  # delivered or not, nobody gets it again


def _without_storage(policies: Policies) -> Policies:
    return replace(policies, delayed_delivery=False, deduplication=False, compaction_threshold_bytes=0)


_NOTHING = LedgerMetadata(0, 1, 1, 1, (Segment(0, ("",)),), state=LedgerState.CLOSED)
