"""The switch of a topic's deduplication: loaded with the topic, and turned on and off as policies change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from heliograph.actors.broker.cursor.log import CursorPlace
from heliograph.actors.broker.dedup.topic_dedup import TopicDeduplication, recover_deduplication, start_deduplication
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.producers.producer import TopicProducer
from heliograph.actors.broker.records.ledgers import LedgersPort
from heliograph.base.clock import NEVER_MS
from heliograph.base.errors import HeliographError
from heliograph.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class DedupSwitch:
    """Holds the deduplication of one topic. All calls on one event loop.

    Attributes:
        current: None while the topic does not deduplicate.
    """

    def __init__(
        self,
        place: CursorPlace,
        ledger: ManagedLedger,
        reader: EntryReader,
        producers: Mapping[str, TopicProducer],
        store: MetadataStore,
        ledgers: LedgersPort,
    ) -> None:
        self.current: TopicDeduplication | None = None
        self._place = place
        self._ledger = ledger
        self._reader = reader
        self._producers = producers
        self._store = store
        self._ledgers = ledgers
        self._deleting: TopicDeduplication | None = None  # turned off, and not known to be deleted
        self._switching = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_loaded = False
        self._is_closed = False

    async def load(self, *, is_recorded: bool) -> None:
        """Recover the previous owner's state, then switch by the topic's policies.

        Args:
            is_recorded: whether metadata holds a record of deduplication.
        """
        if is_recorded:
            self.current = await recover_deduplication(
                self._place, self._ledger, self._reader, self._store, self._ledgers
            )
        await self._switch()
        self._is_loaded = True

    def apply_policies(self) -> None:
        """Turn deduplication on or off in the background as the policies say."""
        if self.current is not None:
            self.current.snapshot_entries = self._ledger.policies.deduplication_snapshot_entries
        if self._is_loaded and not self._switching.locked() and self._is_due:
            task = asyncio.get_running_loop().create_task(self._try_to_switch())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    @property
    def _is_due(self) -> bool:
        return self._deleting is not None or self._ledger.policies.deduplication != (self.current is not None)

    def due_ms(self, now_ms: int) -> int:
        """Return when ``housekeep`` has something to do, if nothing happens until then, by the clock of ages."""
        if self._is_due:
            return now_ms
        return NEVER_MS if self.current is None else self.current.due_ms(now_ms)

    def housekeep(self) -> None:
        """Expire producers and take snapshots that are due; repeat a switch that failed."""
        if self.current is not None:
            self.current.housekeep()
        self.apply_policies()

    async def close(self) -> None:
        """Make everything durable for the next owner."""
        self._is_closed = True
        async with self._switching:
            if self.current is not None:
                await self.current.close()

    def abandon(self) -> None:
        """Write nothing from now on: another broker owns the topic (I13)."""
        self._is_closed = True
        if self.current is not None:
            self.current.abandon()

    async def _try_to_switch(self) -> None:
        try:
            await self._switch()
        except HeliographError as error:
            log.warning("%s: deduplication cannot be turned on or off now: %s", self._place.topic, error)

    async def _switch(self) -> None:
        async with self._switching:
            if self._is_closed:
                return
            await self._delete()
            is_wanted = self._ledger.policies.deduplication
            if is_wanted == (self.current is not None):
                return
            if is_wanted:
                self.current = await start_deduplication(
                    self._place, self._ledger, self._producers, self._store, self._ledgers
                )
                return
            self._deleting, self.current = self.current, None
            await self._delete()

    async def _delete(self) -> None:
        if self._deleting is not None:
            await self._deleting.delete()
            self._deleting = None
