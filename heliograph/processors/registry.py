"""The records of the processors of a namespace: one record each, and what their instances say of themselves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from random import Random
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from heliograph.base.backoff import Backoff
from heliograph.base.clock import wall_ms
from heliograph.base.completion import end_task
from heliograph.base.errors import ConflictError, HeliographError, NotFoundError, NotPermittedError, ProducerFencedError
from heliograph.client.aio.handle import AsyncHandle

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.client.aio.table_view import AsyncTableView

RECORDS, STATUS = "heliograph-processors", "heliograph-processors-status"  # topics of each namespace
COMPACTION_BYTES = 4 << 20
CHANGES_AGAIN = 20  # attempts at a change while others change records, too
CHANGE_MS, CHANGE_MS_MAX = 50.0, 2_000.0  # pause after one that another program has fenced, at most
LOOK_SECONDS, LOOKS = 0.1, 300  # whether the instances of a deleted processor have committed and ended

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ProcessorRecord:
    """A processor, as others see it.

    Attributes:
        name: Name of the processor.
        inputs, outputs: Full names of topics; outputs that it was seen to send to, or that it declares.
        function: Where the function or class is, as ``module:name``.
        instances: Number of its instances in Ray; 0: it runs in plain processes.
        deployment: Id of its last deployment; instances of an earlier one end.
        is_paused: Whether it handles nothing now.
        partitions: Of its inputs, 0 for none.
        at_ms: When it was deployed, in ms since the epoch.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...] = ()
    function: str = ""
    instances: int = 0
    deployment: str = ""
    is_paused: bool = False
    partitions: int = 0
    at_ms: int = 0

    def values(self) -> dict[str, Any]:
        """Return the form in JSON."""
        return {**asdict(self), "inputs": list(self.inputs), "outputs": list(self.outputs)}

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> ProcessorRecord:
        """Return the record of a decoded message; what this release does not know is left out."""
        known = {name: values[name] for name in _FIELDS if name in values}
        return cls(**{**known, "inputs": tuple(known["inputs"]), "outputs": tuple(known.get("outputs", ()))})


_FIELDS = tuple(each.name for each in fields(ProcessorRecord))


