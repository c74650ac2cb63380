"""The bounds on answers of administration that may be large (I15).

Answers with messages, which bookies are asked for, and lists of any length, from metadata, have a bound each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from heliograph.protocol.compression import UNCOMPRESSED_BYTES_MAX

PEEK_BYTES_MAX = 8 << 20  # messages of one answer; one is always shown
MESSAGE_BYTES = 1 << 10  # of the fields of one message, besides payload, key and properties
SHOWN_AT_ONCE_MAX = 2  # answers with messages, at the owner of their topics, and as many for callers
LISTS_AT_ONCE_MAX = 8
NAMES_BYTES_MAX = 4 << 20  # of the topics in one command of the protocol: 80,000 names of 50 bytes
WATCHED_BYTES_MAX = 32 << 20  # of the topics that all watchers know
MATCHED_BYTES_MAX = 3 * (LISTS_AT_ONCE_MAX * NAMES_BYTES_MAX + WATCHED_BYTES_MAX)  # in memory, an estimate
LIST_BYTES_MAX = 16 << 20  # of one list, an estimate: 100,000 topics by name
SHOWN_BYTES_MAX = 2 * SHOWN_AT_ONCE_MAX * (PEEK_BYTES_MAX + UNCOMPRESSED_BYTES_MAX)
SHOWN = ("peek", "examine", "message", "trace", "find")  # methods of the owner; the operations are those of ``cursors``
LISTS = ("list_topics", "topic_record", "namespaces.tenants", "namespaces.list", "schemas.versions", "brokers.topics")


def turns(names: Iterable[str], at_once_max: int) -> dict[str, asyncio.Semaphore]:
    """Return the semaphore of calls of these names: so many run at once, all together."""
    return dict.fromkeys(names, asyncio.Semaphore(at_once_max))
