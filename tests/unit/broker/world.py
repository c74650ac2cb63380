"""The surroundings of a broker in memory: metadata, ledgers, and helpers to publish and to wait without sleeping."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.tail_cache import TailCache
from heliograph.actors.broker.namespaces.catalog import Catalog
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.actors.broker.topic.opening import open_managed_ledger
from heliograph.base.errors import HeliographError
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.model import NamespacePolicies
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.protocol.entry import broker_metadata_size
from heliograph.protocol.topic_name import TopicName
from tests.unit.broker.fake_ledgers import FakeLedgers

TURNS_MAX = 1_000  # before the loop sleeps between two looks
LOOKS_MAX = 7_000  # a minute


async def turns(until: Callable[[], bool]) -> None:
    """Let the loop turn until a condition holds."""
    for number in range(LOOKS_MAX):
        if until():
            return
        await asyncio.sleep(0 if number < TURNS_MAX else 0.01)  # work on threads, such as of schemas, takes time
    raise AssertionError("the condition did not come to hold")


def entry(text: str, messages: int = 1) -> TopicEntry:
    return TopicEntry(text.encode(), messages, False, False, None, False, 0, b"")


class Outcomes:
    """Publications that record their outcomes in order."""

    def __init__(self) -> None:
        self.confirmed: list[tuple[str, Position]] = []
        self.failed: list[tuple[str, HeliographError]] = []
        self.delayed: list[tuple[str, HeliographError]] = []

    def publish(self, ledger: ManagedLedger, *texts: str) -> None:
        for text in texts:
            ledger.add(entry(text), _Publication(self, text))

    def publish_bytes(self, ledger: ManagedLedger, section: bytes) -> None:
        ledger.add(TopicEntry.read(section, check=False), _Publication(self, ""))

    @property
    def texts(self) -> list[str]:
        return [text for text, _ in self.confirmed]


class _Publication(Publication):
    def __init__(self, outcomes: Outcomes, text: str) -> None:
        self._outcomes = outcomes
        self._text = text

    def confirmed(self, position: Position) -> None:
        self._outcomes.confirmed.append((self._text, position))

    def failed(self, error: HeliographError) -> None:
        self._outcomes.failed.append((self._text, error))

    def delayed(self, error: HeliographError) -> None:
        self._outcomes.delayed.append((self._text, error))


class World:
    """Metadata and ledgers that several owners share."""

    def __init__(self) -> None:
        self.server = MemoryServer()
        self.ledgers = FakeLedgers()
        self.policies = NamespacePolicies()
        self.entry_metadata = "none"  # the setting of brokers that open the topic from now on
        self.topic = TopicName.parse("orders")

    async def session(self) -> MemoryStore:
        store = self.server.open_session()
        await initialise(store)
        return store

    async def open(self, store: MemoryStore) -> ManagedLedger:
        """Open the topic's managed ledger as a new owner."""
        catalog = Catalog(store)
        await catalog.ensure(self.topic)
        return await open_managed_ledger(
            str(self.topic),
            catalog.topic_path(self.topic),
            store,
            self.ledgers,
            TailCache(1 << 20),
            self.policies,
            self.entry_metadata,
        )

    def contents(self, ledger: ManagedLedger) -> list[str]:
        """Return every entry of the chain, in order."""
        return [
            payload[broker_metadata_size(payload) :].decode()
            for ledger_id in ledger.chain.ledger_ids
            for payload in self.ledgers.ledgers[ledger_id].entries[: ledger.chain.entries_in(ledger_id)]
        ]
