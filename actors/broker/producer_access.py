"""Who may produce to a topic at the same time (pure).

A topic has any number of Shared producers, or one exclusive owner. Each exclusive owner gets the next *topic epoch*,
which is stored before the owner may send; a former owner that comes back with an older one is fenced for good.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from actors.broker.producer import AccessMode, Producer
from heliograph.errors import ProducerBusyError, ProducerFencedError

WAITING_MAX = 1_000  # producers that wait for their turn at one topic


class Admission(enum.Enum):
    """ENTER: next to others. CLAIM: as the exclusive owner. FENCE: as the exclusive owner, everybody else goes. WAIT:
    until everybody before left."""

    ENTER = "enter"
    CLAIM = "claim"
    FENCE = "fence"
    WAIT = "wait"


class ProducerAccess:
    """The exclusive owner of one topic and those who wait to be it.

    Attributes:
        owner: the exclusive owner, from the moment when its claim begins.
        epoch: of the last exclusive owner, as stored; -1 when there never was one.
    """

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.owner: Producer | None = None
        self.waiting: list[Producer] = []

    def admission(self, producer: Producer, connected: Collection[Producer]) -> Admission:
        """What to do with a producer.

        Raises:
            ProducerBusyError: somebody else owns the topic, or too many wait for it; later it may be different.
            ProducerFencedError: the producer can never have the topic as it wants it.
        """
        if producer.mode is AccessMode.SHARED:
            if self.owner is not None or self.waiting:
                raise ProducerBusyError("the topic has an exclusive producer, or one that waits to be it")
            return Admission.ENTER
        if producer.topic_epoch is not None and (producer.topic_epoch < self.epoch or self.owner is not None):
            # An owner, at this point, is another one, though its epoch may not be stored yet.
            raise ProducerFencedError("another producer owned the topic exclusively since")
        is_free = self.owner is None and not connected
        if is_free and (not self.waiting or producer.topic_epoch is not None):  # the last owner goes before a line
            return Admission.CLAIM
        if producer.mode is AccessMode.EXCLUSIVE:
            raise ProducerFencedError("the topic has other producers")
        if producer.mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            return Admission.FENCE
        if len(self.waiting) >= WAITING_MAX:
            raise ProducerBusyError("too many producers wait for the topic", limit=f"{WAITING_MAX} producers")
        return Admission.WAIT

    def next_epoch(self, producer: Producer) -> int:
        """The epoch of a claim: a former owner that comes back goes on with its own."""
        return self.epoch + 1 if producer.topic_epoch is None else producer.topic_epoch

    def returns(self, producer: Producer) -> bool:
        """Whether this is the owner, on a new connection: nobody else knows its epoch."""
        owner = self.owner
        if owner is None or producer.topic_epoch is None:
            return False
        theirs, ours = (producer.name, producer.mode, producer.topic_epoch), (owner.name, owner.mode, owner.topic_epoch)
        return theirs == ours

    def next_in_line(self, connected: Collection[Producer]) -> Producer | None:
        """The producer whose turn it is, taken out of the line."""
        if self.owner is not None or connected or not self.waiting:
            return None
        return self.waiting.pop(0)
