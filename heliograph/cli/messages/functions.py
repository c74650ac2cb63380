"""``helio functions``: the processors of a namespace, their instances and their log."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from heliograph.base.clock import iso_time
from heliograph.base.errors import NotFoundError, TopicNotFoundError
from heliograph.cli.context import CommandContext, command, group

if TYPE_CHECKING:
    from heliograph.processors.registry import ProcessorRecord, ProcessorSummary, Registry

app = group("See and steer processors.")

_Result = TypeVar("_Result")
Name = Annotated[str, typer.Argument(help="Name of the processor.")]
Within = Annotated[str, typer.Option("--in", help="Namespace of its first input.")]
PUBLIC = "public/default"


@command(app, "list")
def list_(context: CommandContext, within: Within = PUBLIC) -> None:
    """Show the processors of a namespace."""

    async def look(registry: Registry) -> list[ProcessorSummary]:
        from heliograph.processors.registry import ProcessorSummary

        return [await ProcessorSummary.of(registry, record) for record in await registry.records()]

    try:
        found = [asdict(each) for each in _run(context, within, look)]
    except NotFoundError:
        found = []
    columns = ("name", "state", "inputs", "instances", "rate", "lag", "keys", "error")
    shown = [
        each | {"inputs": ", ".join(topic.removeprefix("persistent://public/default/") for topic in each["inputs"])}
        for each in found
    ]
    rows = [[each[column] for column in columns] for each in shown]
    context.show({"processors": shown}, columns, rows, f"{len(rows)} processors in {within}")


@command(app)
def show(context: CommandContext, name: Name, within: Within = PUBLIC) -> None:
    """Show a processor and what its instances report."""

    async def look(registry: Registry) -> tuple[ProcessorRecord, list[dict[str, Any]], int | None]:
        from heliograph.processors.registry import lag_of

        record = await registry.known(name)
        return record, await registry.status(name), await lag_of(registry.client, record)

    record, instances, lag = _run(context, within, look, name)
    known = {**record.values(), "at": iso_time(record.at_ms), "lag": lag, "reports": instances}
    lines = [f"{key}: {value}" for key, value in known.items() if key not in ("at_ms", "reports")]
    lines += [
        f"instance {each['instance']}: " + ", ".join(f"{key} {each.get(key)}" for key in _REPORTED)
        for each in instances
    ]
    context.report(known, *lines)


@command(app)
def logs(
    context: CommandContext,
    name: Name,
    within: Within = PUBLIC,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Lines to show, the newest.")] = 100,
) -> None:
    """Show the last lines of a processor's log."""

    async def look(registry: Registry) -> list[tuple[str, str, str]]:
        await registry.known(name)
        found: list[tuple[str, str, str]] = []
        async with registry.client.reader(f"{within}/{name}-log", "earliest", schema=str) as reader:
            while await reader.has_message_available():
                for each in await reader.receive_many(1_000, timeout=5):
                    at = iso_time(each.event_time_ms or each.publish_time_ms)
                    found.append((at, each.properties.get("level", ""), each.value))
                del found[:-lines]
        return found

    found = _run(context, within, look, name)
    shown = [{"at": at, "level": level, "text": text} for at, level, text in found]
    context.report({"lines": shown}, *(f"{at} {level} {text}" for at, level, text in found))


@command(app)
def pause(context: CommandContext, name: Name, within: Within = PUBLIC) -> None:
    """Have a processor handle nothing until it is resumed."""
    _run(context, within, lambda registry: registry.set_paused(name, is_paused=True), name)
    context.report({"name": name, "is_paused": True}, f"{name} pauses")


@command(app)
def resume(context: CommandContext, name: Name, within: Within = PUBLIC) -> None:
    """Have a processor that pauses go on."""
    _run(context, within, lambda registry: registry.set_paused(name, is_paused=False), name)
    context.report({"name": name, "is_paused": False}, f"{name} goes on")


@command(app)
def delete(context: CommandContext, name: Name, within: Within = PUBLIC) -> None:
    """End a processor and delete its states and subscriptions.

    Its letters and its log stay.
    """
    from heliograph.processors.registry import delete as remove

    _run(context, within, lambda registry: remove(registry, name), name)
    context.report({"deleted": name}, f"{name} is deleted")


_REPORTED = ("handled", "rate", "failures", "letters", "late", "keys", "restore_seconds", "partitions", "host", "error")


def _run(
    context: CommandContext,
    namespace: str,
    call: Callable[[Registry], Coroutine[Any, Any, _Result]],
    name: str | None = None,
) -> _Result:
    import asyncio

    async def run() -> _Result:
        from heliograph.processors.registry import RECORDS, Registry, no_processor

        async with context.target.client() as client:
            try:
                await client.admin.partitions(f"persistent://{namespace}/{RECORDS}")  # opening it would create it
            except TopicNotFoundError:
                raise no_processor(namespace, name) from None
            async with Registry(client, namespace) as registry:
                return await call(registry)

    return asyncio.run(run())
