"""Faults of a topic's runs: those of ledgers, less what only the topic's owner may do, and some of clients' own."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation import disasters, events, faults
from tests.simulation.disasters import when_changed
from tests.simulation.fault import KINDS, Fault, fault
from tests.simulation.nemesis import Nemesis

if TYPE_CHECKING:
    from tests.simulation.topic.scene import Scene

OWNERS_OWN = {"old ledgers deleted", "ledger deleted behind its writer"}  # trimming is the owner's, and in its record
KINDS_FROM = (faults, events, disasters)
TOPIC_KINDS: list[Fault] = [kind for kind in KINDS if kind.name not in OWNERS_OWN]


def scene_of(nemesis: Nemesis) -> Scene:
    """Where the run's clients are."""
    found: Any = nemesis.scene  # type: ignore[attr-defined]
    scene: Scene = found
    return scene


@fault("consumer left", 8, TOPIC_KINDS)
def consumer_left(nemesis: Nemesis, random: Random) -> bool:
    """A consumer disconnects with what it holds, and comes back soon."""
    random.choice(scene_of(nemesis).consumers).leave(random.choice((10, 300, 2_000)))
    return True


@fault("connections of a broker broken", 3, TOPIC_KINDS)
def break_connections(nemesis: Nemesis, random: Random) -> bool:
    """Every client of the newest broker has to connect again."""
    broken = False
    scene = scene_of(nemesis)
    for client in scene.clients:
        if client.link is not None and client.link.broker is nemesis.brokers[-1]:
            client.link.cut()
            broken = True
    return broken


@fault("broker lost its session", 3, TOPIC_KINDS)
def lose_session(nemesis: Nemesis, random: Random) -> bool:
    """The newest broker is told that its session is over, in the middle of its work; another takes over."""
    broker = nemesis.brokers[-1]
    if not broker.is_up or broker.is_lost or not nemesis.can_take_over():
        return False
    broker.session.lose()
    nemesis.take_over()
    return True


@fault("session lost between a write and its answer", 3, TOPIC_KINDS)
def lose_session_at_write(nemesis: Nemesis, random: Random) -> bool:
    """The newest broker changes a record, is told that its session is over, and never that the change was made."""
    broker = nemesis.brokers[-1]
    if not broker.is_up or broker.is_lost or not nemesis.can_take_over():
        return False

    def lose() -> None:
        nemesis.cut("store", broker.name, 2_000)
        if broker.is_up and not broker.is_lost:
            nemesis.world.count("session ended right after a write")
            broker.session.lose()
            nemesis.take_over()

    when_changed(nemesis, lambda change: change.author.process == broker.name, lose)
    return True


@fault("takeover while acknowledgements are being stored", 6, TOPIC_KINDS)
def take_over_among_acks(nemesis: Nemesis, random: Random) -> bool:
    """The newest broker hears late from the bookies and is then replaced, or dies, with acknowledgements under way."""
    if not nemesis.can_take_over():
        return False
    old = nemesis.brokers[-1]
    for bookie in nemesis.bookies:
        nemesis.slow(bookie.name, old.name, random.choice((50, 300)), 1_500)
    delay = random.randrange(20, 400)
    if random.random() < 0.5:
        nemesis.later(delay, old.crash)
    nemesis.later(delay + random.randrange(60), nemesis.take_over)
    return True


@fault("producers come back to a slow broker", 5, TOPIC_KINDS)
def come_back(nemesis: Nemesis, random: Random) -> bool:
    """Adds are late at the bookies; producers connect again and repeat what is under way; then the broker is gone."""
    if not nemesis.can_take_over():
        return False
    old = nemesis.brokers[-1]
    for bookie in nemesis.bookies:
        nemesis.slow(old.name, bookie.name, 1_800, 2_000)
    scene = scene_of(nemesis)

    def cut() -> None:
        for producer in scene.producers:
            if producer.link is not None:
                producer.link.cut()

    nemesis.later(random.randrange(100), cut)
    delay = random.randrange(600, 1_500)
    if random.random() < 0.5:
        nemesis.later(delay, old.crash)
    nemesis.later(delay + random.randrange(60), nemesis.take_over)
    return True


@fault("takeovers at different speeds", 4, TOPIC_KINDS)
def race(nemesis: Nemesis, random: Random) -> bool:
    """Two brokers take the topic over; the first one hears so late from the store that the second one overtakes it.

    Consumers are sent to the slow one.
    """
    if not nemesis.take_over():
        return False
    slow = nemesis.brokers[-1]
    for source, target in ((slow.name, "store"), ("store", slow.name)):
        nemesis.later(random.randrange(400), partial(nemesis.slow, source, target, 700, 2_500))
    nemesis.later(random.randrange(100, 900), nemesis.take_over)
    scene = scene_of(nemesis)

    def mislead() -> None:
        scene.mislead(slow, 2_000)
        for consumer in scene.consumers:
            if random.random() < 0.5:
                consumer.leave(10)

    nemesis.later(random.randrange(600, 1_800), mislead)
    return True
