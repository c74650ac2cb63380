"""Publishing from inside the cluster without a client connection: lists of payloads become entries here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence

from typing_extensions import override

from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.actors.broker.topic.topic import BrokerTopic
from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError, HeliographError, MessageTooLargeError
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.hashing import java_string_hash
from heliograph.protocol.topic_name import TopicName

PAYLOADS_MAX = 100_000  # of one call
ENTRY_BYTES_TARGET = 1 << 20  # payload bytes of one entry, unless a single payload is larger
ENTRY_MESSAGES_MAX = 10_000
MESSAGE_OVERHEAD_BYTES = 64  # of a message inside a batch, next to its key

Keys = Sequence[str | None] | None


class PublicationFuture(Publication):
    """The outcome of one entry as a future of its position."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    @override
    def confirmed(self, position: Position) -> None:
        if not self.position.done():
            self.position.set_result(position)

    @override
    def failed(self, error: HeliographError) -> None:
        if not self.position.done():
            self.position.set_exception(error)

    @override
    def delayed(self, error: HeliographError) -> None:
        self.failed(error)


class PartitionRouter:
    """Chooses partitions: by key as clients do by default, in turn for messages without a key."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def route(self, name: TopicName, partitions: int, count: int, keys: Keys) -> Iterator[tuple[TopicName, list[int]]]:
        """Yield each topic that gets some of the ``count`` messages, with the indexes of its messages in the list, in
        order."""
        if not partitions:
            yield name, list(range(count))
            return
        turn = next(self._turn) % partitions
        places: dict[int, list[int]] = {}
        for place in range(count):
            key = None if keys is None else keys[place]
            places.setdefault(turn if key is None else java_string_hash(key) % partitions, []).append(place)
        for partition, chosen in places.items():
            yield name.of_partition(partition), chosen


def check_payloads(payloads: Sequence[bytes], keys: Keys, bytes_max: int) -> None:
    """Check a list of payloads before any of them is published.

    Raises:
        BadRequestError: the list is empty or too long, a payload is not ``bytes``, or the keys do not match.
        MessageTooLargeError: a payload exceeds ``bytes_max``.
    """
    if not payloads or len(payloads) > PAYLOADS_MAX:
        raise BadRequestError(f"{len(payloads)} payloads", field="payloads", limit=f"1 to {PAYLOADS_MAX}")
    if keys is not None and len(keys) != len(payloads):
        raise BadRequestError(f"{len(keys)} keys for {len(payloads)} payloads", field="keys")
    for place, payload in enumerate(payloads):
        if not isinstance(payload, bytes):
            raise BadRequestError(f"payload {place} is {type(payload).__name__}, not bytes", field="payloads")
        if len(payload) + MESSAGE_OVERHEAD_BYTES > bytes_max:
            raise MessageTooLargeError(
                f"payload {place} has {len(payload)} bytes", field="payloads", limit=f"{bytes_max} bytes"
            )


async def publish(topic: BrokerTopic, producer: str, payloads: Sequence[bytes], keys: Keys) -> list[str]:
    """Append payloads as batches, in order, and return the id of each message once all are durable.

    Raises:
        TopicTerminatedError, ProducerBusyError, QuotaExceededError: nothing was stored.
        ServiceNotReadyError, PersistenceError: a prefix of the payloads may be stored.
    """
    topic.admission.check_open_to_all()
    publications: list[tuple[PublicationFuture, int]] = []
    for first, stop in _cuts(payloads, keys):
        data = encode_entry_of(producer, 0, wall_ms(), payloads[first:stop], None if keys is None else keys[first:stop])
        publication = PublicationFuture()
        topic.publish(TopicEntry.read(data, check=False), publication)
        publications.append((publication, stop - first))
    positions = await asyncio.gather(*(p.position for p, _ in publications), return_exceptions=True)
    ids = []
    for position, (_, count) in zip(positions, publications, strict=True):
        if isinstance(position, BaseException):
            raise position
        ids += [f"{position}:{topic.name.partition}:{index}" for index in range(count)]
    return ids


def _cuts(payloads: Sequence[bytes], keys: Keys) -> Iterator[tuple[int, int]]:
    """Yield the entries into which a list is cut, as (first, one past the last)."""
    first = size = 0
    for place, payload in enumerate(payloads):
        key = None if keys is None else keys[place]
        more = len(payload) + MESSAGE_OVERHEAD_BYTES + (4 * len(key) if key else 0)
        if place > first and (size + more > ENTRY_BYTES_TARGET or place - first >= ENTRY_MESSAGES_MAX):
            yield first, place
            first, size = place, 0
        size += more
    yield first, len(payloads)
