"""Which subscriptions of a topic get an entry as soon as it is confirmed, and which in the next turn."""

from __future__ import annotations

from collections.abc import Callable, Collection

from heliograph.actors.broker.subscription.subscription import Subscription
from heliograph.base.completion import OncePerTurn


class EntryDelivery:
    """Delivers the entries of one topic that were confirmed."""

    def __init__(self, subscriptions: Callable[[], Collection[Subscription]]) -> None:
        """
        Args:
            subscriptions: returns those of the topic.
        """
        self._subscriptions = subscriptions
        self._pump_due = OncePerTurn(self._pump)

    def confirmed(self, is_last: bool) -> None:
        """Deliver an entry. One that travels alone goes to the only subscription at once: so it leaves with its
        receipt, and not after the producer's client, which the receipt wakes. Others go in the next turn.

        Args:
            is_last: no other entry of the topic is pending.
        """
        if is_last and len(self._subscriptions()) == 1:
            self._pump()
        else:
            self._pump_due.due()

    def _pump(self) -> None:
        for subscription in self._subscriptions():
            subscription.pump()
