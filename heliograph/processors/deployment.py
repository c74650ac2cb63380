"""``heliograph.process``: a processor of topics, to be run here or deployed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

from heliograph.base.clock import Duration, wall_ms
from heliograph.base.errors import BadRequestError, ConflictError
from heliograph.client.aio.client import AsyncClient
from heliograph.client.options import build
from heliograph.client.schemas.choice import schema_of
from heliograph.client.schemas.schema import Schema, SchemaLike
from heliograph.processors.instance import ProcessorInstance, prepare
from heliograph.processors.logic import Logic, Processor, check_kind, made_of
from heliograph.processors.options import ProcessorOptions, Start
from heliograph.processors.registry import ProcessorRecord, Registry
from heliograph.protocol.topic_name import TopicName

if TYPE_CHECKING:
    from heliograph.client.sync.client import Client

PLAIN = "plain"  # the deployment of all that runs in plain processes
RAY_OPTIONS = {
    "num_cpus",
    "num_gpus",
    "memory",
    "resources",
    "accelerator_type",
    "runtime_env",
    "scheduling_strategy",
}  # of actors, which are passed on

Topics: TypeAlias = str | Sequence[str]
Schemas: TypeAlias = "SchemaLike[Any] | Mapping[str, SchemaLike[Any]]"


class ProcessorDeployment:
    """A processor with its topics and options: what ``heliograph.process`` returns. It is picklable."""

    def __init__(
        self,
        kind: type[Processor] | Callable[..., Any],
        options: ProcessorOptions,
        inputs: Mapping[str, Schema[Any] | None],
        outputs: Mapping[str, Schema[Any] | None],
        client: Client | None,
        ray_options: Mapping[str, Any],
    ) -> None:
        self.kind = kind
        self.options = options
        self.inputs = inputs
        self.outputs = outputs
        self.client = client
        self.ray_options = ray_options

    def run(self) -> None:
        """Run all partitions in this process, until Ctrl-C; then commit what was handled. Errors are those of
        ``work``."""
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(self.work())

    async def work(self, instance: int | None = None) -> None:
        """Run in this process until this is cancelled; then commit what was handled.

        Another process that runs the same partitions later takes them over.

        Args:
            instance: Run only the partitions of this instance; None: all.

        Raises:
            ConflictError: A processor of that name has other inputs, outputs come back through other processors, or
                the inputs have different numbers of partitions.
            ProducerFencedError: Another process has taken the partitions over.
            BadRequestError: The instance is out of range, or an output has no valid form.
            HeliographError: The cluster refuses a request of the processor.
        """
        if instance is not None and not 0 <= instance < self.options.instances:
            raise BadRequestError(
                f"instance is {instance!r}", field="instance", limit=f"0 to {self.options.instances - 1}"
            )
        client = await self.connected()
        try:
            await self.register(client, PLAIN, instances=0)
            await self.work_as(client, instance, PLAIN)
        finally:
            await asyncio.shield(client.close())

    def deploy(self) -> None:
        """Run the processor in Ray: as many detached actors as it has instances, which outlive this program.

        This returns once the deployment is recorded; the actors begin as soon as Ray has room for them. Actors of an
        earlier deployment of the same name commit what they handled and end, so a new version, or another number of
        instances, goes on where they were. ``helio functions delete`` ends a processor.

        Raises:
            BadRequestError: The actors cannot import the function, or Ray refuses the options of actors.
                The deployment before goes on.
            ResourceError: Ray is not installed.
            RunningLoopError: An event loop runs in this thread.
            ConflictError, HeliographError: As ``work`` raises them.
        """
        from heliograph.processors.actors import deploy

        deploy(self)

    async def registered(self, deployment: str) -> None:
        """Record a deployment in Ray; errors are those of ``work``."""
        client = await self.connected()
        try:
            await self.register(client, deployment, instances=self.options.instances)
        finally:
            await asyncio.shield(client.close())

    async def work_as(self, client: AsyncClient, instance: int | None, deployment: str) -> None:
        """Run an instance of a deployment that is recorded, until this is cancelled; errors are those of ``work``."""

        def make() -> Logic:
            return Logic(made_of(self.kind), self.inputs, self.outputs)

        running = ProcessorInstance(client, self.options, make, instance, deployment)
        task = asyncio.ensure_future(running.run())
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            running.stop()
            await asyncio.wait([task])
            if not task.cancelled() and task.exception() is not None:
                task.result()
            raise

    async def register(self, client: AsyncClient, deployment: str, *, instances: int) -> None:
        """Record the processor, after the topics that it needs were made; errors are those of ``work``."""
        partitions = await prepare(client, self.options)
        async with Registry(client, self.options.namespace) as registry:
            await registry.prepare_topics()

            def change(known: ProcessorRecord | None) -> ProcessorRecord:
                if known is not None and known.inputs != self.options.inputs:
                    raise ConflictError(
                        f"the processor {self.options.name} reads {', '.join(known.inputs)}: "
                        "delete it first, or choose another name",
                        field="name",
                    )
                if known is not None and known.instances and not instances:
                    raise ConflictError(
                        f"the processor {self.options.name} is deployed in Ray: delete it first", field="name"
                    )
                record = ProcessorRecord(
                    self.options.name,
                    self.options.inputs,
                    self.options.outputs or (() if known is None else known.outputs),
                    f"{self.kind.__module__}:{self.kind.__qualname__}",
                    instances,
                    deployment,
                    partitions=partitions,
                    at_ms=wall_ms(),
                )
                registry.check_cycle(record)
                return record if known is None else replace(record, is_paused=known.is_paused)

            await registry.change(self.options.name, change)

    async def connected(self) -> AsyncClient:
        """Return a client of this event loop, to be closed by the caller; errors are those of ``connect_async``."""
        if self.client is not None:
            return AsyncClient(self.client.options)
        from heliograph.client.access import connect_async

        return await connect_async()

    def __repr__(self) -> str:
        return f"ProcessorDeployment({self.options.name}, {', '.join(self.options.inputs)})"


def process(
    topics: Topics,
    kind: type[Processor] | Callable[..., Any],
    *,
    name: str,
    schema: Schemas = None,
    outputs: Sequence[str] | Mapping[str, SchemaLike[Any]] | None = None,
    instances: int = 1,
    commit_every: Duration = 1.0,
    start: Start = "earliest",
    client: Client | None = None,
    **options: Any,
) -> ProcessorDeployment:
    """Return a processor of topics: ``deploy()`` starts it in Ray, ``run()`` and ``work()`` run it in this process.

    Args:
        topics: One input or several. Several have the same number of partitions, so that a key is in the same one.
        kind: A subclass of ``heliograph.Processor``, or a function of a message and a context.
        name: Name of the processor; the same name again goes on with the same states.
        schema: Schema of the values of the inputs, as for ``client.consumer``; or that by topic.
        outputs: The topics that it may send to, with their schemas if this is a mapping; None: any, without a schema.
        instances: Processes that share the partitions.
        commit_every: Seconds from the first message of a group to its commit, with which its outputs are published.
        start: ``earliest`` or ``latest``: where inputs are read from at first.
        client: The client whose cluster is used; None: that of ``heliograph.connect()``.
        options: Further fields of ``heliograph.processors.options.ProcessorOptions``, such as ``retries`` (3),
            ``batch`` (64), ``state_bytes_max`` (64 KiB), ``keys_max`` (1,000,000); and options of actors:
            ``num_cpus`` (1), ``num_gpus``, ``memory``, ``resources``, ``accelerator_type``, ``runtime_env``,
            ``scheduling_strategy``.

    Raises:
        InvalidConfigError, InvalidTopicNameError: An option is unknown or out of range.
        BadRequestError: ``kind`` is no processor, its handlers do not fit together, or an output is an input.
    """
    if not isinstance(topics, str | list | tuple):
        raise BadRequestError(f"the inputs are {topics!r:.80}, no topic and no list of topics", field="inputs")
    if isinstance(outputs, str):
        raise BadRequestError(f"the outputs are the text {outputs!r:.80}: give a list", field="outputs")
    inputs = tuple(str(TopicName.parse(each)) for each in ([topics] if isinstance(topics, str) else topics))
    read = _by_topic(schema) if isinstance(schema, Mapping) else dict.fromkeys(inputs, schema_of(schema))
    written = (
        None if outputs is None else _by_topic(outputs if isinstance(outputs, Mapping) else dict.fromkeys(outputs))
    )
    ray_options = {each: options.pop(each) for each in RAY_OPTIONS & options.keys()}
    built = build(
        ProcessorOptions,
        name=name,
        inputs=inputs,
        outputs=None if written is None else tuple(written),
        instances=instances,
        commit_every=commit_every,
        start=start,
        **options,
    )
    check_kind(kind)
    return ProcessorDeployment(kind, built, read, written or {}, client, ray_options)


def _by_topic(given: Mapping[str, SchemaLike[Any]]) -> dict[str, Schema[Any] | None]:
    return {str(TopicName.parse(topic)): schema_of(each) for topic, each in given.items()}
