"""A store of training steps: values by key, from any number of writers and readers."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from heliograph.base.clock import Duration, seconds_of
from heliograph.base.errors import BadRequestError, HeliographError, TopicNotFoundError, ValueNotFoundError
from heliograph.client.access import own_client
from heliograph.client.sync.handle import making, refuse_on_running_loop, threads
from heliograph.pipelines.steps.records import StepStates, check_keys, check_step, record
from heliograph.pipelines.steps.step import OpenStep, Records
from heliograph.pipelines.steps.values import Location
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.sync.client import Client

VALUE_BYTES_MAX = 1 << 30  # I15
GET_BYTES_MAX = 4 << 30  # of all values of one get  # I15
OPEN_STEPS_MAX = 32  # in a process, beside those that calls use now  # I15
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.005, 0.2  # between two looks for keys that are waited for

_Result = TypeVar("_Result")
_Call = Callable[["_Store"], Coroutine[Any, Any, _Result]]


class StepStore:
    """Values of training steps, which are put and read by key and dropped by step.

    A value is anything that pickles: a role that may publish to the topics may run code in programs that read values.
    A put that has returned is durable, and seen by every later call of any process; a put of a writer that dies before
    is not seen. Where an event loop runs, use the forms that end in ``_async``; the others raise RunningLoopError.

    Calls raise the errors of ``heliograph.connect`` and of the handles, such as ConnectionLostError; after one of a put
    its values may be stored or not. The store can be pickled: pass it to tasks and actors of Ray.

    Args:
        name: full or short name; the topics of the store begin with it.
        client: the client of the cluster; None: that of ``heliograph.connect()``, made at the first use.
        value_bytes_max: bound of one value, in bytes.
        get_bytes_max: bound of the values of one get, in bytes: they are in memory together.

    Raises:
        InvalidTopicNameError: the name has no valid form.
        BadRequestError: a bound is none.
    """

    def __init__(
        self,
        name: str,
        client: Client | None = None,
        *,
        value_bytes_max: int = VALUE_BYTES_MAX,
        get_bytes_max: int = GET_BYTES_MAX,
    ) -> None:
        self.name = str(TopicName.parse(name))
        self.client = client
        self.value_bytes_max, self.get_bytes_max = value_bytes_max, get_bytes_max
        for field, bound in (("value_bytes_max", value_bytes_max), ("get_bytes_max", get_bytes_max)):
            if not isinstance(bound, int) or bound < 1:
                raise BadRequestError(f"{field} is {bound!r}", field=field, limit="1 byte or more")
        self._made: tuple[int, _Store] | None = None  # of the process with this id

    def begin(self, step: int) -> None:
        """Make a step the newest one, which ``put`` without a step writes to, in all processes.

        Raises:
            StepDroppedError: it was dropped.
        """
        self._run(lambda store: store.begin(step))

    async def begin_async(self, step: int) -> None:
        """Make a step the newest one, as ``begin`` does."""
        await self._await(lambda store: store.begin(step))

    def newest(self) -> int | None:
        """Return the newest step that began, None before the first one."""
        return self._run(lambda store: store.newest())

    async def newest_async(self) -> int | None:
        """Return the newest step, as ``newest`` does."""
        return await self._await(lambda store: store.newest())

    def put(self, values: Mapping[str, Any], step: int | None = None) -> dict[str, str]:
        """Store values, each in place of an older one of its key.

        Readers see the values of up to several thousand keys together, or none of them.

        Args:
            step: the step that they are of; None: the newest one, or 0 before the first one began.

        Returns:
            The location of each value, which ``get`` takes to read it without the step's index.

        Raises:
            StepDroppedError: the step was dropped before, or meanwhile.
            MessageTooLargeError: a value is above ``value_bytes_max``; no key of the call has a new value.
            BadRequestError: a key or a value is not acceptable.
        """
        return self._run(lambda store: store.put(values, step))

    async def put_async(self, values: Mapping[str, Any], step: int | None = None) -> dict[str, str]:
        """Store values, as ``put`` does."""
        return await self._await(lambda store: store.put(values, step))

    def get(self, keys: Sequence[str], step: int, timeout: Duration = 0) -> list[Any]:
        """Return the values of keys, in their order.

        Args:
            timeout: seconds, or a timedelta, to wait for keys that have no value yet.

        Raises:
            ValueNotFoundError: a key has no value, or had none in time; names it.
            StepDroppedError: the step was dropped.
            BadRequestError: the values are above ``get_bytes_max`` together, or an argument is not acceptable.
            ChecksumError, ProtocolError: a value is damaged, or cannot be unpickled here.
        """
        return self._run(lambda store: store.get(keys, step, seconds_of(timeout, "timeout")))

    async def get_async(self, keys: Sequence[str], step: int, timeout: Duration = 0) -> list[Any]:
        """Return the values of keys, as ``get`` does."""
        return await self._await(lambda store: store.get(keys, step, seconds_of(timeout, "timeout")))

    def get_at(self, locations: Sequence[str]) -> list[Any]:
        """Return the values at locations that ``put`` returned, in their order; also values that were cleared since.

        Raises:
            As ``get``.
        """
        return self._run(lambda store: store.get_at(locations))

    async def get_at_async(self, locations: Sequence[str]) -> list[Any]:
        """Return the values at locations, as ``get_at`` does."""
        return await self._await(lambda store: store.get_at(locations))

    def keys(self, step: int) -> list[str]:
        """Return the keys of a step, in the order of their first puts.

        Raises:
            StepDroppedError: the step was dropped.
        """
        return self._run(lambda store: store.keys(step))

    async def keys_async(self, step: int) -> list[str]:
        """Return the keys of a step, as ``keys`` does."""
        return await self._await(lambda store: store.keys(step))

    def find(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the location of the value of each key in the newest step that has one, without unknown keys."""
        return self._run(lambda store: store.find(keys))

    async def find_async(self, keys: Sequence[str]) -> dict[str, str]:
        """Return the locations of values, as ``find`` does."""
        return await self._await(lambda store: store.find(keys))

    def clear(self, keys: Sequence[str], step: int) -> None:
        """Delete values. A step that has none left, and is older than the newest one, is dropped.

        Raises:
            StepDroppedError: the step was dropped.
        """
        self._run(lambda store: store.clear(keys, step))

    async def clear_async(self, keys: Sequence[str], step: int) -> None:
        """Delete values, as ``clear`` does."""
        await self._await(lambda store: store.clear(keys, step))

    def steps(self) -> list[int]:
        """Return the steps that have topics and were not dropped, in their order."""
        return self._run(lambda store: store.steps())

    async def steps_async(self) -> list[int]:
        """Return the steps, as ``steps`` does."""
        return await self._await(lambda store: store.steps())

    def drop(self, step: int) -> None:
        """Delete a step with its ledgers, for good. It needs the right to delete topics.

        Raises:
            ConflictError: too many steps were dropped one by one; names the bound.
        """
        self._run(lambda store: store.drop([step]))

    async def drop_async(self, step: int) -> None:
        """Delete a step, as ``drop`` does."""
        await self._await(lambda store: store.drop([step]))

    def drop_before(self, step: int) -> None:
        """Delete all steps below one with their ledgers, for good. It needs the right to delete topics."""
        self._run(lambda store: store.drop_before(step))

    async def drop_before_async(self, step: int) -> None:
        """Delete all steps below one, as ``drop_before`` does."""
        await self._await(lambda store: store.drop_before(step))

    def close(self) -> None:
        """Close the handles of this process. The next call opens new ones."""
        self._run(lambda store: store.close())
        self._made = None

    async def close_async(self) -> None:
        """Close the handles, as ``close`` does."""
        await self._await(lambda store: store.close())
        self._made = None

    def run_anywhere(self, call: _Call[_Result]) -> _Result:
        """Run a call and block, even on a thread whose event loop runs, for callers that do so on purpose."""
        return threads.current().run(call(self._store()))

    def _run(self, call: _Call[_Result]) -> _Result:
        refuse_on_running_loop(None, "a blocking call of a store", "its form that ends in _async")
        return self.run_anywhere(call)

    async def _await(self, call: _Call[_Result]) -> _Result:
        store = await asyncio.to_thread(self._store) if self.client is None else self._store()
        return await threads.current().wait(call(store))

    def _store(self) -> _Store:
        made = self._made
        if made is not None and made[0] == os.getpid():
            return made[1]
        client = own_client() if self.client is None else self.client
        with making:
            if self._made is None or self._made[0] != os.getpid():
                self._made = os.getpid(), _Store(client, self.name, self.value_bytes_max, self.get_bytes_max)
            return self._made[1]

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.name, self.client, self.value_bytes_max, self.get_bytes_max)

    def __repr__(self) -> str:
        return f"StepStore({self.name})"


