"""Access modes: which producers may publish to a topic at the same time (pure).

A topic has any number of Shared producers, or one exclusive owner. Each exclusive owner gets the next *topic epoch*,
which is stored before the owner may send. A former owner that comes back with an older epoch is fenced for good.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from heliograph.actors.broker.producers.producer import AccessMode, TopicProducer
from heliograph.base.errors import ProducerBusyError, ProducerFencedError

WAITING_MAX = 1_000  # producers that wait for their turn at one topic


class Admission(enum.Enum):
    """ENTER: connect next to others. CLAIM: become the exclusive owner. FENCE: become the exclusive owner and
    disconnect all others. WAIT: wait until all others have left."""

    ENTER = "enter"
    CLAIM = "claim"
    FENCE = "fence"
    WAIT = "wait"


class ProducerAccess:
    """The exclusive owner of one topic and the producers that wait to become it.

    Attributes:
        owner: the exclusive owner, from the moment when its claim begins.
        epoch: of the last exclusive owner, as stored; -1 when there was none.
        waiting: in the order of their arrival.
    """

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.owner: TopicProducer | None = None
        self.waiting: list[TopicProducer] = []

    def admission(self, producer: TopicProducer, connected: Collection[TopicProducer]) -> Admission:
        """Decide on a producer.

        Raises:
            ProducerBusyError: another producer owns the topic, or too many wait for it; try again later.
            ProducerFencedError: the producer can never have the topic with this access mode and epoch.
        """
        if producer.mode is AccessMode.SHARED:
            if self.owner is not None or self.waiting:
                raise ProducerBusyError("the topic has an exclusive producer, or one waits to become it")
            return Admission.ENTER
        if producer.topic_epoch is not None and (producer.topic_epoch < self.epoch or self.owner is not None):
            # The owner, if there is one, is another producer, though its epoch may not be stored yet.
            raise ProducerFencedError("another producer has owned the topic exclusively since")
        is_free = self.owner is None and not connected
        if is_free and (not self.waiting or producer.topic_epoch is not None):  # the last owner goes first
            return Admission.CLAIM
        if producer.mode is AccessMode.EXCLUSIVE:
            raise ProducerFencedError("the topic has other producers")
        if producer.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            return Admission.FENCE
        if len(self.waiting) >= WAITING_MAX:
            raise ProducerBusyError("too many producers wait for the topic", limit=f"{WAITING_MAX} producers")
        return Admission.WAIT

    def next_epoch(self, producer: TopicProducer) -> int:
        """Return the epoch of a claim. A former owner that comes back keeps its own."""
        return self.epoch + 1 if producer.topic_epoch is None else producer.topic_epoch

    def is_returning_owner(self, producer: TopicProducer) -> bool:
        """Return whether this is the owner on a new connection, which its epoch proves: no other client knows it."""
        owner = self.owner
        if owner is None or producer.topic_epoch is None:
            return False
        theirs, ours = (producer.name, producer.mode, producer.topic_epoch), (owner.name, owner.mode, owner.topic_epoch)
        return theirs == ours

    def next_in_line(self, connected: Collection[TopicProducer]) -> TopicProducer | None:
        """Remove and return the producer that may claim the topic next, None while it has to wait."""
        if self.owner is not None or connected or not self.waiting:
            return None
        return self.waiting.pop(0)
