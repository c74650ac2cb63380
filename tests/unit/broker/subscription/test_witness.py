"""The lease of a topic that its bookies witness, and the hold of its next owner (I16)."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from unittest.mock import Mock

from heliograph.actors.broker.silence_watch import SilenceWatch
from heliograph.actors.broker.subscription.type import SubscriptionType
from heliograph.actors.broker.subscription.witness import HOLD_SECONDS, LEASE_SECONDS, PROBE_SECONDS, Witness


class World:
    def __init__(self) -> None:
        self.time = 1_000.0
        self.is_in_doubt = False
        self.witness = Witness(lambda: self.is_in_doubt, lambda: self.time)


def test_a_topic_is_held_by_the_word_of_the_store_or_of_the_bookies() -> None:
    world = World()
    assert world.witness.holds()
    world.is_in_doubt = True
    world.time += LEASE_SECONDS / 2
    assert world.witness.holds()  # by the store's last word
    world.time += LEASE_SECONDS / 2
    assert not world.witness.holds()
    asked_at = world.witness.now()
    world.time += PROBE_SECONDS
    world.witness.confirm(asked_at)
    world.witness.confirm(asked_at - 1)  # an answer that came out of order
    assert world.witness.holds()
    world.time = asked_at + LEASE_SECONDS  # from the question on, not from the answer
    assert not world.witness.holds()
    world.is_in_doubt = False
    assert world.witness.holds()


def test_a_lease_is_over_before_the_next_owner_delivers() -> None:
    old, new = World(), World()
    old.is_in_doubt = True
    old.witness.confirm(old.witness.now())  # just before the fence
    new.witness.fenced(new.witness.now())
    for _ in range(round(2 * HOLD_SECONDS * 1_000)):
        assert not (old.witness.holds() and new.witness.holds())
        old.time = new.time = new.time + 0.001
    assert new.witness.holds()


def test_keys_are_taken_back_at_the_end_of_a_lease_and_not_before_the_first_question_had_its_time() -> None:  # I16
    world = World()
    assert not world.witness.is_over()
    world.time += 60  # nothing was delivered, so the witness was not asked
    world.is_in_doubt = True
    assert not world.witness.is_over()
    world.time += LEASE_SECONDS
    assert world.witness.is_over()
    world.witness.confirm(world.time)
    assert not world.witness.is_over()
    world.time += LEASE_SECONDS
    assert world.witness.is_over()
    world.is_in_doubt = False
    assert not world.witness.is_over()


class SilentWriter:
    """A writer whose bookies do not answer."""

    async def probe(self, on_fenced: object) -> bool:
        await asyncio.Event().wait()
        return True


async def test_keys_are_taken_back_while_the_bookies_are_silent() -> None:  # I16
    world, ended = World(), list[str]()
    world.is_in_doubt = True
    subscriptions = {
        kind.name: SimpleNamespace(kind=kind, disconnect=partial(ended.append, kind.name)) for kind in SubscriptionType
    }
    topic = Mock(is_open=True, has_consumers=True, subscriptions=subscriptions)
    topic.setting.witness, topic.ledger.writer = world.witness, SilentWriter()
    watch = SilenceWatch(Mock(), Mock(), Mock(loaded=[topic]))
    begun = world.time
    while not ended:
        assert world.time < begun + HOLD_SECONDS, "the next owner delivers from then on"
        watch.look()
        await asyncio.sleep(0)
        world.time += PROBE_SECONDS
    await watch.stop()
    assert ended == ["KEY_SHARED"]
