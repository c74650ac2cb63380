"""Messages that a producer split into chunks because they were too large for one entry."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from heliograph.client.aio.consumer.delivery import ReceivedEntry
from heliograph.client.options import ConsumerOptions

BYTES_MAX = 256 << 20  # of all chunks that are held # I15
ENTRIES_MAX = 100_000  # of one message, repetitions included # I15
REMEMBERED_MAX = 1_000  # incomplete messages, most of them without their chunks # I15
GRACE = 0.25  # of the time of a message, for chunks that the broker could not send before

log = logging.getLogger(__name__)
_Position = tuple[int, int]


@dataclass(slots=True)
class _PartialMessage:
    """A message of which some chunks were received.

    Attributes:
        parts: Its chunks, from the first on.
        entries: Positions of all entries of it that came; they are acknowledged with the message.
        dropped: Entries that have to come again: no earlier chunk was there, or there was no room.
        deadline: Loop time at which it is given up, or has its grace.
        has_grace: It was due at a time when the broker could send. It is given up unless a chunk comes now.
        published_ms: When the last chunk that ever came was published.
        reached: The number of that chunk, -1 for none.
    """

    deadline: float
    has_grace: bool = False
    published_ms: int = 0
    parts: list[ReceivedEntry] = field(default_factory=list)
    entries: dict[_Position, None] = field(default_factory=dict)
    dropped: dict[_Position, None] = field(default_factory=dict)
    size: int = 0  # bytes of ``parts``
    reached: int = -1


class ChunkAssembler:
    """Assembles messages from their chunks.

    A chunk may come twice, because a producer that lost its connection sends everything unconfirmed again. Of a message
    that its producer never finished, no chunk comes any more. It expires: its chunks are acknowledged, which would
    otherwise hold the subscription back for ever.

    A chunk that is stored may be late, because the broker could not send it, or because the consumer is behind. So the
    time of a message begins again while entries come that were published within that time after its last chunk, and
    when the broker cannot send. If the broker can, it still has ``GRACE`` to do so.

    Args:
        redeliver: Called with entries that have to be delivered again.
        expired: Called with the entries of a message that is given up.
        can_receive: Returns whether the broker may send entries. It may ask the broker, and call ``renew`` when that
            says that it may not.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        loop: asyncio.AbstractEventLoop,
        redeliver: Callable[[Iterable[_Position]], None],
        expired: Callable[[Iterable[_Position]], None],
        can_receive: Callable[[], bool],
    ) -> None:
        self._messages_max = options.chunked_messages_max
        self._seconds = options.chunked_expiry_ms / 1000
        self._is_shared = options.is_shared
        self._loop = loop
        self._redeliver = redeliver
        self._expired = expired
        self._can_receive = can_receive
        self._partial: dict[str, _PartialMessage] = {}  # by the uuid of the message
        self._bytes = 0  # of all chunks held
        self._newest = (0, -1, -1)  # how often the consumer had sought, and the last entry that came since
        self._newest_came, self._newest_published_ms = 0.0, 0  # the loop time, and when its producer sent it
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a message is incomplete."""
        return bool(self._partial)

    def complete(self, delivery: ReceivedEntry) -> bool:
        """Add a chunk. Return True if it was the last one: ``delivery`` then stands for the whole message."""
        metadata = delivery.metadata
        chunk, uuid, position = metadata.chunk_id, metadata.uuid, delivery.position
        partial = self._partial.get(uuid)
        if partial is None:
            partial = self._remember(uuid)
        if chunk == 0 and position not in partial.entries:
            self._restart(partial)  # the earlier chunks may be of an older producer
        if chunk > partial.reached:
            partial.reached, partial.published_ms = chunk, delivery.published_ms
            self._renew(partial)
        if len(partial.entries) >= ENTRIES_MAX:
            self._redeliver(self._forget(uuid).entries)
            return False
        partial.entries[position] = None
        if chunk > len(partial.parts):  # one in between is redelivered, or never comes
            partial.dropped[position] = None
            return False
        if chunk < len(partial.parts):
            return False
        if not partial.parts:
            self._partial[uuid] = self._partial.pop(uuid)  # the message that began last is dropped last
        partial.parts.append(delivery)
        partial.size += delivery.size
        self._bytes += delivery.size
        partial.dropped.pop(position, None)
        if chunk == metadata.num_chunks_from_msg - 1:
            self._forget(uuid)
            del partial.entries[position]
            delivery.payload = memoryview(b"".join(part.payload for part in partial.parts))
            delivery.earlier_chunks = list(partial.entries)
            return True
        if partial.dropped:
            if self._is_shared:  # others go back to the oldest unacknowledged entry, and have these again by that
                self._redeliver(partial.dropped)
            partial.dropped.clear()
        self._drop_oldest()
        return False

    def clear(self) -> None:
        """Drop all chunks: the broker delivers unacknowledged entries again."""
        for partial in self._partial.values():
            self._drop(partial)
            partial.entries.clear()
            partial.dropped.clear()
        self.renew()

    def renew(self) -> None:
        """Give every message its full time again: the broker could not send its chunks until now."""
        for partial in self._partial.values():
            self._renew(partial)

    def received(self, delivery: ReceivedEntry) -> None:
        """Note how far the consumer has come; redeliveries do not count."""
        place = (delivery.seeks, *delivery.position)
        if place > self._newest:
            self._newest = place
            self._newest_came, self._newest_published_ms = self._loop.time(), delivery.published_ms

    def stop(self) -> None:
        """Forget every message."""
        self._partial.clear()
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _remember(self, uuid: str) -> _PartialMessage:
        while len(self._partial) >= REMEMBERED_MAX:  # I15
            self._redeliver(self._forget(next(iter(self._partial))).entries)
        partial = self._partial[uuid] = _PartialMessage(self._loop.time() + self._seconds)
        if self._timer is None and self._seconds:
            self._timer = self._loop.call_later(self._seconds, self._expire)
        return partial

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        if not self._can_receive():
            self.renew()
        has_come_on = self._newest_came > now - self._seconds
        for uuid, partial in list(self._partial.items()):
            if partial.deadline > now:
                continue
            if has_come_on and self._newest_published_ms < partial.published_ms + self._seconds * 1000:
                self._renew(partial)
            elif not partial.has_grace:
                partial.has_grace, partial.deadline = True, now + self._seconds * GRACE
            else:
                log.warning(
                    "the chunked message %s is given up: %d of its chunks came, and none in the last %g s",
                    uuid,
                    partial.reached + 1,
                    self._seconds,
                )
                self._forget(uuid)
                self._expired(partial.entries)
        if self._partial:
            first = min(partial.deadline for partial in self._partial.values())
            self._timer = self._loop.call_at(first, self._expire)

    def _renew(self, partial: _PartialMessage) -> None:
        partial.has_grace, partial.deadline = False, self._loop.time() + self._seconds

    def _restart(self, partial: _PartialMessage) -> None:
        self._drop(partial)
        partial.reached = -1

    def _drop_oldest(self) -> None:
        """Drop the chunks of messages above the bounds, from the oldest on, and have them delivered again."""
        held = [partial for partial in self._partial.values() if partial.parts]
        for number, partial in enumerate(held[:-1], 1):
            if len(held) - number < self._messages_max and self._bytes <= BYTES_MAX:  # I15
                return
            again = [part.position for part in partial.parts]
            self._drop(partial)
            self._redeliver(again)

    def _drop(self, partial: _PartialMessage) -> None:
        self._bytes -= partial.size
        assert self._bytes >= 0, "no more bytes are freed than were held"
        partial.size = 0
        partial.parts.clear()

    def _forget(self, uuid: str) -> _PartialMessage:
        partial = self._partial.pop(uuid)
        self._bytes -= partial.size
        assert self._bytes >= 0, "no more bytes are freed than were held"
        return partial
