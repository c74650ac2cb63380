"""Faults in runs of topics: those of ledgers without those that only an owner may cause, and faults of clients."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation import events
from tests.simulation.faults import disasters, faults
from tests.simulation.faults.disasters import when_changed
from tests.simulation.faults.fault import KINDS, Fault, fault
from tests.simulation.faults.nemesis import Nemesis

if TYPE_CHECKING:
    from tests.simulation.topic.broker import TopicBroker
    from tests.simulation.topic.scene import Scene

OWNERS_OWN = {"old ledgers deleted", "ledger deleted behind its writer"}  # only the owner trims
CUT_OFF_MS = 4_000  # longer than a new owner holds keys back
KINDS_FROM = (faults, events, disasters)
TOPIC_KINDS: list[Fault] = [kind for kind in KINDS if kind.name not in OWNERS_OWN]


def scene_of(nemesis: Nemesis) -> Scene:
    """Return the scene with the run's clients."""
    found: Any = nemesis.scene  # type: ignore[attr-defined]
    scene: Scene = found
    return scene


@fault("consumer left", 8, TOPIC_KINDS)
def consumer_left(nemesis: Nemesis, random: Random) -> bool:
    """Disconnect a consumer with what it holds. It comes back soon."""
    random.choice(scene_of(nemesis).consumers).leave(random.choice((10, 300, 2_000)))
    return True


@fault("connections of a broker broken", 3, TOPIC_KINDS)
def break_connections(nemesis: Nemesis, random: Random) -> bool:
    """Break the connections of all clients of the newest broker."""
    broken = False
    scene = scene_of(nemesis)
    for client in scene.clients:
        if client.link is not None and client.link.broker is nemesis.brokers[-1]:
            client.link.cut()
            broken = True
    return broken


@fault("broker lost its session", 3, TOPIC_KINDS)
def lose_session(nemesis: Nemesis, random: Random) -> bool:
    """End the session of the newest broker during its work, and let another one take over."""
    broker = nemesis.brokers[-1]
    if not broker.is_up or broker.is_lost or not nemesis.can_take_over():
        return False
    broker.session.lose()
    nemesis.take_over()
    return True


@fault("all sessions lost at once", 3, TOPIC_KINDS)
def lose_all_sessions(nemesis: Nemesis, random: Random) -> bool:
    """End the sessions of all brokers and bookies in one moment, as when etcd comes back without its leases.

    Bookies serve on and are registered again one by one. Two brokers may take the topic over at once.
    """
    if not nemesis.can_take_over():
        return False
    world = nemesis.world
    for bookie in nemesis.bookies:
        bookie.unregistered_until = world.now + random.choice((50, 500, 1_500))
    for broker in nemesis.brokers:
        if broker.is_up and not broker.is_lost:
            broker.session.lose()
    for _ in range(random.choice((1, 1, 2))):
        nemesis.later(random.randrange(1_000), nemesis.take_over)
    return True


@fault("session lost between a write and its answer", 3, TOPIC_KINDS)
def lose_session_at_write(nemesis: Nemesis, random: Random) -> bool:
    """End the session of the newest broker at a change of a record, whose answer it never gets."""
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
    """Delay the bookies' answers to the newest broker, then replace or kill it with acknowledgements under way."""
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
    """Delay adds to bookies, make producers connect again and repeat them, then replace the broker."""
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
    """Let two brokers take the topic over, the first one with a store so slow that the second one overtakes it.

    Lookups of consumers lead to the slow one.
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


def cut_off_among_holders(nemesis: Nemesis, random: Random) -> bool:
    """Cut the newest broker from the store and all bookies, and let another one take over.

    Most consumers of keys stay with the old one and acknowledge nothing; the others go to the new one (I16). In the
    end the new one may be killed, and the old one takes the topic back.
    """
    old = nemesis.brokers[-1]
    holders = [one for one in scene_of(nemesis).consumers if one.subscription == "keys" and one.is_at(old)]
    if not old.is_serving or old.is_lost or not holders or not nemesis.can_take_over():
        return False
    staying = set(random.sample(holders, max(1, len(holders) - 1)))
    for one in staying:
        one.busy_until = nemesis.world.now + CUT_OFF_MS
    old.go_silent()
    for bookie in nemesis.bookies:
        nemesis.cut(old.name, bookie.name, CUT_OFF_MS)
        nemesis.cut(bookie.name, old.name, CUT_OFF_MS)

    def take_over() -> None:
        if nemesis.take_over():
            for one in scene_of(nemesis).consumers:
                if one not in staying:
                    one.leave(10)

    nemesis.later(random.choice((10, 300)), take_over)
    is_taken_back = random.random() < 0.5

    def resume() -> None:
        if is_taken_back and old is not nemesis.brokers[-1] and not nemesis.is_over:
            _end_for(nemesis, nemesis.brokers[-1], old)
            nemesis.later(2_000, nemesis.take_over)  # it may have found that it lost the topic
        else:
            old.session.resume()
            if old is nemesis.brokers[-1]:
                old.reclaim()

    nemesis.world.after(CUT_OFF_MS, resume)
    return True


def _end_for(nemesis: Nemesis, newest: TopicBroker, first: TopicBroker) -> None:
    """End the newest broker, and let an earlier one, to which the store was silent, take the topic back."""
    newest.crash()
    first.session.resume()
    if newest is not nemesis.brokers[-1] or not first.is_up or nemesis.is_over:
        return
    nemesis.brokers.remove(first)  # lookups lead to the newest one
    nemesis.brokers.append(first)
    first.reclaim()


@fault("store silent to a broker", 5, TOPIC_KINDS)
def silence(nemesis: Nemesis, random: Random) -> bool:
    """Let the store answer the newest broker nothing for a while, long or short. Its session stands.

    Sometimes the bookies are silent too, and another broker takes over.
    """
    if random.random() < 0.8 and cut_off_among_holders(nemesis, random):
        nemesis.world.count("owner cut off while consumers hold keys")
        return True
    broker = nemesis.brokers[-1]
    if not broker.is_up or broker.is_lost:
        return False
    broker.go_silent()

    def resume() -> None:
        broker.session.resume()
        if broker is nemesis.brokers[-1]:
            broker.reclaim()

    nemesis.world.after(random.choice((100, 900, 3_000)), resume)
    return True


@fault("topic taken back after another broker had it", 6, TOPIC_KINDS)
def take_back(nemesis: Nemesis, random: Random) -> bool:
    """Silence the newest broker, let another one own the topic for a while and end, and let the first take it back."""
    first = nemesis.brokers[-1]
    if not first.is_serving or first.is_lost or not nemesis.can_take_over():
        return False
    first.go_silent()
    nemesis.take_over()
    second = nemesis.brokers[-1]

    def end() -> None:
        _end_for(nemesis, second, first)
        nemesis.later(random.choice((600, 2_000)), nemesis.take_over)  # it may have found that it lost the topic

    nemesis.world.after(random.choice((50, 400, 2_500)), end)
    return True
