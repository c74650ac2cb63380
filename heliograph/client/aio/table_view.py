"""The asyncio table view: the latest value of each key of a topic, in memory, which follows the topic."""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import AsyncIterator, ItemsView, Iterator, KeysView, Mapping, ValuesView
from typing import TYPE_CHECKING, Any, Generic

from typing_extensions import override

from heliograph.base.clock import Duration, seconds_of
from heliograph.base.completion import end_task
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    HeliographError,
    QuotaExceededError,
    RequestTimeoutError,
    TopicTerminatedError,
)
from heliograph.base.guard.quiet_log import SparseLog
from heliograph.client.aio.consumer.message import Message
from heliograph.client.aio.consumer.reader import AsyncReader
from heliograph.client.aio.handle import AsyncHandle, HandleState
from heliograph.client.options import ConsumerOptions, TableViewOptions
from heliograph.client.types import Received, Value
from heliograph.protocol.message_id import MessageId

if TYPE_CHECKING:
    from heliograph.client.aio.session import HandleOwner


MESSAGES_TOGETHER = 1000  # that are taken from the reader at once
LOOK_AGAIN_SECONDS = 1.0  # without a message, after which the view asks whether one is to come
_NOTHING: Any = object()

log = logging.getLogger(__name__)


class AsyncTableView(AsyncHandle, Mapping[str, Received]):
    """The latest value of each key of a topic, partitioned or not, as a mapping in memory.

    Opening reads the topic to its end, from its compacted form if it has one; then the view follows the topic. Messages
    without a key do not count. An empty payload deletes its key. A value that does not fit the schema is logged, and
    the key keeps the value before. The view holds all keys with their values: more than ``keys_max`` keys end it.

    Opening raises the errors of ``AsyncReader``, and QuotaExceededError for too many keys. Reading a view that was
    not opened, or was closed, raises BadRequestError or AlreadyClosedError; reading one that lost its topic raises why.
    """

    def __init__(self, client: HandleOwner, options: TableViewOptions) -> None:
        super().__init__()
        self.client = client
        self.options = options
        self._values: dict[str, Received] = {}
        self._log = SparseLog(log)
        self._failure: HeliographError | None = None
        self._reader: AsyncReader[Received] | None = None
        self._following: asyncio.Task[None] | None = None
        self._updates: weakref.WeakSet[TableUpdates[Received]] = weakref.WeakSet()
        self._read_to: dict[str, MessageId] = {}  # by topic or partition, the last message that the values reflect
        self._advanced = asyncio.Event()

    @property
    def topic(self) -> str:
        """Return the full name of the topic."""
        return self.options.topic

    def __getitem__(self, key: str) -> Received:
        """Return the latest value of a key.

        Raises:
            KeyError: There is no such key.
        """
        return self._readable()[key]

    def __contains__(self, key: object) -> bool:
        """Return whether there is a value of a key."""
        return key in self._readable()

    def __len__(self) -> int:
        """Return the number of keys."""
        return len(self._readable())

    def __iter__(self) -> Iterator[str]:
        """Return an iterator of the keys of this moment."""
        return iter(self.snapshot())

    @override
    def keys(self) -> KeysView[str]:
        """Return the keys of this moment."""
        return self.snapshot().keys()

    @override
    def values(self) -> ValuesView[Received]:
        """Return the values of this moment."""
        return self.snapshot().values()

    @override
    def items(self) -> ItemsView[str, Received]:
        """Return the keys and values of this moment."""
        return self.snapshot().items()

    def snapshot(self) -> dict[str, Received]:
        """Return a copy of all keys and values at this moment."""
        return dict(self._readable())

    async def refresh(self, timeout: Duration | None = None) -> None:
        """Wait until the view reflects everything that was published before the call.

        Args:
            timeout: Seconds to wait, or a timedelta; None waits as long as it takes.

        Raises:
            RequestTimeoutError: That took longer.
            QuotaExceededError, HeliographError: Why the view has ended.
            ConnectionLostError: The broker could not be reached in time.
        """
        seconds = None if timeout is None else seconds_of(timeout, "timeout")
        await self.open()
        assert self._reader is not None, "an open view has its reader"
        try:
            async with asyncio.timeout(seconds):
                for topic, last in (await self._reader.last_message_ids()).items():
                    while not self._reflects(topic, last):
                        if self._failure is not None:
                            raise self._failure
                        self._advanced.clear()
                        try:
                            await asyncio.wait_for(self._advanced.wait(), LOOK_AGAIN_SECONDS)
                        except TimeoutError:
                            if not await self._reader.has_message_available():
                                break  # the end is a chunk of a message that is not complete
            self._readable()
        except TimeoutError:
            raise RequestTimeoutError(f"the view is behind after {seconds} s", field="timeout") from None

    def updates(self) -> AsyncIterator[tuple[str, Received | None]]:
        """Return an async iterator of the changes from now on: ``async for key, value in view.updates()``.

        It ends when the view is closed or its topic was terminated.
        """
        self._readable()
        found: TableUpdates[Received] = TableUpdates()
        self._updates.add(found)
        if self._following is None or self._following.done():
            found.end(self._failure or StopAsyncIteration())
        return found

    # -- opening and closing

    async def _do_open(self) -> None:
        options = ConsumerOptions(
            (self.options.topic,),
            "",
            schema=self.options.schema,
            read_compacted=True,
            start=MessageId.EARLIEST,
        )
        reader: AsyncReader[Received] = AsyncReader(self.client, options)
        try:
            await reader.open()
            while await reader.has_message_available():
                self._apply(await self._taken(reader, LOOK_AGAIN_SECONDS))
                if self._failure is not None:
                    raise self._failure
        except BaseException:
            await reader.close()
            self._values, self._read_to, self._failure = {}, {}, None
            raise
        self._reader = reader
        self._following = asyncio.get_running_loop().create_task(self._follow(reader))
        self.client.adopt(self)

    async def _taken(self, reader: AsyncReader[Received], seconds: float | None = None) -> list[Message[Received]]:
        """Return the next messages; none after ``seconds`` or an entry that cannot be unpacked, which is logged."""
        try:
            return await reader.receive_many(MESSAGES_TOGETHER, seconds)
        except HeliographError as error:
            if reader.failure is not None:
                raise
            self._log.warning(
                "entry", "the view of %s goes on behind an entry that it cannot read: %s", self.topic, error
            )
            return []

    async def _follow(self, reader: AsyncReader[Received]) -> None:
        end: BaseException = StopAsyncIteration()
        try:
            while self._failure is None:
                self._apply(await self._taken(reader))
            end = self._failure
        except (TopicTerminatedError, AlreadyClosedError):
            pass  # what was read stays
        except HeliographError as error:
            end = self._failure = error
        finally:
            for updates in list(self._updates):
                updates.end(end)
            self._advanced.set()

    async def _do_close(self) -> None:
        if self._reader is not None:
            await end_task(self._following)
            await self._reader.close()
        self.client.release(self)

    # -- values

    def _readable(self) -> dict[str, Received]:
        if self._state is HandleState.CLOSED:
            raise AlreadyClosedError("the table view was closed")
        if self._state is not HandleState.OPEN:
            raise BadRequestError("the table view is not open yet: await it, or use it in a with block")
        if self._failure is not None:
            raise self._failure
        return self._values

    def _apply(self, messages: list[Message[Received]]) -> None:
        for message in messages:
            self._read_to[message.topic] = message.message_id
            if message.key is not None:
                self._change(message.key, message)
        self._advanced.set()

    def _change(self, key: str, message: Message[Received]) -> None:
        value = None
        if message.data:
            try:
                value = message.value
            except HeliographError as error:
                position = message.message_id
                self._log.warning("value", "%s of %s does not change its key: %s", position, message.topic, error)
                return
            if not self._is_accepted(key, value):
                return
            self._values[key] = value
        elif self._values.pop(key, _NOTHING) is _NOTHING:
            return
        if len(self._values) > self.options.keys_max:  # I15
            limit = f"{self.options.keys_max} keys"
            self._failure = QuotaExceededError(
                f"{self.topic} has more keys than a view may", field="keys_max", limit=limit
            )
        for updates in list(self._updates):
            updates.put(key, value)

    def _is_accepted(self, key: str, value: Any) -> bool:
        """Return whether a value replaces the one before; a view of values that compete may say no."""
        return True

    def _reflects(self, topic: str, last: MessageId) -> bool:
        read_to = self._read_to.get(topic)
        return read_to is not None and not _is_before(read_to, last)

    def __reduce__(self) -> tuple[Any, ...]:
        return AsyncTableView, (self.client, self.options)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic})"


