"""Consumers of a terminated topic are told when they have all of it."""

from __future__ import annotations

import asyncio

from heliograph.actors.broker.subscription.subscription import Subscription


def announce_termination(subscription: Subscription) -> None:
    """Tell each consumer once, when its subscription has acknowledged everything; for a non-durable subscription, as
    that of a reader, when everything was delivered."""
    end = subscription.chain.end
    dispatcher = subscription.dispatcher
    is_delivered = dispatcher.read_index >= end and not dispatcher.replay_count
    if subscription.backlog and (subscription.is_durable or not is_delivered):
        return
    loop = asyncio.get_running_loop()
    for consumer in subscription.consumers.values():
        if not consumer.is_termination_announced:
            consumer.is_termination_announced = True
            loop.call_soon(consumer.channel.reached_end, consumer)  # not before the answer to a SUBSCRIBE under way
