"""Entries on their way to a broker."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from heliograph.errors import HeliographError
from heliograph.protocol.message_id import MessageId


@dataclass(slots=True)
class OpenBatch:
    """Messages collected for one entry that is not sent yet; ``waiters`` holds one future per message."""

    key: str | None = None  # of the first message; all of it where batches hold one key each
    heads: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    waiters: list[asyncio.Future[MessageId]] = field(default_factory=list)
    size: int = 0  # bytes


@dataclass(slots=True)
class PendingEntry:
    """An entry that was sent, or will be once there is a connection, and is not confirmed.

    Attributes:
        sequence_id, last_sequence_id: of its first and last message.
        messages, size: what it takes of the send window.
        frame: the bytes to send, the same ones after each reconnect.
        waiters: one future per message, or a single one for the whole entry.
        deadline: when it fails for lack of a confirmation, in loop time.
        settled: resolves once it is confirmed or has failed, for who waits for that and not for an id. Entries are
            settled in their order, so that those before it are, too.
    """

    sequence_id: int
    last_sequence_id: int
    messages: int
    size: int  # bytes
    frame: bytes
    waiters: list[asyncio.Future[MessageId]]
    deadline: float
    settled: asyncio.Future[None] | None = None

    def confirm(self, ledger_id: int, entry_id: int, partition: int, topic: str) -> None:
        """Hands the id of each message to its waiter; a single waiter gets that of the entry."""
        size = len(self.waiters)
        for index, waiter in enumerate(self.waiters):
            if not waiter.done():
                batch = (index, size) if size > 1 else (-1, 0)
                waiter.set_result(MessageId(ledger_id, entry_id, partition, *batch, topic=topic))
        self._settle()

    def fail(self, error: HeliographError) -> None:
        """Hands ``error`` to every waiter."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # a caller that went away is no reason for a warning
        self._settle()

    def _settle(self) -> None:
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)
