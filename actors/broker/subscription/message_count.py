"""Backlogs in messages: how many of them a subscription has not acknowledged, without a look at each entry.

An entry carries the number of the topic's messages up to it, so a cursor's mark takes a look at one entry, and each run
of acknowledged entries above it at two. That is done once: from then on the cursor counts what is acknowledged, and its
records keep the number. It is done again after the mark has jumped: a cumulative acknowledgement, a seek, an expiry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from heliograph.actors.broker.managed_ledger.managed_ledger import ManagedLedger
from heliograph.actors.broker.managed_ledger.reader import EntryReader
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.base.errors import HeliographError

PLACES_MAX = 2_000  # entries that are looked at for one cursor; one with more holes is not counted  # I15, I24
READS_MAX = 500  # of these, entries that are read from bookies for one answer  # I15


class MessageBacklog(NamedTuple):
    """The backlog of one subscription. Of its entries, ``uncounted`` ones count as one message each, because the number
    of theirs is not known; with 0 of them, ``messages`` is exact."""

    messages: int
    uncounted: int


@dataclass(slots=True)
class ReadAllowance:
    """How many more entries may be read from bookies."""

    reads: int = READS_MAX


def message_backlog(subscription: Subscription, ledger: ManagedLedger) -> MessageBacklog:
    """Return the backlog of a subscription in messages, as far as it is counted."""
    entries, acknowledged, chain = subscription.backlog, subscription.cursor.acknowledged_messages, ledger.chain
    if subscription.chain is not chain or acknowledged is None or not entries:
        return MessageBacklog(entries, entries)
    first = max(subscription.cursor.mark, chain.first)
    uncounted = min(max(_first_counted(ledger, first) - first, 0), entries)
    return MessageBacklog(max(ledger.messages - acknowledged, entries), uncounted)


async def count_messages(
    subscription: Subscription, ledger: ManagedLedger, reader: EntryReader, allowed: ReadAllowance
) -> int | None:
    """Count the acknowledged messages of a subscription, if its cursor does not have the number.

    Returns:
        how many there were when this was called; None if they cannot be counted now.
    """
    cursor, chain = subscription.cursor, ledger.chain
    if subscription.chain is not chain or chain.count is None or cursor.acknowledged_messages is not None:
        return cursor.acknowledged_messages
    if 2 * cursor.holes + cursor.partial_count > PLACES_MAX:
        return None
    # All of this is of one moment. The cursor counts later acknowledgements.
    count = _CountedTopic(ledger, reader, allowed)
    mark, runs, partial = max(cursor.mark, chain.first), [*cursor.acknowledged_runs()], [*cursor.partial_items()]
    number = cursor.begin_count()
    try:
        messages = await count.before(mark)
        for first, stop in runs:
            messages += await count.before(stop) - await count.before(first)
        for index, left in partial:
            messages += await count.acknowledged_of(index, left)
    except (HeliographError, LookupError):
        return None
    cursor.end_count(number, messages)
    return messages


class _CountedTopic:
    """The messages before some entries of a topic, as of one moment."""

    def __init__(self, ledger: ManagedLedger, reader: EntryReader, allowed: ReadAllowance) -> None:
        self._ledger = ledger
        self._reader = reader
        self._allowed = allowed
        self._end, self._messages = ledger.chain.end, ledger.messages

    async def before(self, index: int) -> int:
        """Return the messages before an entry.

        Raises:
            LookupError: the entry has no number or is gone, or no more may be read.
            QuorumLostError, BookieError, NoSuchLedgerError: it cannot be read now.
        """
        if index >= self._end:
            return self._messages
        if index < self._ledger.chain.first:
            raise LookupError("the entry was trimmed meanwhile")
        start = _first_counted(self._ledger, index)
        if index < start:
            assert self._ledger.chain.count is not None, "the topic was opened"
            return self._ledger.chain.count.before - (start - index)
        entry = await self._entry(index)
        return entry.counted - entry.messages

    async def acknowledged_of(self, index: int, left: int) -> int:
        """Return how many messages of an entry are not in ``left``, a bit each. Raises as ``before`` does."""
        entry = await self._entry(index)
        if left >> entry.messages:
            raise LookupError("an acknowledgement named more than the batch has")
        return entry.messages - left.bit_count()

    async def _entry(self, index: int) -> TopicEntry:
        entry = self._reader.cached(index) if index >= self._ledger.chain.first else None
        if entry is None:
            if not self._allowed.reads:
                raise LookupError("no more entries may be read")
            self._allowed.reads -= 1
            entry = await self._reader.entry(index)
        if not entry.counted:
            raise LookupError("the entry has no number")
        return entry


def _first_counted(ledger: ManagedLedger, index: int) -> int:
    """Return the first entry that carries its number, ``index`` if that is not after it."""
    chain, count = ledger.chain, ledger.chain.count
    if count is None or index >= chain.end or chain.position_at(index).ledger_id > count.after:
        return index
    return chain.at_or_after(Position(count.after + 1, 0))
