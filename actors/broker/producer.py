"""One producer of a topic, and the entries that it waits for."""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from actors.broker.position import Position
from heliograph.errors import HeliographError


class AccessMode(enum.Enum):
    """Pulsar's names. Who else may produce at the same time, and what to do when somebody does."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"


class ProducerChannel(Protocol):
    """How a producer reaches its client."""

    @property
    def peer(self) -> str:
        """The client's address."""

    @property
    def client_version(self) -> str:
        """What the client calls itself."""

    def receipt(self, producer: Producer, sequence_id: int, highest: int, position: Position) -> None:
        """An entry is durable. Called in the order in which the entries came (I2)."""

    def send_refused(self, producer: Producer, sequence_id: int, error: HeliographError) -> None:
        """An entry is not acceptable; the client gives it up. Called in the order in which the entries came."""

    def settled(self, producer: Producer, size: int) -> None:
        """``size`` bytes of an entry are off our hands, stored or not."""

    def throttle(self, seconds: float) -> None:
        """Read nothing more from the client for so long."""

    def probe(self) -> None:
        """Find out whether the client is still there; if not, its producers go."""

    def close_producer(self, producer: Producer) -> None:
        """The broker ends this producer; the client looks the topic up, and sends again what has no receipt."""

    def became_ready(self, producer: Producer) -> None:
        """A producer that waited for its turn may send now."""

    def refused(self, producer: Producer, error: HeliographError) -> None:
        """A producer that waited will never have its turn."""


class Producer:
    """Made by the connection, named and owned by the topic.

    Args:
        epoch: how often the client made it anew; a higher one supersedes a lower one.
        topic_epoch: what the client knows of the topic's exclusive owners, None when it was none of them.

    Attributes:
        is_ready: False while it waits for its turn.
        topic_epoch: once it is an exclusive owner, its number among those.
    """

    def __init__(
        self,
        producer_id: int,
        name: str,
        epoch: int,
        channel: ProducerChannel,
        mode: AccessMode = AccessMode.SHARED,
        topic_epoch: int | None = None,
        request_id: int = 0,
    ) -> None:
        self.producer_id = producer_id
        self.name = name
        self.epoch = epoch
        self.channel = channel
        self.mode = mode
        self.topic_epoch = topic_epoch
        self.request_id = request_id  # of the PRODUCER command
        self.is_name_generated = not name  # by a broker, now or before a reconnect
        self.is_gone_for_good = False  # it was closed, and nobody else can come back under its name
        self.last_sequence_id = -1  # the highest that the topic holds of this name, when it is known
        self.is_ready = True
        self.schema_version = b""  # of the schema that it came with
        self.connected_ms = time.time_ns() // 1_000_000
        self.sent = 0  # entries that came, which number them from 1
        self.settled = 0  # entries with a verdict
        self.is_closed = False
        self.messages_in = 0
        self.bytes_in = 0
        self._turns: deque[tuple[int, Callable[[], None]]] = deque()  # verdicts that wait for those of earlier entries

    @property
    def pending(self) -> int:
        """Entries without a verdict."""
        return self.sent - self.settled

    def settle(self) -> None:
        """The entry whose turn it was has its verdict."""
        self.settled += 1
        while self._turns and self._turns[0][0] == self.settled + 1:
            _, answer = self._turns.popleft()
            answer()

    def in_turn(self, send: Send, answer: Callable[[], None]) -> None:
        """Call ``answer``, which settles ``send``, as soon as every earlier entry has its verdict: clients take answers
        in the order in which they sent, and no other."""
        if send.number == self.settled + 1:
            answer()
        else:
            self._turns.append((send.number, answer))


class Send:
    """An entry on its way into the ledger; a Publication."""

    __slots__ = ("highest", "number", "producer", "sequence_id", "size")

    def __init__(self, producer: Producer, sequence_id: int, highest: int, messages: int, size: int) -> None:
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest = highest
        self.size = size
        producer.sent += 1
        self.number = producer.sent
        producer.messages_in += messages
        producer.bytes_in += size

    def confirmed(self, position: Position) -> None:
        """See Publication."""
        producer = self.producer
        if not producer.is_closed:
            producer.channel.receipt(producer, self.sequence_id, self.highest, position)
        producer.settle()
        producer.channel.settled(producer, self.size)

    def failed(self, error: HeliographError) -> None:
        """See Publication. No word to the client: its producer is closed with the topic, so that it sends again."""
        self.producer.settle()
        self.producer.channel.settled(self.producer, self.size)

    def refuse(self, error: HeliographError) -> None:
        """The entry is not acceptable; its client is told in its turn."""
        self.producer.in_turn(self, lambda: self._refuse(error))

    def _refuse(self, error: HeliographError) -> None:
        if not self.producer.is_closed:
            self.producer.channel.send_refused(self.producer, self.sequence_id, error)
        self.failed(error)
