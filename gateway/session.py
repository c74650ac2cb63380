"""How many messages a WebSocket consumer or reader may be sent now: pure state, no socket and no clock.

Three rules exist, one class each, with the same five events. Which rule holds is fixed for a session's life.

    class          room for more                    a message sent   ack or nack           permit     seek
    PushWindow     capacity - unacknowledged ids    adds its id      removes the id        ignored    empties it
    PermitWindow   permits not used up              takes a permit   nothing               adds n     nothing
    ReaderWindow   capacity - unconfirmed count     adds one         removes one           ignored    empties it

I15: what a session was sent and has not settled is bounded by ``capacity`` or by the permits that its peer gave.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Protocol

RECEIVER_QUEUE_MAX = 1000  # messages; the bound on the receiverQueueSize that a peer may ask for
PERMITS_MAX = 1_000_000  # messages; permits beyond it are not counted


class Window(Protocol):
    """The five events and the one question."""

    def room(self) -> int:
        """Messages that may be sent now, at least 0."""

    def on_sent(self, ids: Iterable[Hashable]) -> None:
        """These messages were sent."""

    def on_settled(self, id_: Hashable) -> None:
        """The peer acknowledged or refused this message."""

    def on_settled_up_to(self, ids: Iterable[Hashable]) -> None:
        """The peer acknowledged all of these at once."""

    def on_permits(self, count: int) -> None:
        """The peer asked for ``count`` more."""

    def on_reset(self) -> None:
        """The position changed: what was sent before no longer counts."""


class PushWindow:
    """Push mode: messages flow until ``capacity`` of them are unacknowledged."""

    def __init__(self, capacity: int) -> None:
        self._capacity = min(max(capacity, 1), RECEIVER_QUEUE_MAX)  # 0 counts as 1
        self._unsettled: set[Hashable] = set()

    @property
    def unsettled(self) -> frozenset[Hashable]:
        """Ids sent and neither acknowledged nor refused."""
        return frozenset(self._unsettled)

    def room(self) -> int:
        """Messages that may be sent now."""
        return max(0, self._capacity - len(self._unsettled))

    def on_sent(self, ids: Iterable[Hashable]) -> None:
        """Count them; one that is sent again counts once."""
        self._unsettled.update(ids)

    def on_settled(self, id_: Hashable) -> None:
        """Forget it; one that this session never sent changes nothing."""
        self._unsettled.discard(id_)

    def on_settled_up_to(self, ids: Iterable[Hashable]) -> None:
        """Forget them."""
        self._unsettled.difference_update(ids)

    def on_permits(self, count: int) -> None:
        """Permits mean nothing here."""

    def on_reset(self) -> None:
        """Forget all."""
        self._unsettled.clear()


class PermitWindow:
    """Pull mode: messages flow only against permits; acknowledgements give none."""

    def __init__(self) -> None:
        self._permits = 0

    def room(self) -> int:
        """Messages that may be sent now."""
        return self._permits

    def on_sent(self, ids: Iterable[Hashable]) -> None:
        """Use up a permit for each."""
        self._permits -= sum(1 for _ in ids)
        assert self._permits >= 0, "no more was sent than there was room for"

    def on_settled(self, id_: Hashable) -> None:
        """Gives no permit."""

    def on_settled_up_to(self, ids: Iterable[Hashable]) -> None:
        """Gives no permit."""

    def on_permits(self, count: int) -> None:
        """Add permits, up to the bound."""
        assert count > 0, "the frame's check lets only positive numbers through"
        self._permits = min(self._permits + count, PERMITS_MAX)

    def on_reset(self) -> None:
        """Permits stand."""


class ReaderWindow:
    """A reader's peer confirms with any frame; which message it names does not matter."""

    def __init__(self, capacity: int) -> None:
        self._capacity = min(max(capacity, 1), RECEIVER_QUEUE_MAX)
        self._unconfirmed = 0

    def room(self) -> int:
        """Messages that may be sent now."""
        return self._capacity - self._unconfirmed

    def on_sent(self, ids: Iterable[Hashable]) -> None:
        """Count them."""
        self._unconfirmed += sum(1 for _ in ids)

    def on_settled(self, id_: Hashable) -> None:
        """One less; a confirmation too many changes nothing."""
        self._unconfirmed = max(0, self._unconfirmed - 1)

    def on_settled_up_to(self, ids: Iterable[Hashable]) -> None:
        """A reader's peer has no such frame."""

    def on_permits(self, count: int) -> None:
        """Permits mean nothing here."""

    def on_reset(self) -> None:
        """Forget all."""
        self._unconfirmed = 0