def _unpickled(name: str, client: Client | None, value_bytes_max: int, get_bytes_max: int) -> StepStore:
    return StepStore(name, client, value_bytes_max=value_bytes_max, get_bytes_max=get_bytes_max)


class _Store:
    """The store of one process; its calls run on the loop thread of the clients."""

    def __init__(self, client: Client, name: str, value_bytes_max: int, get_bytes_max: int) -> None:
        self._client = client.aio()
        self._name = TopicName.parse(name)
        self._value_bytes_max, self._get_bytes_max = value_bytes_max, get_bytes_max
        self._states = StepStates()
        self._records = Records(self._client, f"{name}-steps", self._states.add)
        self._open: dict[int, OpenStep] = {}  # the least recently used first

    async def begin(self, step: int) -> None:
        await self._check_there(check_step(step))
        await self._records.publish([record(begin=step)])

    async def newest(self) -> int | None:
        await self._look()
        return self._states.newest

    async def put(self, values: Mapping[str, Any], step: int | None) -> dict[str, str]:
        keys = check_keys([*values])
        await self._look()
        number = check_step(step) if step is not None else self._states.newest or 0
        self._states.check_there(number)
        if not keys:
            return {}
        try:
            async with self._step(number) as opened:
                stored = await opened.put(keys, [*values.values()], self._value_bytes_max)
        except HeliographError:
            await self._check_there(number)  # its topics were deleted under the call
            raise
        await self._look()
        if self._states.is_dropped(number):
            await self._delete([number])  # which the put may have made again
            self._states.check_there(number)
        return dict(zip(keys, map(str, stored), strict=True))

    async def get(self, keys: Sequence[str], step: int, seconds: float) -> list[Any]:
        named = check_keys(keys)
        end, pause = asyncio.get_running_loop().time() + seconds, PAUSE_SECONDS
        while True:
            await self._check_there(check_step(step))
            async with self._step(step) as opened:
                found = await opened.locations(named)
            missing = [key for key in named if key not in found]
            if not missing:
                return await self._read(named, [found[key] for key in named])
            left = end - asyncio.get_running_loop().time()
            if left <= 0:
                await self._check_there(step)  # it may have been dropped meanwhile
                told = f"step {step} has no value of {missing[0]!r:.200}, and {len(missing) - 1} other keys"
                raise ValueNotFoundError(told, field="keys")
            await asyncio.sleep(min(pause, left))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def get_at(self, locations: Sequence[str]) -> list[Any]:
        places = [Location.parse(text) for text in locations]
        await self._look()
        return await self._read([*locations], places)

    async def _read(self, keys: Sequence[str], places: Sequence[Location]) -> list[Any]:
        total = sum(one.size for one in places)
        if total > self._get_bytes_max:
            limit = f"{self._get_bytes_max} bytes"
            raise BadRequestError(f"the values have {total} bytes: ask for fewer", field="keys", limit=limit)
        found: list[Any] = [None] * len(places)
        for step in dict.fromkeys(one.step for one in places):
            self._states.check_there(step)
            mine = [number for number, one in enumerate(places) if one.step == step]
            async with self._step(step) as opened:
                try:
                    values = await opened.values([keys[at] for at in mine], [places[at] for at in mine])
                except HeliographError:
                    await self._check_there(step)
                    raise
            for at, value in zip(mine, values, strict=True):
                found[at] = value
        return found

    async def keys(self, step: int) -> list[str]:
        await self._check_there(check_step(step))
        async with self._step(step) as opened:
            return await opened.keys()

    async def find(self, keys: Sequence[str]) -> dict[str, str]:
        missing, found = check_keys(keys), dict[str, str]()
        for step in reversed(await self.steps()):
            if not missing:
                break
            async with self._step(step) as opened:
                found |= {key: str(at) for key, at in (await opened.locations(missing)).items()}
            missing = [key for key in missing if key not in found]
        return found

    async def clear(self, keys: Sequence[str], step: int) -> None:
        named = check_keys(keys)
        await self._check_there(check_step(step))
        async with self._step(step) as opened:
            is_empty = await opened.clear(named)
        await self._look()
        if self._states.is_dropped(step):
            await self._delete([step])  # which the record may have made again
            self._states.check_there(step)
        if is_empty and step < (self._states.newest or 0):
            await self.drop([step])

    async def steps(self) -> list[int]:
        await self._look()
        return sorted({step for step in await self._with_topics() if not self._states.is_dropped(step)})

    async def drop(self, steps: Sequence[int]) -> None:
        named = [check_step(step) for step in steps]
        await self._look()
        self._states.check_room()
        await self._records.publish([record(drop=named)])
        await self._delete_dropped()

    async def drop_before(self, step: int) -> None:
        await self._records.publish([record(drop_before=check_step(step))])
        await self._delete_dropped()

    async def close(self) -> None:
        for opened in [*self._open.values()]:
            await opened.close()
        self._open.clear()
        await self._records.close()

    async def _look(self) -> None:
        """Read the new records of all steps."""
        with contextlib.suppress(TopicNotFoundError):  # no step ever began or was dropped
            await self._records.refresh()

    async def _check_there(self, step: int) -> None:
        await self._look()
        self._states.check_there(step)

    async def _delete_dropped(self) -> None:
        await self._look()
        await self._delete(step for step in await self._with_topics() if self._states.is_dropped(step))

    async def _delete(self, steps: Iterable[int]) -> None:
        for step in {*steps}:
            opened = self._open.pop(step, None)
            if opened is not None:
                await opened.close()
            for topic in self._topics_of(step):
                with contextlib.suppress(TopicNotFoundError):
                    await self._client.admin.delete_topic(topic, force=True)

    async def _with_topics(self) -> set[int]:
        """Return all steps that have a topic. A deletion that was interrupted may leave one of the two."""
        found = set()
        for topic in self._topics_of(""):
            local = TopicName.parse(topic).local_name
            listed = await self._client.admin.list_topics(self._name.namespace, prefix=local)
            ends = [TopicName.parse(str(one["name"])).local_name.removeprefix(local) for one in listed]
            found |= {int(end) for end in ends if end.isdecimal()}
        return found

    def _topics_of(self, step: int | str) -> tuple[str, str]:
        return f"{self._name}-step-{step}", f"{self._name}-index-{step}"

    @contextlib.asynccontextmanager
    async def _step(self, step: int) -> AsyncIterator[OpenStep]:
        opened = self._open.pop(step, None) or OpenStep(self._client, *self._topics_of(step), step)
        self._open[step] = opened
        opened.users += 1
        try:
            yield opened
        finally:
            opened.users -= 1
            unused = [one for one in self._open.values() if not one.users]
            for old in unused[: max(0, len(self._open) - OPEN_STEPS_MAX)]:
                del self._open[old.step]
                await old.close()
