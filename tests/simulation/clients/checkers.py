"""Checks of what users of our own client were told: outcomes of calls, order, acknowledgements, permits.

The checkers of the topic go on, told by the broker's end of each connection.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from typing_extensions import override

from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.base.errors import HeliographError
from heliograph.protocol.entry import iterate_batch, split
from heliograph.protocol.message_id import MessageId
from tests.simulation.checkers.judge import CALLS, LIVENESS
from tests.simulation.topic.checkers import TopicCheckers
from tests.simulation.topic.history import Ack, Acked

if TYPE_CHECKING:
    from tests.simulation.topic.broker import TopicBroker

QUEUES = {"keys": 6, "shared": 4, "failover": 3, "exclusive": 1}  # permits of the consumers of each subscription
EXPIRY_MS = 20_000  # of messages in chunks that are not complete
SEPARATOR = b";"


class Place(NamedTuple):
    """Where a message is stored."""

    position: Position
    batch_index: int


class Taken(NamedTuple):
    """A message as an application received it."""

    producer: str
    number: int
    place: Place
    chunks: tuple[Position, ...]  # the earlier ones of the message
    batch_size: int


class ClientCheckers(TopicCheckers):
    """The calls of applications, and their outcomes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.calls: defaultdict[str, dict[int, MessageId | HeliographError | None]] = defaultdict(dict)
        self.abandoned: set[tuple[str, int]] = set()  # calls of applications that were killed
        self.passed: defaultdict[str, Acked] = defaultdict(Acked)  # by subscription: what applications acknowledge
        self._cumulative: set[tuple[str, Ack]] = set()
        self._order: dict[tuple[str, int], tuple[int, str]] = {}  # by message: the first one of its call, and its key
        self._given: dict[Place, tuple[str, int]] = {}  # ids that calls returned
        self._numbers: defaultdict[str, dict[tuple[str, int, bytes], int]] = defaultdict(dict)
        self._repeatable: set[tuple[str, int]] = set()  # chunks but the last ones: a message may begin again
        self._stored: set[tuple[str, int]] = set()
        self._messages: dict[Position, int] = {}
        self._uuids: dict[Position, str] = {}  # of chunks
        self._chunks: dict[Position, int] = {}  # without the last ones -> when each was delivered first
        self._certain: defaultdict[str, Acked] = defaultdict(Acked)  # by subscription: what brokers confirmed
        self._received: defaultdict[str, set[tuple[str, int]]] = defaultdict(set)

    # -- entries

    def number_of(self, section: bytes) -> int:
        """Return the number of an entry among those of its producer, in the order in which they came first."""
        metadata, payload = split(section)
        known = self._numbers[metadata.producer_name]
        number = known.setdefault((metadata.uuid, metadata.chunk_id, bytes(payload)), len(known) + 1)
        if metadata.chunk_id < metadata.num_chunks_from_msg - 1:
            self._repeatable.add((metadata.producer_name, number))
        return number

    @override
    def name_of(self, section: bytes) -> str:
        return f"{split(section)[0].producer_name}:{self.number_of(section)}"

    @override
    def may_follow(self, producer: str, number: int, last: int) -> bool:
        is_known = (producer, number) in self._stored
        self._stored.add((producer, number))
        may_repeat = not self.is_deduplicated or (producer, number) in self._repeatable
        return number > last or (is_known and may_repeat)

    # -- producers

    def on_call(self, producer: str, numbers: Sequence[int], keys: Sequence[str]) -> None:
        """Note that an application sends messages by one call."""
        for number, key in zip(numbers, keys, strict=True):
            self.calls[producer][number] = None
            self._order[producer, number] = numbers[0], key

    def on_outcome(self, producer: str, number: int, outcome: MessageId | HeliographError) -> None:
        """Check what a call returned or raised."""
        require, name = self.judge.require, f"{producer}:{number}"
        require(self.calls[producer][number] is None, CALLS, f"{name} has two outcomes")
        self.calls[producer][number] = outcome
        if isinstance(outcome, HeliographError):
            return
        if outcome.ledger_id < 0:
            require(self.is_deduplicated, CALLS, f"{name} was stored before, and nobody looks for that")
            return
        position = Position(outcome.ledger_id, outcome.entry_id)
        place = Place(position, outcome.batch_index)
        told = f"{name} is at {position.ledger_id}:{position.entry_id}:{outcome.batch_index}"
        require(place not in self._given, CALLS, f"{told}, as {self._given.get(place)} is")
        require(position in self.receipts, CALLS, f"{told}, which no broker has said")
        self._given[place] = producer, number

    def check_settled(self, producer: str, numbers: Collection[int], what: str) -> None:
        """Check that calls have their outcomes."""
        waiting = [number for number in numbers if self.calls[producer][number] is None]
        self.judge.require(not waiting, CALLS, f"{what} of {producer} returned before {waiting[:3]} had outcomes")

    # -- consumers

    @override
    def on_push(
        self,
        broker: TopicBroker,
        subscription: str,
        consumer: int,
        position: Position,
        entry: TopicEntry,
        count: int,
        bits: int | None,
        crashes: tuple[int, int] = (0, 0),
    ) -> None:
        super().on_push(broker, subscription, consumer, position, entry, count, bits)
        self._messages[position] = entry.messages
        if entry.chunk_uuid is not None:
            self._uuids[position] = entry.chunk_uuid
        if entry.chunk_uuid is not None and not entry.is_last_chunk:
            self._chunks.setdefault(position, self.store.world.now)

    @override
    def on_ack_confirmed(self, broker: TopicBroker, subscription: str, ack: Ack, number: int) -> None:
        super().on_ack_confirmed(broker, subscription, ack, number)
        self._certain[subscription].add(ack)

    def chunks_with(self, position: Position) -> list[Position]:
        """Return the entries that a consumer gives back with one: all chunks of its message."""
        uuid = self._uuids.get(position)
        return [position] if uuid is None else [at for at, one in self._uuids.items() if one == uuid]

    def on_permits(self, consumer: str, subscription: str, permits: int) -> None:
        """Check the permits of a consumer at a broker."""
        most = QUEUES[subscription]
        self.judge.require(permits <= most, "I15", f"{consumer} grants a broker {permits} permits of {most}")

    def on_received(self, consumer: str, subscription: str, last: Place | None, taken: Taken) -> None:
        """Check a message that an application received.

        Args:
            last: the message before, if this one follows it in the order of the topic.
        """
        position = taken.place.position
        name = f"{consumer} receives {taken.producer}:{taken.number} at {position.ledger_id}:{position.entry_id}"
        self.store.world.count("message received")
        self.store.world.note(name)
        known = taken.number in self.calls[taken.producer] or (taken.producer, taken.number) in self.abandoned
        self.judge.require(known, CALLS, f"{name}, which nobody sent")
        self._received[subscription].add((taken.producer, taken.number))
        if last is None:
            return
        self.judge.require(taken.place > last, "I12", f"{name} after {last}")
        asked = self.asked[subscription]
        between = [at for at in self.receipts if last.position < at < position and at not in self._chunks]
        skipped = [at for at in between if not asked.covers(at)]
        self.judge.require(not skipped, "I12", f"{name} after {last}, and not {skipped[:2]}")

    def on_acknowledging(self, subscription: str, taken: Taken, *, is_cumulative: bool) -> None:
        """Note that an application acknowledges a message."""
        position, index = taken.place
        passed = self.passed[subscription]
        if is_cumulative:
            left = (1 << taken.batch_size) - (1 << (index + 1)) if index >= 0 else 0
            self._cumulative.add((subscription, Ack(position, left, True)))
            passed.add(Ack(position, left, True))
            return
        passed.add(Ack(position, ((1 << taken.batch_size) - 1) & ~(1 << index) if index >= 0 else 0, False))
        for chunk in taken.chunks:
            passed.add(Ack(chunk, 0, False))

    def on_seeking(self, subscription: str, place: Place, *, inclusive: bool) -> None:
        """Note that an application seeks, which passes the messages of the entry before that one."""
        position, index = place
        end = (0 if inclusive else 1) + index if index >= 0 else 0
        if index >= 0:
            self.passed[subscription].bits[position] |= (1 << end) - 1
        elif not inclusive:
            self.passed[subscription].add(Ack(position, 0, False))

    def check_asked(self, subscription: str, ack: Ack) -> None:
        """Check that an acknowledgement that came to a broker is one that an application made."""
        place = f"{ack.position.ledger_id}:{ack.position.entry_id}"
        if ack.is_cumulative:
            known = (subscription, ack) in self._cumulative
            self.judge.require(known, "I11", f"{subscription} acknowledges all up to {place}, and no application did")
            return
        passed, messages = self.passed[subscription], self._messages.get(ack.position, 1)
        wanted = ((1 << messages) - 1) & ~ack.left
        if passed.covers(ack.position) or not wanted & ~passed.bits[ack.position]:
            return
        delivered = self._chunks.get(ack.position)
        has_expired = delivered is not None and self.store.world.now - delivered >= EXPIRY_MS
        self.judge.require(has_expired, "I11", f"{subscription} acknowledges {place}, and no application did")

    def moves_of(self, subscription: str) -> int:
        """Return how many seeks of a subscription came to a broker."""
        return len(self._histories[subscription].moves)

    def on_acknowledged(self, consumer: str, subscription: str, taken: Taken, *, is_cumulative: bool) -> None:
        """Check that an acknowledgement that an application was told of was confirmed by a broker."""
        (position, index), certain = taken.place, self._certain[subscription]
        told = f"{consumer} is told that {position.ledger_id}:{position.entry_id}:{index} is acknowledged"
        is_certain = certain.covers(position) or bool(index >= 0 and certain.bits.get(position, 0) >> index & 1)
        self.judge.require(is_certain, "I11", told)
        if is_cumulative and index < 0:
            self.judge.require(certain.up_to >= position, "I11", f"{told}, with all before it")

    # -- the end of a run

    def check_calls(self, contents: Sequence[tuple[Position, bytes]], *, is_read_once: bool) -> None:
        """Check each call against what the topic holds.

        Args:
            is_read_once: nobody sought, so that each subscription received everything.
        """
        require = self.judge.require
        found: defaultdict[tuple[str, int], list[Place]] = defaultdict(list)
        newest: dict[str, tuple[int, int]] = {}  # by producer, and by key: the call and the message
        for message, place in _messages_of(contents):
            producer, number = message
            is_first = message not in found
            found[message].append(place)
            require(is_first or not self.is_deduplicated, "I12", f"{message} is stored at {found[message]}")
            if is_first:
                call, key = self._order[message]
                last, of_key = newest.get(producer, (0, 0)), newest.get(f"{producer} {key}", (0, 0))
                in_order = last[0] <= call and of_key < (call, number)
                require(in_order, "I2", f"{producer}:{number} is stored after {last} and {of_key}")
                newest[producer] = newest[f"{producer} {key}"] = call, number
        for producer, calls in self.calls.items():
            for number, outcome in calls.items():
                if outcome is None or isinstance(outcome, HeliographError):
                    continue
                places = found.get((producer, number), [])
                position = Position(outcome.ledger_id, outcome.entry_id)
                is_there = Place(position, outcome.batch_index) in places or (outcome.ledger_id < 0 and bool(places))
                require(is_there, "I1", f"{producer}:{number} was confirmed at {outcome}, and is at {places}")
                if is_read_once:
                    for subscription, received in self._received.items():
                        told = f"{subscription} never received {producer}:{number}, which was confirmed"
                        require((producer, number) in received, LIVENESS, told)


