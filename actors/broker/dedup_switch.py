"""Whether a topic deduplicates: loaded with the topic, and switched on and off as its policies change."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from actors.broker.cursor_log import CursorPlace
from actors.broker.ledgers import Ledgers
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.producer import Producer
from actors.broker.topic_dedup import TopicDeduplication, begin, take_over
from actors.broker.topic_reader import TopicReader
from heliograph.errors import HeliographError
from metadata.store import MetadataStore

log = logging.getLogger(__name__)


class DedupSwitch:
    """Holds the deduplication of one topic. All calls on one event loop.

    Attributes:
        current: None while the topic stores whatever it is sent.
    """

    def __init__(
        self,
        place: CursorPlace,
        ledger: ManagedLedger,
        reader: TopicReader,
        producers: Mapping[str, Producer],
        store: MetadataStore,
        ledgers: Ledgers,
    ) -> None:
        self.current: TopicDeduplication | None = None
        self._place = place
        self._ledger = ledger
        self._reader = reader
        self._producers = producers
        self._store = store
        self._ledgers = ledgers
        self._leaving: TopicDeduplication | None = None  # turned off, and perhaps not deleted yet
        self._turning = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_loaded = False
        self._is_closed = False

    async def load(self, *, is_recorded: bool) -> None:
        """Take over what the previous owner left, as the topic's policies want it."""
        if is_recorded:
            self.current = await take_over(self._place, self._ledger, self._reader, self._store, self._ledgers)
        await self._turn()
        self._is_loaded = True

    def follow_policies(self) -> None:
        """Policies changed: turn it on or off in the background."""
        if self.current is not None:
            self.current.snapshot_entries = self._ledger.policies.deduplication_snapshot_entries
        is_due = self._leaving is not None or self._ledger.policies.deduplication != (self.current is not None)
        if self._is_loaded and not self._turning.locked() and is_due:
            task = asyncio.get_running_loop().create_task(self._try_to_turn())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def housekeep(self) -> None:
        """Keep what has to be read again at a takeover short; try a change of policies again that failed."""
        if self.current is not None:
            self.current.housekeep()
        self.follow_policies()

    async def close(self) -> None:
        """Leave everything durable for the next owner."""
        self._is_closed = True
        async with self._turning:
            if self.current is not None:
                await self.current.close()

    def abandon(self) -> None:
        """The topic is another's (I13)."""
        self._is_closed = True
        if self.current is not None:
            self.current.abandon()

    async def _try_to_turn(self) -> None:
        try:
            await self._turn()
        except HeliographError as error:
            log.warning("%s: deduplication stays as it is for now: %s", self._place.topic, error)

    async def _turn(self) -> None:
        async with self._turning:
            if self._is_closed:
                return
            await self._delete_leaving()
            is_wanted = self._ledger.policies.deduplication
            if is_wanted == (self.current is not None):
                return
            if is_wanted:
                self.current = await begin(self._place, self._ledger, self._producers, self._store, self._ledgers)
                return
            self._leaving, self.current = self.current, None
            await self._delete_leaving()

    async def _delete_leaving(self) -> None:
        if self._leaving is not None:
            await self._leaving.delete()
            self._leaving = None
