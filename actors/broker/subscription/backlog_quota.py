"""The backlog quota of one topic. If the slowest durable subscription has too many bytes or too old messages before it,
the producers are held or refused, or the subscription loses its oldest messages.

A check costs work in proportion to the ledgers of the backlog, of which those of a piece of the chain count as one, and
not to its entries. For the age, one entry is read if the slowest cursor has moved since the last check.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from typing import NamedTuple

from heliograph.actors.broker.managed_ledger.backlog_size import LedgerSize, backlog_bytes, mark_within, sizes_of
from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.subscription.message_count import (
    ReadAllowance,
    count_messages,
    message_backlog,
)
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.base.clock import NEVER_MS
from heliograph.base.errors import HeliographError, ProducerHeldError, QuotaExceededError
from heliograph.metadata.model import Policies

EVICTION_SHARE = 0.9  # of the quota: the backlog of a subscription after its oldest messages were evicted
EVICTION = "consumer_backlog_eviction"
HOLD = "producer_request_hold"

log = logging.getLogger(__name__)


class BacklogQuota:
    """The quota of one topic. All calls on one event loop.

    Args:
        subscriptions: returns the topic's subscriptions.

    Attributes:
        evicted: messages that subscriptions lost.
    """

    def __init__(
        self, ledger: ManagedLedger, reader: EntryReader, subscriptions: Callable[[], Collection[Subscription]]
    ) -> None:
        self.evicted = 0
        self._ledger = ledger
        self._reader = reader
        self._subscriptions = subscriptions
        self._oldest: tuple[int, int] = (-1, 0)  # mark of the slowest cursor, and when that entry was stored, in ms
        self._is_too_old = False

    @property
    def backlog_bytes(self) -> int:
        """Return the bytes of the backlog of the slowest durable subscription."""
        mark = self._slowest()
        return 0 if mark is None else backlog_bytes(self._sizes(), mark)

    def bytes_from(self, index: int) -> int:
        """Return the bytes of the topic's entries from an index on, as if all entries of a ledger had the same size."""
        return backlog_bytes(self._sizes(), index)

    def refusal(self) -> HeliographError | None:
        """Return the error for producers while the backlog exceeds the quota, else None."""
        policies = self._ledger.policies
        action = policies.backlog_quota_action
        is_too_large = action != EVICTION and 0 <= policies.backlog_quota_bytes < self.backlog_bytes
        if not is_too_large:
            action = _age_action(policies)
            if not self._is_too_old or action == EVICTION or not self._durable():
                return None
        limit = f"{policies.backlog_quota_bytes} bytes, {policies.backlog_quota_seconds} seconds"
        slowest = min(self._durable(), key=lambda one: one.topic_mark)
        messages = message_backlog(slowest, self._ledger).messages
        text = f"the backlog of {self._ledger.name} is above its quota: {slowest.name} has {messages} messages"
        kind = ProducerHeldError if action == HOLD else QuotaExceededError
        return kind(text, field="backlog_quota", limit=limit)

    async def check(self) -> None:
        """Check the age of the backlog, and evict messages if that is the policy.

        Raises:
            QuorumLostError, ...: the oldest message cannot be read now; the result of the last check stays in force.
        """
        self._is_too_old = await self._check_age()

    def due_ms(self, now_ms: int) -> int:
        """Return when ``check`` has something to do, if nothing happens until then, by the clock of ages."""
        policies = self._ledger.policies
        seconds, size = policies.backlog_quota_seconds, policies.backlog_quota_bytes
        if seconds < 0 and size < 0:
            return NEVER_MS
        mark = self._slowest()
        if mark is None or mark >= self._ledger.chain.end:
            return NEVER_MS
        if size >= 0 and policies.backlog_quota_action == EVICTION and backlog_bytes(self._sizes(), mark) > size:
            return now_ms
        if seconds < 0:
            return NEVER_MS
        if self._oldest[0] != mark:
            return now_ms
        return NEVER_MS if self._is_too_old else self._oldest[1] + 1_000 * seconds  # it is until a cursor moves

    async def _check_age(self) -> bool:
        """Return whether producers are to be refused because of the age of the backlog."""
        policies = self._ledger.policies
        seconds, size = policies.backlog_quota_seconds, policies.backlog_quota_bytes
        if seconds < 0 and size < 0:
            return False
        mark = self._slowest()
        if mark is None or mark >= self._ledger.chain.end:
            return False
        for one in self._durable():  # for the text of a refusal
            await count_messages(one, self._ledger, self._reader, ReadAllowance(1))
        evicts_by_size, evicts_by_age = (
            action == EVICTION for action in (policies.backlog_quota_action, _age_action(policies))
        )
        if size >= 0 and evicts_by_size and backlog_bytes(self._sizes(), mark) > size:
            await self._evict(mark_within(self._sizes(), int(size * EVICTION_SHARE)), f"above {size} bytes")
        if seconds < 0:
            return False
        before = self._ledger.ages.now_ms() - seconds * 1000
        if await self._stored_ms(mark) >= before:
            return False
        if evicts_by_age:
            await self._evict(
                await self._reader.index_at_time(before, stored=True), f"stored more than {seconds} s ago"
            )
        return not evicts_by_age

    def _slowest(self) -> int | None:
        marks = [one.topic_mark for one in self._durable()]
        return max(min(marks), self._ledger.chain.first) if marks else None

    def _durable(self) -> list[Subscription]:
        return [one for one in self._subscriptions() if one.is_durable and not one.is_internal]

    def _sizes(self) -> Iterator[LedgerSize]:
        return sizes_of(self._ledger.record, self._ledger.chain, self._ledger.writer)

    async def _stored_ms(self, index: int) -> int:
        if self._oldest[0] != index:
            self._oldest = (index, await self._reader.stored_ms(index))
        return self._oldest[1]

    async def _evict(self, mark: int, why: str) -> None:
        for subscription in list(self._subscriptions()):
            if subscription.is_durable and not subscription.is_internal and subscription.topic_mark < mark:
                why_lost = f"evicted by the backlog quota, {why}"
                self.evicted += (await give_up(self._ledger, self._reader, subscription, mark, why_lost)).messages


class Lost(NamedTuple):
    """Counts of messages that left a backlog without an acknowledgement."""

    entries: int
    messages: int


async def give_up(ledger: ManagedLedger, reader: EntryReader, subscription: Subscription, mark: int, why: str) -> Lost:
    """Acknowledge every entry of a topic before ``mark``, which no consumer did, and say so in the log.

    Returns:
        what left the backlog. If its messages cannot be counted now, each entry counts as one.
    """
    chain, cursor = subscription.chain, subscription.cursor
    acknowledged = await count_messages(subscription, ledger, reader, ReadAllowance())
    if acknowledged is not None:
        acknowledged = cursor.acknowledged_messages  # now
    before, first = subscription.backlog, cursor.next_unacknowledged(chain.first)
    subscription.skip_to(chain.from_base(mark))
    entries = messages = before - subscription.backlog
    if entries:
        span = f"{chain.position_at(first)} to {chain.position_before(cursor.mark)}"
        now = await count_messages(subscription, ledger, reader, ReadAllowance())
        if acknowledged is not None and now is not None:
            messages = now - acknowledged
        log.info("%s: subscription %s lost %d messages, %s: %s", ledger.name, subscription.name, messages, span, why)
    return Lost(entries, messages)


def _age_action(policies: Policies) -> str:
    return policies.backlog_quota_seconds_action or policies.backlog_quota_action
