"""The lease of a topic that its bookies witness, and the hold of its next owner (I16)."""

from __future__ import annotations

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
