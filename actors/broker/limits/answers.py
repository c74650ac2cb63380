"""The bounds on answers of administration that may be large (I15).

Messages are read from bookies, and their answers are held by the owner of the topic and by the broker that was asked.
Lists of any length come from metadata. Each kind has a bound of its own, so a list can be had while bookies are silent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from heliograph.protocol.compression import UNCOMPRESSED_BYTES_MAX

R = TypeVar("R")

PEEK_BYTES_MAX = 8 << 20  # payloads of one answer; one message is always shown
SHOWN_AT_ONCE_MAX = 2  # answers with messages, at the owner of their topics, and as many for callers
LISTS_AT_ONCE_MAX = 8
LIST_BYTES_MAX = 16 << 20  # of one list, an estimate: 100,000 topics by name
ANSWER_BYTES_MAX = (
    2 * SHOWN_AT_ONCE_MAX * (PEEK_BYTES_MAX + UNCOMPRESSED_BYTES_MAX) + LISTS_AT_ONCE_MAX * LIST_BYTES_MAX
)
_SHOWN = ("cursors.peek", "cursors.examine", "cursors.message")
_LISTS = ("list_topics", "topic_record", "namespaces.tenants", "namespaces.list", "schemas.versions", "brokers.topics")


def turns() -> dict[str, asyncio.Semaphore]:
    """Return what calls of some operations, by name, wait for."""
    shown, lists = asyncio.Semaphore(SHOWN_AT_ONCE_MAX), asyncio.Semaphore(LISTS_AT_ONCE_MAX)
    return {**dict.fromkeys(_SHOWN, shown), **dict.fromkeys(_LISTS, lists)}


def in_turn(turn: asyncio.Semaphore, method: Callable[..., Awaitable[R]]) -> Callable[..., Awaitable[R]]:
    """Return a method that runs when it is its turn."""

    async def run(*arguments: Any, **options: Any) -> R:
        async with turn:
            return await method(*arguments, **options)

    return run