def label(producer: str, number: int) -> bytes:
    """Return the payload of a message."""
    return f"{producer}:{number}".encode() + SEPARATOR


def call_of(payload: bytes) -> tuple[str, int]:
    """Return the producer of a message, and its number."""
    producer, _, number = payload.partition(SEPARATOR)[0].decode().partition(":")
    return producer, int(number)


def _messages_of(contents: Sequence[tuple[Position, bytes]]) -> Iterator[tuple[tuple[str, int], Place]]:
    """Yield the messages of a topic, those in chunks at the place of the last one."""
    chunks: defaultdict[str, list[bytes]] = defaultdict(list)
    for position, section in contents:
        metadata, payload = split(section)
        if metadata.num_chunks_from_msg > 1:
            parts = chunks[metadata.uuid]
            if metadata.chunk_id == 0:
                parts.clear()
            if metadata.chunk_id == len(parts):
                parts.append(bytes(payload))
                if len(parts) == metadata.num_chunks_from_msg:
                    yield call_of(b"".join(chunks.pop(metadata.uuid))), Place(position, -1)
        elif metadata.HasField("num_messages_in_batch"):
            for index, (_, value) in enumerate(iterate_batch(metadata, bytes(payload))):
                yield call_of(bytes(value)), Place(position, index)
        else:
            yield call_of(bytes(payload)), Place(position, -1)