class Registry(AsyncHandle):
    """Reads, follows and changes the records of a namespace.

    Opening raises the errors of ``AsyncTableView``.

    Args:
        namespace: ``tenant/namespace``.
    """

    def __init__(self, client: AsyncClient, namespace: str) -> None:
        super().__init__()
        self.client = client
        self.namespace = namespace
        self._records: AsyncTableView[dict[str, Any]] = client.table_view(self._topic(RECORDS), schema=dict)
        self._status: AsyncTableView[dict[str, Any]] = client.table_view(self._topic(STATUS), schema=dict)
        self._reporter = client.producer(self._topic(STATUS), schema=dict)
        self._following: set[Any] = set()

    def record(self, name: str) -> ProcessorRecord | None:
        """Return the record of a processor as it was when it was last heard of; None: there is none."""
        values = self._records.get(name)
        return None if values is None else ProcessorRecord.of(values)

    async def records(self) -> list[ProcessorRecord]:
        """Return the records of all processors, by name."""
        await self.open()
        await self._records.refresh()
        return [ProcessorRecord.of(values) for _, values in sorted(self._records.snapshot().items())]

    async def known(self, name: str) -> ProcessorRecord:
        """Return the record of a processor as of now.

        Raises:
            NotFoundError: There is none of that name.
        """
        await self.records()
        if (record := self.record(name)) is None:
            raise no_processor(self.namespace, name)
        return record

    async def status(self, name: str) -> list[dict[str, Any]]:
        """Return the latest report of each instance of a processor."""
        await self.open()
        await self._status.refresh()
        found = [value for key, value in self._status.snapshot().items() if key.rpartition("/")[0] == name]
        return sorted(found, key=lambda each: str(each.get("instance")))

    async def report(self, name: str, instance: str, values: Mapping[str, Any] | None) -> None:
        """Publish what an instance says of itself; None deletes it."""
        await self.open()
        said = None if values is None else {**values, "instance": instance, "at_ms": wall_ms()}
        await self._reporter.send(said, key=f"{name}/{instance}")

    async def change(self, name: str, change: Callable[[ProcessorRecord | None], ProcessorRecord | None]) -> None:
        """Change a record: no other program changes one at the same time.

        Args:
            change: Gets the record, or None, and returns the new one; None deletes it. Its errors are raised.

        Raises:
            ConflictError: Others change records all the time.
        """
        await self.open()
        pauses = Backoff(
            CHANGE_MS, CHANGE_MS_MAX, Random(), jitter=1
        )  # two that began again at once would meet for ever
        for _ in range(CHANGES_AGAIN):
            async with self.client.producer(
                self._topic(RECORDS), schema=dict, access_mode="exclusive_with_fencing"
            ) as writer:
                await self._records.refresh()
                record = change(self.record(name))
                try:
                    await writer.send(None if record is None else record.values(), key=name)
                except ProducerFencedError:
                    pass
                else:
                    await self._records.refresh()
                    return
            await asyncio.sleep(pauses.pause())
        raise ConflictError("other programs change processors all the time", field="name")

    async def prepare_topics(self) -> None:
        """Have the topics of the records compacted, if the role may say so. For those who deploy."""
        await self.open()
        for name in (RECORDS, STATUS):
            try:
                await self.client.admin.namespaces.set_topic_policies(
                    self._topic(name), {"compaction_threshold_bytes": COMPACTION_BYTES}
                )
            except NotPermittedError as error:
                log.debug("%s is compacted only if its namespace says so: %s", name, error)

    async def set_paused(self, name: str, *, is_paused: bool) -> None:
        """Have a processor pause, or go on.

        Raises:
            NotFoundError: There is none of that name.
        """

        def change(record: ProcessorRecord | None) -> ProcessorRecord:
            if record is None:
                raise no_processor(self.namespace, name)
            return replace(record, is_paused=is_paused)

        await self.change(name, change)

    async def add_outputs(self, name: str, outputs: Iterable[str]) -> None:
        """Note that a processor sends to topics.

        Raises:
            ConflictError: Its outputs would come back to it through other processors.
        """
        new = tuple(outputs)
        known = self.record(name)
        if known is None or set(new) <= set(known.outputs):
            return
        await self.records()

        def change(record: ProcessorRecord | None) -> ProcessorRecord | None:
            if record is None:
                return None
            changed = replace(record, outputs=tuple(sorted({*record.outputs, *new})))
            self.check_cycle(changed)
            return changed

        await self.change(name, change)

    def check_cycle(self, record: ProcessorRecord) -> None:
        """Refuse a processor whose outputs come back to its inputs through others.

        Raises:
            ConflictError: Names the topics on the way.
        """
        sends: dict[str, set[str]] = {}
        others = [ProcessorRecord.of(each) for each in self._records.snapshot().values()]
        for each in (*(other for other in others if other.name != record.name), record):
            for topic in each.inputs:
                sends.setdefault(topic, set()).update(each.outputs)
        paths: list[tuple[str, ...]] = [(topic,) for topic in record.outputs]
        seen = set(record.outputs)
        while paths:
            path = paths.pop()
            if path[-1] in record.inputs:
                raise ConflictError(f"the outputs of {record.name} come back: {' -> '.join(path)}", field="outputs")
            for topic in sends.get(path[-1], set()) - seen:
                seen.add(topic)
                paths.append((*path, topic))

    def follow(self, name: str, told: Callable[[ProcessorRecord | None], None]) -> Callable[[], Any]:
        """Call ``told`` at each change of a record. Return what ends that, to be awaited."""

        async def follow() -> None:
            async for key, values in self._records.updates():
                if key == name:
                    told(None if values is None else ProcessorRecord.of(values))

        following = asyncio.get_running_loop().create_task(follow())
        self._following.add(following)

        async def end() -> None:
            self._following.discard(following)
            await end_task(following)

        return end

    def _topic(self, name: str) -> str:
        return f"persistent://{self.namespace}/{name}"

    @override
    async def _do_open(self) -> None:
        await self._records.open()
        await self._status.open()

    @override
    async def _do_close(self) -> None:
        for following in list(self._following):
            await end_task(following)
        for handle in (self._records, self._status, self._reporter):
            await handle.close()


