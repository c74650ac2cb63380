"""A queue with the calls of ``ray.util.queue``, whose items are messages of a topic: they outlive every process.

    from heliograph.queue import Queue  # instead of ray.util.queue

    queue = Queue(name="work")
    queue.put({"document": 7})
    item = queue.get(timeout=10)
    with queue.lease() as item:  # at least once: acknowledged at the end of the block, given back if it raises
        ...

It needs no Ray. Items are pickles, in Ray those of ``ray.cloudpickle``: a role that may publish to the topic may run
code in programs that take items.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import os
import pickle
import queue
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, cast

from heliograph.base.clock import Duration, seconds_of
from heliograph.base.errors import (
    AlreadyClosedError,
    BadRequestError,
    HeliographError,
    InvalidConfigError,
    NotFoundError,
    ProtocolError,
)
from heliograph.client.sync.handle import making, refuse_on_running_loop, threads
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.aio.consumer.consumer import AsyncConsumer
    from heliograph.client.aio.consumer.message import Message
    from heliograph.client.aio.producer.producer import AsyncProducer
    from heliograph.client.sync.client import Client

SUBSCRIPTION = "queue"
DELIVERY_SECONDS = 5.0  # for an item that the broker has counted to arrive; another getter may have taken it
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.005, 0.2  # between two looks whether a full queue has room

_Result = TypeVar("_Result")


class Empty(queue.Empty):
    """The queue has no item, or not as many as were asked for. It is a ``ray.util.queue.Empty``, too, where that is in
    use."""


class Full(queue.Full):
    """The queue has no room. It is a ``ray.util.queue.Full``, too, where that is in use."""


class _Handles:
    """The producer and the consumer of a queue in one process; its calls run on the loop thread."""

    def __init__(self, client: Client, topic: str, maxsize: int) -> None:
        self._client = client.aio()
        self._topic = topic
        self._maxsize = maxsize
        self._producer: AsyncProducer[bytes] = self._client.producer(topic, initial_subscription=SUBSCRIPTION)
        self._consumer: AsyncConsumer[bytes] = self._client.consumer(
            topic, SUBSCRIPTION, type="shared", initial_position="earliest", receiver_queue=0, nack_delay_ms=0
        )
        self._putting = asyncio.Lock()  # of a bounded queue, so that one asks and puts at a time
        self._returning: set[asyncio.Task[None]] = set()

    async def size(self) -> int:
        # The statistics of a topic that was just loaded lack a subscription until it is used.
        await asyncio.gather(self._producer.open(), self._consumer.open())
        stats = (await self._client.admin.topic_stats(self._topic))["subscriptions"][SUBSCRIPTION]
        return max(0, int(stats["backlogMessages"]) - int(stats["unackedMessages"]))

    async def put(self, payloads: Sequence[bytes], seconds: float | None) -> None:
        """Publish items once there is room for all. Raises Full after ``seconds``; None waits for ever."""
        if self._maxsize <= 0:
            await self._publish(payloads)
            return
        loop = asyncio.get_running_loop()
        end = None if seconds is None else loop.time() + seconds
        pause = PAUSE_SECONDS
        while True:
            async with self._putting:
                waiting = await self.size()
                if waiting + len(payloads) <= self._maxsize:
                    await self._publish(payloads)
                    return
            left = pause if end is None else end - loop.time()
            if left <= 0:
                raise _full()(
                    f"{len(payloads)} more than {waiting} items, of {self._maxsize} that {self._topic} may have"
                )
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _publish(self, payloads: Sequence[bytes]) -> None:
        if len(payloads) == 1:
            await self._producer.send(payloads[0])
        else:
            await self._producer.send_many(payloads)

    async def get(self, count: int, seconds: float | None) -> list[bytes]:
        """Take so many items, acknowledged; raises Empty as ``receive``."""
        messages = await self.receive(count, seconds)
        try:
            await self.acknowledge(messages)
        except asyncio.CancelledError:  # the caller does not get them
            await self.give_back(messages)
            raise
        return [message.data for message in messages]

    async def receive(self, count: int, seconds: float | None) -> list[Message[bytes]]:
        """Receive so many items, or none: raises Empty if there are fewer after ``seconds``; None waits for ever."""
        await self._producer.open()  # it makes the subscription, so that no item comes before it
        if seconds == 0:
            if await self.size() < count:
                raise _empty()(f"{self._topic} does not have {count} items")
            seconds = DELIVERY_SECONDS
        found: list[Message[bytes]] = []
        try:
            async with asyncio.timeout(seconds):
                while len(found) < count:
                    found.append(await self._consumer.receive())
        except TimeoutError:
            await self.give_back(found)
            raise _empty()(f"{self._topic} did not have {count} items in time") from None
        except BaseException:
            await self.give_back(found)
            raise
        return found

    async def acknowledge(self, messages: Sequence[Message[bytes]]) -> None:
        await self._consumer.ack_many(messages)

    async def give_back(self, messages: Sequence[Message[bytes]]) -> None:
        for message in messages:
            await self._consumer.nack(message)

    def refused(self, messages: Sequence[Message[bytes]]) -> None:
        """Give messages back that came when their caller was interrupted."""
        returning = asyncio.get_running_loop().create_task(self.give_back(messages))
        self._returning.add(returning)
        returning.add_done_callback(self._returning.discard)

    async def close(self, *, deletes: bool) -> None:
        await asyncio.gather(self._producer.close(), self._consumer.close())
        if deletes:
            with contextlib.suppress(NotFoundError):  # it was never used, or a copy has deleted it
                await self._client.admin.delete_topic(self._topic, force=True)


_Call: TypeAlias = Callable[[_Handles], Coroutine[Any, Any, _Result]]


class Queue:
    """A first-in, first-out queue of any picklable items, for any number of processes.

    A copy from a pickle is the same queue. ``get`` acknowledges an item before it returns, so an item is given out at
    most once; ``lease`` gives it out at least once. Calls wait for the broker, and an item that ``put`` has returned
    for is stored. Where an event loop runs, use the forms that end in ``_async``; the others raise RunningLoopError.

    Every call raises the errors of ``heliograph.connect`` and of the handles, such as ConnectionLostError; after
    RequestTimeoutError an item may be stored.

    Args:
        maxsize: The most items that may wait; 0 for any number. A putter asks the broker before each put, so the bound
            is exact among the putters of one process; those of n processes that put at one moment may pass it by n - 1.
        actor_options: Ignored: there is no actor.
        name: Name of the topic. None makes one up, which travels with the pickle; ``shutdown`` deletes that topic.
        client: The client of the cluster; None: that of ``heliograph.connect()``, made at the first use.

    Raises:
        InvalidTopicNameError, InvalidConfigError: An argument is not acceptable.
    """

    def __init__(
        self,
        maxsize: int = 0,
        actor_options: dict[str, Any] | None = None,
        *,
        name: str | None = None,
        client: Client | None = None,
    ) -> None:
        if type(maxsize) is not int:
            raise InvalidConfigError(f"maxsize is {maxsize!r}, not an int", field="maxsize")
        self.maxsize = maxsize
        self.topic = str(TopicName.parse(f"queue-{uuid.uuid4().hex}" if name is None else name))
        self.client = client
        self._is_named = name is not None
        self._is_shut_down = False
        self._made: tuple[int, _Handles] | None = None  # of the process with this id

    def __len__(self) -> int:
        return self.size()

    # -- what the queue has

    def size(self) -> int:
        """Return how many items wait; those that are leased do not count."""
        return self._run(lambda handles: handles.size())

    def qsize(self) -> int:
        """Return how many items wait."""
        return self.size()

    def empty(self) -> bool:
        """Return whether no item waits."""
        return self.size() == 0

    def full(self) -> bool:
        """Return whether as many items wait as may; False without ``maxsize``."""
        return 0 < self.maxsize <= self.size()

    # -- put

    def put(self, item: Any, block: bool = True, timeout: Duration | None = None) -> None:
        """Store an item.

        Args:
            item: Anything that pickles, but references to objects in Ray, which may be gone when it is taken.
            block: Whether to wait for room.
            timeout: Seconds, or a timedelta, to wait for room; None waits for ever.

        Raises:
            Full: There is no room, or was none in time.
            ValueError: The timeout is negative.
            BadRequestError: The item does not pickle.
            MessageTooLargeError: Its pickle has more than 64 MiB.
        """
        seconds, payload = _wait_of(block, timeout), _dumped(item)
        self._run(lambda handles: handles.put([payload], seconds))

    async def put_async(self, item: Any, block: bool = True, timeout: Duration | None = None) -> None:
        """Store an item, as ``put`` does."""
        seconds, payload = _wait_of(block, timeout), _dumped(item)
        await self._await(lambda handles: handles.put([payload], seconds))

    def put_nowait(self, item: Any) -> None:
        """Store an item if there is room; raises as ``put`` with ``block=False``."""
        self.put(item, block=False)

    def put_nowait_batch(self, items: Iterable[Any]) -> None:
        """Store items in their order if there is room for all of them.

        After RequestTimeoutError, or if this process dies, the first ones may be stored alone.

        Raises:
            Full: There is no room for all; none was stored.
            TypeError: ``items`` is no iterable.
        """
        if not isinstance(items, Iterable):
            raise TypeError("Argument 'items' must be an Iterable")
        payloads = [_dumped(item) for item in items]
        if payloads:
            self._run(lambda handles: handles.put(payloads, 0.0))

    # -- get

    def get(self, block: bool = True, timeout: Duration | None = None) -> Any:
        """Take the next item. It is acknowledged when this returns: if the process dies then, the item is gone.

        Args:
            block: Whether to wait for an item.
            timeout: Seconds, or a timedelta, to wait; None waits for ever.

        Raises:
            Empty: There is no item, or was none in time.
            ValueError: The timeout is negative.
            ProtocolError: The item cannot be unpickled here; it is gone.
        """
        seconds = _wait_of(block, timeout)
        return _loaded(self._run(lambda handles: handles.get(1, seconds))[0])

    async def get_async(self, block: bool = True, timeout: Duration | None = None) -> Any:
        """Take the next item, as ``get`` does."""
        seconds = _wait_of(block, timeout)
        return _loaded((await self._await(lambda handles: handles.get(1, seconds)))[0])

    def get_nowait(self) -> Any:
        """Take the next item if there is one; raises as ``get`` with ``block=False``."""
        return self.get(block=False)

    def get_nowait_batch(self, num_items: int) -> list[Any]:
        """Take so many items, or none.

        Raises:
            Empty: There are fewer.
            TypeError, ValueError: ``num_items`` is no int, or negative.
        """
        if not isinstance(num_items, int):
            raise TypeError("Argument 'num_items' must be an int")
        if num_items < 0:
            raise ValueError("'num_items' must be nonnegative")
        if num_items == 0:
            return []
        return [_loaded(data) for data in self._run(lambda handles: handles.get(num_items, 0.0))]

    # -- lease

    @contextlib.contextmanager
    def lease(self, block: bool = True, timeout: Duration | None = None) -> Iterator[Any]:
        """Hold the next item for a block: ``with queue.lease() as item``.

        It is acknowledged when the block ends, and given back if it raises. If the process dies, another getter has the
        item at once. Nothing bounds the time: a lease lasts as long as its connection.

        Raises:
            Empty, ValueError, ProtocolError: As ``get``; an item that cannot be unpickled is given back.
        """
        seconds = _wait_of(block, timeout)
        message = self._run(lambda handles: handles.receive(1, seconds), _Handles.refused)[0]
        try:
            yield _loaded(message.data)
        except BaseException:
            with contextlib.suppress(HeliographError):  # closing gives it back
                self._run(lambda handles: handles.give_back([message]))
            raise
        self._run(lambda handles: handles.acknowledge([message]))

    @contextlib.asynccontextmanager
    async def lease_async(self, block: bool = True, timeout: Duration | None = None) -> AsyncIterator[Any]:
        """Hold the next item for a block, as ``lease`` does: ``async with queue.lease_async() as item``."""
        seconds = _wait_of(block, timeout)
        message = (await self._await(lambda handles: handles.receive(1, seconds), _Handles.refused))[0]
        try:
            yield _loaded(message.data)
        except BaseException:
            with contextlib.suppress(HeliographError):
                await self._await(lambda handles: handles.give_back([message]))
            raise
        await self._await(lambda handles: handles.acknowledge([message]))

    # -- the end

    def shutdown(self, force: bool = False, grace_period_s: Duration = 5) -> None:
        """Close the queue in this process. The topic of a queue without a name is deleted with its items; the items of
        one with a name stay, and a further ``Queue(name=...)`` has them.

        Args:
            force, grace_period_s: Without effect: no actor has to be ended.
        """
        if not self._is_shut_down:
            self._run(lambda handles: handles.close(deletes=not self._is_named))
            self._is_shut_down = True

    # -- the loop that all handles live in

    def _run(self, call: _Call[_Result], give_back: Callable[[_Handles, _Result], object] | None = None) -> _Result:
        refuse_on_running_loop(None, "a blocking call of a queue", "its form that ends in _async")
        handles = self._handles()
        return threads.current().run(call(handles), give_back and functools.partial(give_back, handles))

    async def _await(
        self, call: _Call[_Result], give_back: Callable[[_Handles, _Result], object] | None = None
    ) -> _Result:
        handles = await asyncio.to_thread(self._handles) if self.client is None else self._handles()
        return await threads.current().wait(call(handles), give_back and functools.partial(give_back, handles))

    def _handles(self) -> _Handles:
        if self._is_shut_down:
            raise AlreadyClosedError("the queue was shut down")
        made = self._made
        if made is not None and made[0] == os.getpid():
            return made[1]
        from heliograph.client.access import own_client

        client = own_client() if self.client is None else self.client
        with making:  # other threads may use the queue for the first time, too: a lease ends by the handle it came from
            if self._made is None or self._made[0] != os.getpid():
                self._made = os.getpid(), _Handles(client, self.topic, self.maxsize)
            return self._made[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.maxsize, self.topic, self.client, self._is_named)

    def __repr__(self) -> str:
        return f"Queue({self.topic}, maxsize={self.maxsize})"


def _unpickled(maxsize: int, topic: str, client: Client | None, is_named: bool) -> Queue:
    made = Queue(maxsize, name=topic, client=client)
    made._is_named = is_named
    return made


def _wait_of(block: bool, timeout: Duration | None) -> float | None:
    """Return the seconds to wait: 0 not at all, None for ever."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    seconds = seconds_of(timeout, "timeout")
    if seconds < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return seconds


