"""How many messages a topic has, counted without a look at its entries.

Every entry carries, in the broker's metadata, the number of the topic's messages up to and including it. So the
messages between two entries are a subtraction, and the newest entry tells the next owner where to go on. Entries of
earlier releases carry no number: before the first one that does, each entry counts as one message.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from heliograph.actors.broker.records.topic_chain import last_ledger_id
from heliograph.metadata.model import TopicRecord

COUNTED = "counted"  # property of the record: <last closed ledger with entries>:<messages>:<after>:<before>


class TopicCount(NamedTuple):
    """The messages of a topic.

    Args:
        messages: of all entries, from the first one that was ever counted on.
        after: every entry of a ledger after this one carries its number; -1: every entry does.
        before: the messages up to the end of that ledger; each of its entries, and of older ones, counts as one.
    """

    messages: int = 0
    after: int = -1
    before: int = 0


NOTHING_COUNTED = TopicCount()  # of a topic without entries


def counted_at_end(record: TopicRecord) -> TopicCount | None:
    """Return the count of a topic whose ledgers are closed; None if the record does not have it. The last entry may."""
    noted, last = _noted(record), last_ledger_id(record)
    return noted[1] if noted is not None and last in (-1, noted[0]) else None


def counted_by_last_entry(record: TopicRecord, messages: int) -> TopicCount:
    """Return the count of a topic whose last entry carries the number ``messages``; 0: none, or it cannot be read."""
    noted = _noted(record)
    count = NOTHING_COUNTED if noted is None else noted[1]
    if messages and noted is not None:
        return count._replace(messages=messages)
    return TopicCount(count.messages, last_ledger_id(record), count.messages)


def with_count(record: TopicRecord, ledger_id: int, count: TopicCount) -> TopicRecord:
    """Return the record with the count at the end of a closed ledger, the last one with entries; -1: there is none."""
    noted = ":".join(map(str, (ledger_id, *count)))
    return replace(record, properties={**record.properties, COUNTED: noted})


def is_noted(record: TopicRecord, ledger_id: int) -> bool:
    noted = _noted(record)
    return noted is not None and noted[0] == ledger_id


def _noted(record: TopicRecord) -> tuple[int, TopicCount] | None:
    text = record.properties.get(COUNTED)
    if text is None:
        return None
    ledger_id, *count = map(int, text.split(":"))
    return ledger_id, TopicCount(*count)
