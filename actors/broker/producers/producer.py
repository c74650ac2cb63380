"""A producer of a topic, and its entries that have no outcome yet."""

from __future__ import annotations

import enum
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from typing_extensions import override

from heliograph.actors.broker.limits.rates import RateWindow
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication
from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, TooFewBookiesError
from heliograph.protocol.batch import STOPS_AT_REFUSAL

_NO_TURNS: deque[tuple[int, Callable[[], None]]] = deque(maxlen=0)  # holds nothing ever: most producers need none


class AccessMode(enum.Enum):
    """Pulsar's access modes: which other producers may publish at the same time, and what happens if there are any."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"


class ProducerChannel(Protocol):
    """The connection of a producer's client."""

    @property
    def peer(self) -> str:
        """Return the client's address."""

    @property
    def client_version(self) -> str:
        """Return the version that the client reports."""

    def receipt(self, producer: TopicProducer, sequence_id: int, highest: int, position: Position) -> None:
        """Tell the client that an entry is durable. Called in the order in which the entries came (I2)."""

    def send_refused(self, producer: TopicProducer, sequence_id: int, error: HeliographError) -> None:
        """Tell the client that an entry is not acceptable; it abandons the entry. Called in the order in which the
        entries came."""

    def send_failed(self, producer: TopicProducer, error: HeliographError, sequence_id: int) -> None:
        """Tell the client that an entry was not stored, and hang up, because entries that follow on this connection
        must not be stored before it: the client sends them all again."""

    def settled(self, producer: TopicProducer, size: int) -> None:
        """Release ``size`` bytes of an entry that has its outcome, stored or not."""

    def throttle(self, seconds: float) -> None:
        """Read nothing from the client for so many seconds."""

    def probe(self) -> None:
        """Check that the client still answers, and remove its producers if not."""

    def close_producer(self, producer: TopicProducer) -> None:
        """Tell the client that the broker closed this producer; the client looks the topic up and sends again what has
        no receipt."""

    def became_ready(self, producer: TopicProducer) -> None:
        """Tell a producer that waited that it may send now."""

    def refused(self, producer: TopicProducer, error: HeliographError) -> None:
        """Tell a producer that waited that it will not be admitted."""


class TopicProducer:
    """One producer, made by the connection, named and owned by the topic.

    Args:
        epoch: how often the client has created it again; a higher epoch supersedes a lower one.
        topic_epoch: the epoch that the client has from an earlier exclusive ownership, None when it has none.
        metadata: properties that the client gave its producer.

    Attributes:
        is_ready: False while it waits to become the exclusive owner.
        topic_epoch: of an exclusive owner, its number among those.
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
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.producer_id = producer_id
        self.name = name
        self.epoch = epoch
        self.channel = channel
        self.mode = mode
        self.topic_epoch = topic_epoch
        self.request_id = request_id  # of the PRODUCER command
        self.is_name_generated = not name  # by a broker, now or before a reconnect
        self.is_gone_for_good = False  # it was closed, and no other producer can use its name
        self.last_sequence_id = -1  # the highest that the topic has stored of this name, if that is known
        self.is_ready = True
        self.schema_version = b""  # of the schema that it declared
        self.metadata = metadata or {}
        self.refusal: HeliographError | None = None  # of an entry, which later ones get, too, if the client asks for it
        self.window = RateWindow(time.monotonic(), 2)  # of messages and bytes in
        self.connected_ms = wall_ms()
        self.sent = 0  # entries that came, which numbers them from 1
        self.settled = 0  # entries that have their outcome; 0 <= settled <= sent
        self.is_closed = False
        self.refused_chunks: tuple[str | None, HeliographError | None] = (None, None)  # the last message, and why
        self.messages_in = 0
        self.bytes_in = 0
        self._turns: deque[tuple[int, Callable[[], None]]] = _NO_TURNS  # answers that wait for earlier entries

    def note_refusal(self, error: HeliographError, chunk_uuid: str | None = None) -> None:
        """Note that an entry is refused. The chunks after a refused one are, too: nobody could join what they leave."""
        if chunk_uuid is not None:
            self.refused_chunks = chunk_uuid, error
        if STOPS_AT_REFUSAL in self.metadata:
            self.refusal = error

    @property
    def pending(self) -> int:
        """Return the number of entries without an outcome."""
        return self.sent - self.settled

    def settle(self) -> None:
        """Note the outcome of the oldest entry without one, and give the answers that waited for it."""
        self.settled += 1
        turns = self._turns
        while turns and turns[0][0] == self.settled + 1:
            turns.popleft()[1]()

    def in_turn(self, request: PublishRequest, answer: Callable[[], None]) -> None:
        """Call ``answer``, which settles ``request``, as soon as every earlier entry has its outcome: a client expects
        answers in the order in which it sent."""
        if request.number == self.settled + 1:
            answer()
        else:
            if self._turns is _NO_TURNS:
                self._turns = deque()
            self._turns.append((request.number, answer))


class PublishRequest(Publication):
    """An entry that a producer sent, on its way into the ledger."""

    __slots__ = ("highest", "number", "producer", "sequence_id", "size")

    def __init__(self, producer: TopicProducer, sequence_id: int, highest: int, messages: int, size: int) -> None:
        self.producer = producer
        self.sequence_id = sequence_id
        self.highest = highest
        self.size = size
        producer.sent += 1
        self.number = producer.sent
        producer.messages_in += messages
        producer.bytes_in += size

    @override
    def confirmed(self, position: Position) -> None:
        producer = self.producer
        if not producer.is_closed:
            producer.channel.receipt(producer, self.sequence_id, self.highest, position)
        producer.settle()
        producer.channel.settled(producer, self.size)

    @override
    def failed(self, error: HeliographError) -> None:
        # Else the client needs no answer: its producer is closed with the topic, so it sends the entry again.
        if isinstance(error, TooFewBookiesError):
            self.delayed(error)
        self.producer.settle()
        self.producer.channel.settled(self.producer, self.size)

    @override
    def delayed(self, error: HeliographError) -> None:
        if not self.producer.is_closed:
            self.producer.channel.send_failed(self.producer, error, self.sequence_id)

    def refuse(self, error: HeliographError) -> None:
        """Tell the client, in order, that the entry is not acceptable."""
        self.producer.in_turn(self, lambda: self._refuse(error))

    def _refuse(self, error: HeliographError) -> None:
        if not self.producer.is_closed:
            self.producer.channel.send_refused(self.producer, self.sequence_id, error)
        self.failed(error)
