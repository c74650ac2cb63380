"""Faults of the connections of our own client, besides those of topics."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from random import Random
from typing import TYPE_CHECKING, cast

from tests.simulation.faults.fault import Fault, fault
from tests.simulation.faults.nemesis import Nemesis
from tests.simulation.topic.faults import TOPIC_KINDS, scene_of

if TYPE_CHECKING:
    from tests.simulation.clients.programs import ConsumingProgram, PublishingProgram
    from tests.simulation.clients.sites import Application

CLIENT_KINDS: list[Fault] = list(TOPIC_KINDS)


def _publishers(nemesis: Nemesis) -> Sequence[PublishingProgram]:
    return cast("Sequence[PublishingProgram]", scene_of(nemesis).producers)


def _consumers(nemesis: Nemesis) -> Sequence[ConsumingProgram]:
    return cast("Sequence[ConsumingProgram]", scene_of(nemesis).consumers)


def _cut(application: Application) -> None:
    for socket in application.sockets:
        socket.link.cut()


@fault("handles closed by their broker", 8, CLIENT_KINDS)
def close_handles(nemesis: Nemesis, random: Random) -> bool:
    """Let the newest broker close producers or consumers, as at the end of a move. Their connections stay open."""
    broker = nemesis.brokers[-1]
    if not broker.is_serving or broker.is_lost:
        return False
    kinds = random.choice(("producers", "consumers", "both"))
    with broker.loop.running():
        if kinds != "consumers":
            broker.topic.admission.producers._close_connected()
        if kinds != "producers":
            for subscription in broker.topic.subscriptions.values():
                subscription.disconnect()
    return True


@fault("connection cut at an answer", 10, CLIENT_KINDS)
def cut_at_an_answer(nemesis: Nemesis, random: Random) -> bool:
    """Break a connection with the next bytes that come to a client: just before, or just after them."""
    application = random.choice([*_publishers(nemesis), *_consumers(nemesis)])
    sockets = [socket for socket in application.sockets if socket.is_open]
    for socket in sockets:
        socket.near.breaks = random.choice(("before", "after"))
    return bool(sockets)


@fault("seek while the connection breaks", 4, CLIENT_KINDS)
def seek_and_cut(nemesis: Nemesis, random: Random) -> bool:
    """Let a consumer seek, in runs in which consumers do, shortly before or after its connection breaks."""
    consumer = random.choice(_consumers(nemesis))
    if not nemesis.profile.seeks:
        return False
    at = random.randrange(100)
    nemesis.later(at, lambda: consumer.seek_back())
    nemesis.later(max(0, at + random.randrange(-50, 50)), partial(_cut, consumer))
    return True


@fault("flush or close while the connection breaks", 8, CLIENT_KINDS)
def finish_and_cut(nemesis: Nemesis, random: Random) -> bool:
    """Let a producer be flushed or closed with calls under way, shortly before or after its connection breaks."""
    producer = random.choice(_publishers(nemesis))
    finish = random.choice((producer.flush, producer.close))
    at = random.randrange(100)
    nemesis.later(at, finish)
    nemesis.later(max(0, at + random.randrange(-100, 50)), partial(_cut, producer))
    return True
