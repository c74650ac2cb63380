"""The backlog quota of one topic: when the slowest durable subscription is too far behind, in bytes or in time, its
producers are held, or told off, or the subscription loses its oldest messages.

A look costs the ledgers of the backlog, not its entries; for the age one entry is read where the slowest cursor has
moved since the last look.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator

from actors.broker.backlog_size import LedgerSize, backlog_bytes, mark_within
from actors.broker.managed_ledger import ManagedLedger
from actors.broker.subscription import Subscription
from actors.broker.topic_reader import TopicReader
from actors.broker.topic_record import now_ms
from heliograph.errors import HeliographError, ProducerHeldError, QuotaExceededError

EVICTION_SHARE = 0.9  # of the quota is left to a subscription whose oldest messages were evicted
EVICTION = "consumer_backlog_eviction"
HOLD = "producer_request_hold"

log = logging.getLogger(__name__)


class BacklogQuota:
    """All calls on one event loop.

    Args:
        subscriptions: gives those of the topic as they are now.

    Attributes:
        evicted: entries that subscriptions lost.
    """

    def __init__(
        self, ledger: ManagedLedger, reader: TopicReader, subscriptions: Callable[[], Collection[Subscription]]
    ) -> None:
        self.evicted = 0
        self._ledger = ledger
        self._reader = reader
        self._subscriptions = subscriptions
        self._oldest: tuple[int, int] = (-1, 0)  # the slowest cursor's mark, and when that entry was published, ms
        self._is_too_old = False

    @property
    def backlog_bytes(self) -> int:
        """What the slowest durable subscription has before it."""
        mark = self._slowest()
        return 0 if mark is None else backlog_bytes(self._sizes(), mark)

    def refusal(self) -> HeliographError | None:
        """What producers are told now, None when they are welcome."""
        policies = self._ledger.policies
        if policies.backlog_quota_action == EVICTION:
            return None
        is_too_large = 0 <= policies.backlog_quota_bytes < self.backlog_bytes
        if not is_too_large and not self._is_too_old:
            return None
        limit = f"{policies.backlog_quota_bytes} bytes, {policies.backlog_quota_seconds} seconds"
        text = f"the backlog of {self._ledger.name} is above its quota"
        kind = ProducerHeldError if policies.backlog_quota_action == HOLD else QuotaExceededError
        return kind(text, field="backlog_quota", limit=limit)

    async def check(self) -> None:
        """Look at the age of the backlog, and evict where that is the policy.

        Raises:
            QuorumLostError, ...: the oldest message cannot be read now; what was found before holds on.
        """
        self._is_too_old = await self._look()

    async def _look(self) -> bool:
        """Whether the backlog is too old for producers."""
        policies = self._ledger.policies
        seconds, size = policies.backlog_quota_seconds, policies.backlog_quota_bytes
        if seconds < 0 and size < 0:
            return False
        mark = self._slowest()
        if mark is None or mark >= self._ledger.chain.end:
            return False
        is_evicting = policies.backlog_quota_action == EVICTION
        if size >= 0 and is_evicting and backlog_bytes(self._sizes(), mark) > size:
            self._evict(mark_within(self._sizes(), int(size * EVICTION_SHARE)))
        if seconds < 0:
            return False
        before = now_ms() - seconds * 1000
        if await self._published(mark) >= before:
            return False
        if is_evicting:
            self._evict(await self._reader.index_at_time(before))
        return not is_evicting

    def _slowest(self) -> int | None:
        marks = [s.topic_mark for s in self._subscriptions() if s.is_durable and not s.is_internal]
        return max(min(marks), self._ledger.chain.first) if marks else None

    def _sizes(self) -> Iterator[LedgerSize]:
        """The topic's ledgers, newest first; one at a time, as few as are wanted."""
        chain, writer = self._ledger.chain, self._ledger.writer
        index = chain.end
        for info in reversed(self._ledger.record.ledgers):
            if info.ledger_id > chain.last_ledger_id:
                continue  # named for later
            entries = chain.entries_in(info.ledger_id)
            index -= entries
            is_open = info.ledger_id == writer.ledger_id and not info.closed_ms
            yield LedgerSize(index, entries, writer.length if is_open else info.size)

    async def _published(self, index: int) -> int:
        if self._oldest[0] != index:
            self._oldest = (index, (await self._reader.entry(index)).publish_time_ms)
        return self._oldest[1]

    def _evict(self, mark: int) -> None:
        for subscription in self._subscriptions():
            if subscription.is_durable and not subscription.is_internal and subscription.topic_mark < mark:
                before = subscription.backlog
                subscription.skip_to(subscription.chain.from_base(mark))
                self.evicted += before - subscription.backlog
                log.warning("%s: %s lost its backlog before entry %d", self._ledger.name, subscription.name, mark)
