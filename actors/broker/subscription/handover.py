"""The active consumer of a Failover subscription: the notices of changes, and the wait of a new one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from heliograph.actors.broker.dispatch.dispatcher import ConsumerState, Dispatcher
from heliograph.actors.broker.subscription.consumer import SubscriptionConsumer
from heliograph.actors.broker.subscription.setting import ConsumerSetting


class Handover:
    """From one active consumer to the next, which gets nothing until late acknowledgements of the last have come.

    Args:
        on_resumed: called when the dispatcher may deliver again.
    """

    def __init__(self, setting: ConsumerSetting, on_resumed: Callable[[], None]) -> None:
        self._setting = setting
        self._on_resumed = on_resumed
        self._timer: asyncio.TimerHandle | None = None

    def begin(
        self,
        dispatcher: Dispatcher,
        before: ConsumerState | None,
        consumers: Iterable[SubscriptionConsumer],
        joined: SubscriptionConsumer | None,
    ) -> None:
        """Notify consumers if the active one is not ``before`` any more. Always notify the one that joined."""
        active, loop = dispatcher.active, asyncio.get_running_loop()
        for consumer in consumers:
            if active is not before or consumer is joined:  # not before the answer to a SUBSCRIBE under way
                loop.call_soon(consumer.channel.active_changed, consumer, consumer.state is active)
        delay = self._setting.failover_delay_seconds
        if active is None:
            self._resume(dispatcher)
        elif active is not before and before is not None and delay > 0:
            dispatcher.hold_off()
            self.stop()
            self._timer = loop.call_later(delay, self._resume, dispatcher)

    def stop(self) -> None:
        """Forget the handover under way."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _resume(self, dispatcher: Dispatcher) -> None:
        self.stop()
        if dispatcher.resume():
            self._on_resumed()
