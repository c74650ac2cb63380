"""Entries that are being filled or sent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from heliograph.base.errors import HeliographError
from heliograph.protocol.message_id import MessageId, received_id


class Waiter(Protocol):
    """Learns the outcome of a message, or of a whole entry: a future, or an ``EntryOutcome``."""

    def done(self) -> bool:
        """Return whether the outcome is known or not asked for any more."""

    def set_result(self, stored: MessageId, /) -> None:
        """Note that it is stored, and where."""

    def set_exception(self, error: BaseException, /) -> None:
        """Note that it failed."""

    def exception(self) -> BaseException | None:
        """Return why it failed."""


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
        frames, receipts: How many frames they are, more than one for chunks, and how many of them this connection
            confirmed.
        waiters: One per message, or a single one for the whole entry.
        first_chunk: Ledger and entry of the first of several frames, once it is confirmed.
        deadline: Loop time at which the entry fails if it is not confirmed.
        settled: Resolves when the entry is confirmed or has failed. Entries settle in order, so all entries before it
            are settled then, too.
    """

    sequence_id: int
    last_sequence_id: int
    messages: int
    size: int  # bytes
    frame: bytes
    waiters: Sequence[Waiter]
    deadline: float
    settled: asyncio.Future[None] | None = None
    frames: int = 1
    receipts: int = 0  # < frames
    first_chunk: tuple[int, int] | None = None

    def confirm(self, ledger_id: int, entry_id: int, partition: int, topic: str) -> None:
        """Resolve the waiter of each message with its id; a single waiter gets the id of the entry."""
        size = len(self.waiters)
        if size == 1:
            waiter = self.waiters[0]
            if not waiter.done():
                first_chunk = self.first_chunk if ledger_id >= 0 else None  # it was stored before
                waiter.set_result(received_id(ledger_id, entry_id, partition, -1, 0, topic, first_chunk))
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


class ListOutcome:
    """The outcome of the entries of one list of messages.

    A list may make an entry for each of its messages. A future for each entry, which the event loop calls back, would
    cost more than the rest of its confirmation.

    Attributes:
        ids: One for each message; None while it is not stored.
    """

    __slots__ = ("_failures", "_settled", "_unsettled", "ids")

    def __init__(self, messages: int) -> None:
        self.ids: list[MessageId | None] = [None] * messages
        self._failures: dict[int, BaseException] = {}  # by the first message of the entry
        self._unsettled = 0  # entries
        self._settled: asyncio.Future[None] | None = None  # of the caller that waits

    def expect(self, positions: Sequence[int]) -> EntryOutcome:
        """Return the waiter of an entry that has the messages at ``positions``."""
        self._unsettled += 1
        return EntryOutcome(self, positions)

    async def wait(self) -> list[BaseException]:
        """Wait until every entry is confirmed or failed; return the failures in the order of their messages."""
        if self._unsettled:
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled
        return [self._failures[first] for first in sorted(self._failures)]

    def stored(self, positions: Sequence[int], entry: MessageId) -> None:
        size = len(positions)
        if size == 1:
            self.ids[positions[0]] = entry
        else:
            ledger_id, entry_id, partition, topic = entry.ledger_id, entry.entry_id, entry.partition, entry.topic
            for index, position in enumerate(positions):
                self.ids[position] = received_id(ledger_id, entry_id, partition, index, size, topic)
        self._settle()

    def failed(self, positions: Sequence[int], error: BaseException) -> None:
        """Note why an entry failed."""
        self._failures[positions[0]] = error
        self._settle()

    def _settle(self) -> None:
        self._unsettled -= 1
        assert self._unsettled >= 0, "an entry has one outcome"
        if not self._unsettled and self._settled is not None and not self._settled.done():
            self._settled.set_result(None)


class EntryOutcome:
    """The waiter of one entry of a list."""

    __slots__ = ("_list", "_positions")

    def __init__(self, outcome: ListOutcome, positions: Sequence[int]) -> None:
        self._list = outcome
        self._positions = positions

    def done(self) -> bool:
        """Return False: an entry tells its outcome once."""
        return False

    def set_result(self, stored: MessageId, /) -> None:
        """Give each message of the entry its id."""
        self._list.stored(self._positions, stored)

    def set_exception(self, error: BaseException, /) -> None:
        """Note the failure."""
        self._list.failed(self._positions, error)

    def exception(self) -> None:
        """Return nothing: the caller of the list asks ``ListOutcome``."""
