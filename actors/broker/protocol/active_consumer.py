"""ACTIVE_CONSUMER_CHANGE: which consumer of a Failover subscription is active."""

from __future__ import annotations

import asyncio

from heliograph.actors.broker.protocol.connection import PulsarConnection
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand

PROTOCOL_VERSION_MIN = 12  # older clients do not know the command
SILENT_SECONDS_MAX = 1.0  # after which a consumer is told although it has not asked for messages


class ActiveConsumerChanges:
    """Tells the consumers of one connection whether they are active.

    A client that has read the answer to its SUBSCRIBE may need a moment until it looks at other commands for the new
    consumer; the Go client drops those that follow at once. Its first FLOW shows that it does. A notice to a consumer
    waits for that FLOW, or for SILENT_SECONDS_MAX, and only the last of several changes is sent.
    """

    def __init__(self, connection: PulsarConnection) -> None:
        self._connection = connection
        self._silent: dict[int, bool | None] = {}  # consumers without FLOW -> what they are to be told
        self._timers: dict[int, asyncio.TimerHandle] = {}

    def subscribed(self, consumer_id: int) -> None:
        """Note a new consumer of a Failover subscription."""
        self._silent[consumer_id] = None

    def changed(self, consumer_id: int, is_active: bool) -> None:
        """Tell a consumer whether it is active, now or once its client listens."""
        if consumer_id not in self._silent:
            self._send(consumer_id, is_active)
            return
        self._silent[consumer_id] = is_active
        if consumer_id not in self._timers:
            loop = asyncio.get_running_loop()
            self._timers[consumer_id] = loop.call_later(SILENT_SECONDS_MAX, self.listens, consumer_id)

    def listens(self, consumer_id: int) -> None:
        """Tell a consumer what waits for it: it asked for messages, or was silent for long enough."""
        is_active = self.forget(consumer_id)
        if is_active is not None:
            self._send(consumer_id, is_active)

    def forget(self, consumer_id: int) -> bool | None:
        """Forget a consumer. Return its pending notice."""
        timer = self._timers.pop(consumer_id, None)
        if timer is not None:
            timer.cancel()
        return self._silent.pop(consumer_id, None)

    def _send(self, consumer_id: int, is_active: bool) -> None:
        if self._connection.protocol_version >= PROTOCOL_VERSION_MIN:
            change = pb.CommandActiveConsumerChange(consumer_id=consumer_id, is_active=is_active)
            self._connection.send(BaseCommand(type=BaseCommand.ACTIVE_CONSUMER_CHANGE, active_consumer_change=change))
