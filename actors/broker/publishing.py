"""Publishing from inside the cluster, without a client connection: lists of payloads become entries here."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Sequence

from actors.broker.position import Position
from actors.broker.topic import Topic
from actors.broker.topic_entry import TopicEntry
from actors.broker.topic_record import now_ms
from heliograph.errors import BadRequestError, HeliographError, MessageTooLargeError
from heliograph.protocol.batch import encode_entry_of
from heliograph.protocol.hashing import java_string_hash
from heliograph.protocol.topic_name import TopicName

PAYLOADS_MAX = 100_000  # of one call
ENTRY_BYTES_TARGET = 1 << 20  # payloads gathered into one entry, unless a single one is larger
ENTRY_MESSAGES_MAX = 10_000
MESSAGE_OVERHEAD_BYTES = 64  # of a message inside a batch, next to its key

Keys = Sequence[str | None] | None


class InnerPublication:
    """Turns the verdict on one entry into a future."""

    __slots__ = ("position",)

    def __init__(self) -> None:
        self.position: asyncio.Future[Position] = asyncio.get_running_loop().create_future()

    def confirmed(self, position: Position) -> None:
        """See Publication."""
        if not self.position.done():
            self.position.set_result(position)

    def failed(self, error: HeliographError) -> None:
        """See Publication."""
        if not self.position.done():
            self.position.set_exception(error)


class Spreader:
    """Chooses partitions: by key as clients do by default, in turn where there is no key."""

    def __init__(self) -> None:
        self._turn = itertools.count()

    def spread(self, name: TopicName, partitions: int, count: int, keys: Keys) -> Iterator[tuple[TopicName, list[int]]]:
        """For each topic that gets some of the ``count`` messages, their places in the list, in order."""
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
    """Raise BadRequestError or MessageTooLargeError for a list that cannot be published as a whole."""
    if not payloads or len(payloads) > PAYLOADS_MAX:
        raise BadRequestError(f"{len(payloads)} payloads", field="payloads", limit=f"1 to {PAYLOADS_MAX}")
    if keys is not None and len(keys) != len(payloads):
        raise BadRequestError(f"{len(keys)} keys for {len(payloads)} payloads", field="keys")
    for place, payload in enumerate(payloads):
        if not isinstance(payload, bytes):
            raise BadRequestError(f"payload {place} is no bytes but {type(payload).__name__}", field="payloads")
        if len(payload) + MESSAGE_OVERHEAD_BYTES > bytes_max:
            raise MessageTooLargeError(
                f"payload {place} has {len(payload)} bytes", field="payloads", limit=f"{bytes_max} bytes"
            )


async def publish(topic: Topic, producer: str, payloads: Sequence[bytes], keys: Keys) -> list[str]:
    """Append payloads as batches, in order, and return the id of each message once all are durable.

    Raises:
        TopicTerminatedError, ProducerBusyError, QuotaExceededError: nothing was stored.
        ServiceNotReadyError, PersistenceError: some may be stored, in which case a prefix is.
    """
    topic.write_side.check_open_to_all()
    publications: list[tuple[InnerPublication, int]] = []
    for first, stop in _cuts(payloads, keys):
        data = encode_entry_of(producer, 0, now_ms(), payloads[first:stop], None if keys is None else keys[first:stop])
        publication = InnerPublication()
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
    """Where a list is cut into entries, as (first, one past the last)."""
    first = size = 0
    for place, payload in enumerate(payloads):
        key = None if keys is None else keys[place]
        more = len(payload) + MESSAGE_OVERHEAD_BYTES + (4 * len(key) if key else 0)
        if place > first and (size + more > ENTRY_BYTES_TARGET or place - first >= ENTRY_MESSAGES_MAX):
            yield first, place
            first, size = place, 0
        size += more
    yield first, len(payloads)
