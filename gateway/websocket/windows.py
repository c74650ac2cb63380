"""The number of messages that a WebSocket consumer or reader may be sent now. No I/O and no clock.

There are three rules, one class each, with the same five events. The rule is fixed for the life of a session.

    class          room for more                    a message sent   ack or nack           permit     seek
    PushWindow     capacity - unacknowledged ids    adds its id      removes the id        ignored    empties it
    PermitWindow   permits not used up              takes a permit   nothing               adds n     nothing
    ReaderWindow   capacity - unconfirmed count     adds one         removes one           ignored    empties it

I15: the messages that a session sent and that are not settled are bounded by ``capacity``, or by the permits of its
peer.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable

from typing_extensions import override

RECEIVER_QUEUE_MAX = 1000  # messages; the bound on the receiverQueueSize that a peer may ask for
PERMITS_MAX = 1_000_000  # messages; permits beyond it are not counted


class DeliveryWindow:
    """One question and five events. An event that a rule does not use changes nothing."""

    def room(self) -> int:
        """Return the number of messages that may be sent now, at least 0."""
        raise AssertionError("each rule says how much room there is")

    def on_sent(self, ids: Iterable[Hashable]) -> None:
        """Count messages that were sent."""

    def on_settled(self, id_: Hashable) -> None:
        """Note that the peer acknowledged or refused a message."""

    def on_settled_up_to(self, ids: Iterable[Hashable]) -> None:
        """Note that the peer acknowledged several messages at once."""

    def on_permits(self, count: int) -> None:
        """Note that the peer permits ``count`` more messages."""

    def on_reset(self) -> None:
        """Note that the position changed: messages sent before no longer count."""


class PushWindow(DeliveryWindow):
    """Push mode: messages are sent until ``capacity`` of them are unacknowledged."""

    def __init__(self, capacity: int) -> None:
        self._capacity = min(max(capacity, 1), RECEIVER_QUEUE_MAX)  # 0 counts as 1
        self._unsettled: set[Hashable] = set()

    @property
    def unsettled(self) -> frozenset[Hashable]:
        """Return the ids that were sent and neither acknowledged nor refused."""
        return frozenset(self._unsettled)

    @override
    def room(self) -> int:
        return max(0, self._capacity - len(self._unsettled))

    @override
    def on_sent(self, ids: Iterable[Hashable]) -> None:
        self._unsettled.update(ids)  # a message that is sent again counts once

    @override
    def on_settled(self, id_: Hashable) -> None:
        self._unsettled.discard(id_)  # an id that this session never sent changes nothing

    @override
    def on_settled_up_to(self, ids: Iterable[Hashable]) -> None:
        self._unsettled.difference_update(ids)

    @override
    def on_reset(self) -> None:
        self._unsettled.clear()


class PermitWindow(DeliveryWindow):
    """Pull mode: messages are sent only against permits; acknowledgements give none."""

    def __init__(self) -> None:
        self._permits = 0  # 0 <= permits <= PERMITS_MAX

    @override
    def room(self) -> int:
        return self._permits

    @override
    def on_sent(self, ids: Iterable[Hashable]) -> None:
        self._permits -= sum(1 for _ in ids)
        assert self._permits >= 0, "more messages were sent than were permitted"

    @override
    def on_permits(self, count: int) -> None:
        assert count > 0, "the frame's check accepts only positive numbers"
        self._permits = min(self._permits + count, PERMITS_MAX)


class ReaderWindow(DeliveryWindow):
    """A reader's peer confirms with any frame; the message that the frame names does not matter."""

    def __init__(self, capacity: int) -> None:
        self._capacity = min(max(capacity, 1), RECEIVER_QUEUE_MAX)
        self._unconfirmed = 0

    @override
    def room(self) -> int:
        return self._capacity - self._unconfirmed

    @override
    def on_sent(self, ids: Iterable[Hashable]) -> None:
        self._unconfirmed += sum(1 for _ in ids)
        assert self._unconfirmed <= self._capacity, "more messages were sent than there was room for"

    @override
    def on_settled(self, id_: Hashable) -> None:
        self._unconfirmed = max(0, self._unconfirmed - 1)  # a surplus confirmation changes nothing

    @override
    def on_reset(self) -> None:
        self._unconfirmed = 0
