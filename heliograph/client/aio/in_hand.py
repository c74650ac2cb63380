"""The messages that callers of one client have, for consumers that bury what kills their process (``max_crashes``).

A consumer that is lost takes along what its callers have and what waits in its inbox, and the broker cannot know which
message it was. So a message that was lost once is handed out alone, while callers have nothing else, and the broker is
told so. It counts the crashes of such a message apart, and only these make a dead letter: what waited for its turn, or
was handled beside a message that kills its process, is never buried for that.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Protocol

ALONE_SECONDS = 5.0  # that a message waits for callers to have nothing else, and others for it
TOLD_SECONDS = 2.0  # that a caller waits for the broker to know; then a crash counts as one in company
HELD_MAX = 10_000  # deliveries that callers have messages of; the oldest are forgotten  # I15


class HandedOut(Protocol):
    """A delivery."""

    @property
    def in_hand(self) -> int:
        """Return the messages, a bit each, that callers have and have not acknowledged or refused."""

    def tell_in_hand(self, *, is_alone: bool) -> asyncio.Future[Any] | None:
        """Tell the broker whether what callers have of the delivery is all that they have. Return what resolves when it
        has heard; None if it is not asked."""


class InHand:
    """The messages that callers of all consumers with ``max_crashes`` of one client have."""

    def __init__(self) -> None:
        self._held: OrderedDict[HandedOut, None] = OrderedDict()  # in the order in which they were handed out
        self._alone: HandedOut | None = None  # its one message was lost once, and is all that callers have
        self._has_waited = False  # nothing waits any more until callers have nothing
        self._patience_ends: float | None = None  # loop time until which a message waits; None: none does
        self._settle_at = 0  # the size of ``_held`` at which a look at all of it is worth its cost
        self._changed = asyncio.Event()

    def may_hand_out(self, *, was_lost: bool) -> bool:
        """Return whether the next message may go to a caller now, or has to ``wait``.

        Once one has waited for ``ALONE_SECONDS``, callers take several messages before they acknowledge one. Then
        nothing waits until they have none.

        Args:
            was_lost: it was lost with a consumer.
        """
        if was_lost or self._alone is not None:
            self._settle()
        if self._has_waited or not (self._held if was_lost else self._alone):
            self._patience_ends = None
            return True
        now = asyncio.get_running_loop().time()
        if self._patience_ends is None:
            self._patience_ends = now + ALONE_SECONDS
        self._has_waited = now >= self._patience_ends
        return self._has_waited

    def hand_out(self, delivery: HandedOut, *, was_lost: bool) -> asyncio.Future[Any] | None:
        """Note that a caller gets a message, or several of one delivery.

        Returns:
            a future that resolves when the broker knows that this is all that callers have; None if it need not know.
        """
        if len(self._held) >= self._settle_at:
            self._held = OrderedDict.fromkeys(delivery for delivery in self._held if delivery.in_hand)
            self._settle_at = 2 * len(self._held) + 16
        if was_lost or self._alone is not None:
            self._settle()
        if self._alone is not None:
            self._alone.tell_in_hand(is_alone=False)
            self._alone = None
        elif was_lost and not self._held and delivery.in_hand.bit_count() == 1:
            self._alone = delivery
        self._held[delivery] = None
        if len(self._held) > HELD_MAX:
            self._held.popitem(last=False)
        return None if self._alone is None else delivery.tell_in_hand(is_alone=True)

    def changed(self) -> None:
        """Let callers that wait look again: a message was acknowledged or refused."""
        self._changed.set()

    async def wait(self, deadline: float | None) -> bool:
        """Wait until the next message may go to a caller. Return False if ``deadline`` (loop time) passed before."""
        ends = [each for each in (deadline, self._patience_ends) if each is not None]
        self._changed.clear()
        try:
            async with asyncio.timeout_at(min(ends, default=None)):
                await self._changed.wait()
        except TimeoutError:
            return deadline is None or asyncio.get_running_loop().time() < deadline
        return True

    def _settle(self) -> None:
        """Forget what was acknowledged or refused, up to the first delivery that callers still have. Only whether they
        have one matters, and each acknowledgement may ask for it."""
        while self._held and not next(iter(self._held)).in_hand:
            self._held.popitem(last=False)
        if not self._held:
            self._alone, self._has_waited = None, False
