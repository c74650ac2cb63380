"""One open step, and the record of all steps: their topics in one process. They belong to one event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from heliograph.base.errors import (
    BadRequestError,
    DataLostError,
    MessageTooLargeError,
    NotFoundError,
    TopicNotFoundError,
    ValueNotFoundError,
)
from heliograph.pipelines.steps.entries import TopicEntries
from heliograph.pipelines.steps.records import KEYS_MAX, StepIndex, clear_records, put_records
from heliograph.pipelines.steps.values import CHUNK_BYTES, Location, Packer, checksum_of, framed, runs_of, unframed
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.producer.producer import AsyncProducer
    from heliograph.pipelines.planning.ranges import Position

SUBSCRIPTION = "values"  # nobody reads it: it keeps the topics, also where the retention is 0
PENDING_BYTES_MAX = 16 << 20  # of a put, sent and not confirmed  # I15
READ_ENTRIES = 64  # of a get that are held at once, those of its last value beside  # I15
GROUP_BYTES, GROUP_VALUES = 4 << 20, 256  # values that are pickled at once; the last one may be larger  # I15


class Records:
    """A topic of records, read from bookies, and published to."""

    def __init__(self, client: AsyncClient, topic: str, fold: Callable[[memoryview], None]) -> None:
        self.topic = topic
        self._fold = fold
        self._entries = TopicEntries(topic, client.admin)
        self._producer = _producer(client, topic)
        self._next: Position | None = None
        self._turn = asyncio.Lock()

    async def refresh(self) -> None:
        """Fold the new records. Raises TopicNotFoundError if nothing was ever published, or the topic was deleted."""
        async with self._turn:
            for (ledger_id, entry_id), payload in await self._entries.after(self._next):
                self._fold(payload)
                self._next = ledger_id, entry_id + 1

    async def publish(self, records: Iterable[bytes]) -> None:
        for one in records:
            await self._producer.send(one)

    async def close(self) -> None:
        await self._entries.close()
        await self._producer.close()


class OpenStep:
    """A step whose values are put and read. Its topics are made by the first put."""

    def __init__(self, client: AsyncClient, data_topic: str, index_topic: str, step: int) -> None:
        self.step = step
        self.users = 0  # calls that use it now
        self._put_keys = 0  # of all puts, the same ones again, too
        self.topics = (data_topic, index_topic)
        self._index = StepIndex(step)
        self._records = Records(client, index_topic, self._index.add)
        self._entries = TopicEntries(data_topic, client.admin)
        self._producer = _producer(client, data_topic)
        self._putting = asyncio.Lock()  # so that the values of a put are next to each other

    async def put(self, keys: Sequence[str], values: Sequence[Any], value_bytes_max: int) -> list[Location]:
        """Store values, then their keys."""
        self._put_keys += len(keys)
        if self._put_keys > KEYS_MAX:  # nobody could read the index of a step with more
            await self._refresh()
            if (count := len({*self._index.locations, *keys})) > KEYS_MAX:
                raise BadRequestError(f"step {self.step} has {count} keys", field="keys", limit=f"{KEYS_MAX} keys")
        packer, waiters = Packer(), list[asyncio.Future[MessageId]]()
        places: list[tuple[tuple[int, int], int, int]] = []  # chunk and offset, size, checksum
        given = zip(keys, values, strict=True)
        try:
            async with self._putting:
                while group := await asyncio.to_thread(_framed_group, given, value_bytes_max):
                    for frame in group:
                        places.append((packer.place, frame.size, frame.checksum))
                        for chunk in packer.add(frame.parts):
                            waiters.append(await self._producer.enqueue(chunk))
                for chunk in packer.end():
                    waiters.append(await self._producer.enqueue(chunk))
        finally:
            ids = await asyncio.gather(*waiters, return_exceptions=True)
        for failed in ids:
            if isinstance(failed, BaseException):
                raise failed
        stored = [(one.ledger_id, one.entry_id) for one in ids if isinstance(one, MessageId)]
        locations = []
        for (first, offset), size, checksum in places:
            last = first + (offset + size - 1) // CHUNK_BYTES
            locations.append(Location(self.step, offset, size, checksum, runs_of(stored[first : last + 1])))
        await self._records.publish(put_records(dict(zip(keys, map(str, locations), strict=True))))
        return locations

    async def keys(self) -> list[str]:
        """Return the keys that have values now."""
        await self._refresh()
        return [*self._index.locations]

    async def locations(self, keys: Sequence[str]) -> dict[str, Location]:
        """Return the locations of the values of keys, without the keys that have none."""
        await self._refresh()
        found = self._index.locations
        return {key: Location.parse(found[key]) for key in keys if key in found}

    async def values(self, keys: Sequence[str], locations: Sequence[Location]) -> list[Any]:
        """Return the values at locations. Values that share an entry are read together, whatever their order is."""
        found: list[Any] = [None] * len(keys)
        for group in _groups(locations):
            try:
                read = await self._entries.read(position for at in group for position in locations[at].positions())
            except NotFoundError as error:
                raise ValueNotFoundError(f"the values of step {self.step} are gone: {error}", field="keys") from error
            for at, value in zip(group, await asyncio.to_thread(_values, keys, locations, group, read), strict=True):
                found[at] = value
        return found

    async def clear(self, keys: Sequence[str]) -> bool:
        """Delete values; unknown keys have none. Return whether the step has no value left."""
        await self._records.publish(clear_records(keys))
        await self._refresh()
        return not self._index.locations

    async def close(self) -> None:
        """Close all handles."""
        await self._records.close()
        await self._entries.close()
        await self._producer.close()

    async def _refresh(self) -> None:
        with contextlib.suppress(TopicNotFoundError, DataLostError):
            await self._records.refresh()


class _FramedValue(NamedTuple):
    parts: list[memoryview]
    size: int
    checksum: int


def _framed_group(given: Iterator[tuple[str, Any]], value_bytes_max: int) -> list[_FramedValue]:
    """Return the frames of the next values, so many that a thread is worth it; none at the end."""
    group: list[_FramedValue] = []
    size = 0
    for key, value in given:
        parts = framed(value)
        group.append(_FramedValue(parts, sum(part.nbytes for part in parts), checksum_of(parts)))
        size += group[-1].size
        if group[-1].size > value_bytes_max:
            raise MessageTooLargeError(
                f"the value of {key} has {group[-1].size} bytes", field="values", limit=f"{value_bytes_max} bytes"
            )
        if size >= GROUP_BYTES or len(group) == GROUP_VALUES:
            break
    return group


def _producer(client: AsyncClient, topic: str) -> AsyncProducer[Any]:
    """Return a producer without batches: one message is one entry."""
    return client.producer(
        topic,
        batch_messages=1,
        pending_bytes_max=PENDING_BYTES_MAX,
        initial_subscription=SUBSCRIPTION,
        rejoin="when_sending",
    )


def _groups(locations: Sequence[Location]) -> Iterator[list[int]]:
    """Yield the places of locations in the order of their entries, so many that they are in about READ_ENTRIES."""
    group: list[int] = []
    entries: set[tuple[int, int]] = set()
    for at in sorted(range(len(locations)), key=lambda one: locations[one].entries):
        group.append(at)
        entries.update(locations[at].positions())
        if len(entries) >= READ_ENTRIES:
            yield group
            group, entries = [], set()
    if group:
        yield group


def _values(
    keys: Sequence[str],
    locations: Sequence[Location],
    group: Sequence[int],
    read: dict[tuple[int, int], memoryview],
) -> list[Any]:
    return [_value(keys[at], locations[at], read) for at in group]


def _value(key: str, location: Location, read: dict[tuple[int, int], memoryview]) -> Any:
    frame, at, offset = bytearray(location.size), 0, location.offset
    for position in location.positions():
        part = read[position][offset : offset + location.size - at]
        frame[at : at + len(part)] = part
        at, offset = at + len(part), 0
    if at != location.size:
        raise ValueNotFoundError(f"the location of {key} is not that of a value", field="locations")
    return unframed(frame, location.checksum)