@dataclass(frozen=True, slots=True)
class ProcessorSummary:
    """A processor and what its instances report, in a line.

    Attributes:
        state: ``paused``, ``running`` or ``stopped``.
        instances: How many instances run.
        rate: Messages a second of the running instances.
        lag: Messages of the inputs that are not handled, as of some seconds ago; None: an input does not tell.
        keys: How many keys have a state.
        error: The last error of an instance, or None.
    """

    name: str
    state: str
    inputs: tuple[str, ...]
    instances: int
    rate: float
    lag: int | None
    keys: int
    error: str | None

    @classmethod
    async def of(cls, registry: Registry, record: ProcessorRecord) -> ProcessorSummary:
        """Ask for the reports of the instances, and the brokers for the lag."""
        reports = await registry.status(record.name)
        running = [each for each in reports if each.get("is_running")]
        return cls(
            record.name,
            "paused" if record.is_paused else "running" if running else "stopped",
            record.inputs,
            len(running),
            round(sum(each.get("rate", 0.0) for each in running), 1),
            await lag_of(registry.client, record),
            sum(each.get("keys", 0) for each in reports),
            next((each["error"] for each in reports if each.get("error")), None),
        )


async def lag_of(client: AsyncClient, record: ProcessorRecord) -> int | None:
    """Return how many messages of the inputs of a processor are not handled, as of some seconds ago.

    None: the caller may not ask for an input, or its broker does not answer. Other processors are told all the same.
    """
    lag = 0
    for topic in record.inputs:
        try:
            stats = await client.admin.topic_stats(topic)
        except NotFoundError:
            continue
        except HeliographError as error:
            log.debug("the lag of %s is not known: %s", record.name, error)
            return None
        lag += stats["subscriptions"].get(record.name, {}).get("backlogMessages", 0)
    return lag


async def delete(registry: Registry, name: str) -> None:
    """Delete the record of a processor, wait until its instances have ended, and delete its states and subscriptions.

    An instance that does not end in time, because it is dead or cut off, does no harm later: its state is gone.

    Raises:
        NotFoundError: There is no processor of that name.
    """
    found: list[ProcessorRecord] = []

    def forget(record: ProcessorRecord | None) -> None:
        if record is None:
            raise no_processor(registry.namespace, name)
        found.append(record)

    running = {each["instance"] for each in await registry.status(name) if each.get("is_running")}
    await registry.change(name, forget)
    for _ in range(LOOKS):
        if not any(each["instance"] in running for each in await registry.status(name)):
            break
        await asyncio.sleep(LOOK_SECONDS)
    for each in await registry.status(name):
        await registry.report(name, each["instance"], None)
    admin = registry.client.admin
    for topic in found[-1].inputs:
        try:
            await admin.delete_subscription(topic, name, force=True)
        except NotFoundError:
            continue
    try:
        await admin.delete_topic(f"persistent://{registry.namespace}/{name}-state", force=True)
    except NotFoundError:
        return


def no_processor(namespace: str, name: str | None = None) -> NotFoundError:
    """Return the error for a name that no processor of a namespace has, or for a namespace that has none."""
    if name is None:
        return NotFoundError(f"{namespace} has no processor", field="namespace")
    return NotFoundError(f"there is no processor {name!r} in {namespace}", field="name")
