"""Entries that are being filled or sent."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from heliograph.base.errors import HeliographError
from heliograph.protocol.message_id import MessageId, received_id


@dataclass(slots=True)
class OpenBatch:
    """Messages collected for one entry that is not sent yet, with one future per message in ``waiters``."""

    key: str | None = None  # of the first message; of all if batches hold one key each
    heads: list[bytes] = field(default_factory=list)
    payloads: list[bytes] = field(default_factory=list)
    waiters: list[asyncio.Future[MessageId]] = field(default_factory=list)
    size: int = 0  # bytes


@dataclass(slots=True)
class PendingEntry:
    """An entry that was sent, or will be when there is a connection, and is not confirmed.

    Attributes:
        sequence_id, last_sequence_id: Sequence ids of its first and last message.
        messages, size: Messages and bytes that it takes of the send window.
        frame: The bytes to send; after a reconnect the same bytes are sent again.
        waiters: One future per message, or a single one for the whole entry.
        deadline: Loop time at which the entry fails if it is not confirmed.
        settled: Resolves when the entry is confirmed or has failed. Entries settle in order, so all entries before it
            are settled then, too.
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
        """Resolve the waiter of each message with its id; a single waiter gets the id of the entry."""
        size = len(self.waiters)
        if size == 1:
            waiter = self.waiters[0]
            if not waiter.done():
                waiter.set_result(received_id(ledger_id, entry_id, partition, -1, 0, topic))
        else:
            for index, waiter in enumerate(self.waiters):
                if not waiter.done():
                    waiter.set_result(received_id(ledger_id, entry_id, partition, index, size, topic))
        if self.settled is not None:
            self._settle()

    def fail(self, error: HeliographError) -> None:
        """Fail every waiter with ``error``."""
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_exception(error)
                waiter.exception()  # no warning if the caller is gone
        self._settle()

    def _settle(self) -> None:
        if self.settled is not None and not self.settled.done():
            self.settled.set_result(None)