def _dumped(item: Any) -> bytes:
    try:
        ray = sys.modules.get("ray")
        return pickle.dumps(item, protocol=5) if ray is None else _dumped_by_ray(item, ray)
    except (pickle.PicklingError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise BadRequestError(f"the item does not pickle: {error}", field="item") from error


def _dumped_by_ray(item: Any, ray: Any) -> bytes:
    from ray import cloudpickle

    base: Any = cloudpickle.CloudPickler

    class Pickler(base):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, ray.ObjectRef):
                raise BadRequestError("an item holds a reference to an object in Ray: put its value", field="item")
            return super().reducer_override(value)

    stream, made = io.BytesIO(), cast("Any", Pickler)
    made(stream, protocol=5).dump(item)
    return stream.getvalue()


def _loaded(data: bytes) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:  # unpickling runs the constructors of the values' classes
        raise ProtocolError(f"the item cannot be unpickled: {error!r:.500}", field="item") from error


def _empty() -> type[Empty]:
    """Return the class of an error that ``ray.util.queue.Empty`` catches, too, if the program can name that."""
    theirs = sys.modules.get("ray.util.queue")
    return Empty if theirs is None else _joined(Empty, theirs.Empty)


def _full() -> type[Full]:
    theirs = sys.modules.get("ray.util.queue")
    return Full if theirs is None else _joined(Full, theirs.Full)


@functools.cache
def _joined(ours: Any, theirs: type[Exception]) -> Any:
    return type(ours.__name__, (ours, theirs), {"__module__": __name__, "__doc__": ours.__doc__})