def _is_before(one: MessageId, other: MessageId) -> bool:
    here, there = (one.ledger_id, one.entry_id), (other.ledger_id, other.entry_id)
    if here != there:
        return here < there
    return 0 <= one.batch_index < other.batch_index


class TableUpdates(AsyncIterator[tuple[str, Value | None]], Generic[Value]):
    """The changes of a table view from a moment on: keys with their new values, None for a key that was deleted.

    A caller that is slower than the topic gets the newest value of each key, not each value: what waits is bounded by
    the keys. # I15
    """

    def __init__(self) -> None:
        self._changed: dict[str, Value | None] = {}
        self._arrived = asyncio.Event()
        self._failure: BaseException | None = None

    async def __anext__(self) -> tuple[str, Value | None]:
        while not self._changed:
            if self._failure is not None:
                raise self._failure
            self._arrived.clear()
            await self._arrived.wait()
        key = next(iter(self._changed))
        return key, self._changed.pop(key)

    def put(self, key: str, value: Value | None) -> None:
        """Add a change."""
        self._changed.pop(key, None)  # a key that changes again comes in its new place
        self._changed[key] = value
        self._arrived.set()

    def end(self, failure: BaseException) -> None:
        """Raise ``failure`` when the changes so far were taken; StopAsyncIteration ends the iteration."""
        self._failure = failure
        self._arrived.set()
