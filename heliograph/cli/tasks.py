"""``helio tasks``: the jobs of a queue, its letters, and a worker in this process."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from heliograph.base.clock import iso_time
from heliograph.base.errors import BadRequestError, NotFoundError
from heliograph.cli.context import CommandContext, command, group

if TYPE_CHECKING:
    from heliograph.client.aio.client import AsyncClient
    from heliograph.tasks.letters import Letters
    from heliograph.tasks.records import JobRecord
    from heliograph.tasks.schedule import Schedule
    from heliograph.tasks.task import Task

app = group("See and move the jobs of a queue of tasks.")

_Result = TypeVar("_Result")
Queue = Annotated[str, typer.Argument(help="Topic of the queue.")]
Ids = Annotated[list[str] | None, typer.Argument(help="Ids of jobs.")]
All = Annotated[bool, typer.Option("--all", help="All letters of the queue.")]


@command(app, "list")
def list_(
    context: CommandContext,
    queue: Queue,
    state: Annotated[str | None, typer.Option(help="Only jobs in this state, such as FAILURE.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=1, help="Jobs to show, newest first.")] = 20,
) -> None:
    """Show the number of jobs in each state, and the newest jobs."""
    from heliograph.tasks.records import JobState

    if state is not None and state.upper() not in JobState.__members__:
        raise BadRequestError(f"{state!r} is no state", field="state", limit=", ".join(JobState))
    found = _run(context, queue, lambda client: _states(client, queue))
    counts = {each.value: sum(record.state is each for record in found.values()) for each in JobState}
    shown = [(id, record) for id, record in found.items() if state is None or record.state == state.upper()]
    shown.sort(key=lambda each: each[1].at_ms, reverse=True)
    rows = [_row(id, record) for id, record in shown[:lines]]
    columns = ("id", "task", "state", "attempt", "worker", "at", "note")
    title = ", ".join(f"{count} {name}" for name, count in counts.items() if count) or "no job has a state"
    context.show(
        {"states": counts, "jobs": [dict(zip(columns, row, strict=True)) for row in rows]}, columns, rows, title
    )


@command(app)
def show(context: CommandContext, queue: Queue, id: Annotated[str, typer.Argument(help="Id of a job.")]) -> None:
    """Show the record of a job, and its letter."""

    async def look(client: AsyncClient) -> tuple[JobRecord | None, Any]:
        record = (await _states(client, queue)).get(id)
        letters = await _letters(client, queue).found()
        return record, next((letter for letter in letters if letter.id == id), None)

    record, letter = _run(context, queue, look)
    if record is None and letter is None:
        raise NotFoundError(f"nothing is known of the job {id!r}: it waits, has expired, or never was", field="id")
    known = (
        {}
        if record is None
        else dict(zip(("id", "task", "state", "attempt", "worker", "at", "note"), _row(id, record), strict=True))
    )
    if record is not None:
        known |= {"key": record.key, "parent": record.parent, "progress": record.progress, "crashes": record.crashes}
    if letter is not None:
        known |= {
            "reason": letter.reason,
            "attempts": letter.attempts,
            "arguments": letter.arguments,
            "traceback": letter.traceback,
        }
    context.report(known, *(f"{name}: {value}" for name, value in known.items() if value not in (None, "")))


@command(app)
def retry(context: CommandContext, queue: Queue, ids: Ids = None, all_: All = False) -> None:
    """Submit jobs again that failed for good."""
    wanted = _wanted(ids, all_)
    done = _run(context, queue, lambda client: _letters(client, queue).submit_again(wanted))
    context.report({"submitted": done}, f"{len(done)} job{'' if len(done) == 1 else 's'} submitted again")


@command(app)
def purge(context: CommandContext, queue: Queue, ids: Ids = None, all_: All = False) -> None:
    """Delete letters of jobs that failed for good."""
    wanted = _wanted(ids, all_)
    done = _run(context, queue, lambda client: _letters(client, queue).purge(wanted))
    context.report({"purged": done}, f"{len(done)} letter{'' if len(done) == 1 else 's'} deleted")


@command(app)
def schedules(context: CommandContext, queue: Queue) -> None:
    """Show the schedules of a queue, and when they submit next."""
    from heliograph.base.clock import wall_ms

    found = _run(context, queue, lambda client: _schedules(client, queue))
    rows = [
        [
            name,
            each.task,
            each.cron,
            each.zone,
            iso_time(submitted) if submitted else "",
            iso_time(each.next_ms(wall_ms())),
        ]
        for name, (each, submitted) in sorted(found.items())
    ]
    columns = ("name", "task", "cron", "zone", "last", "next")
    context.show({"schedules": [dict(zip(columns, row, strict=True)) for row in rows]}, columns, rows)


@command(app)
def unschedule(
    context: CommandContext, queue: Queue, name: Annotated[str, typer.Argument(help="Name of a schedule.")]
) -> None:
    """Delete a schedule; jobs that it has submitted stay."""

    async def delete(client: AsyncClient) -> None:
        from heliograph.tasks.options import TaskOptions
        from heliograph.tasks.scheduler import Schedules

        async with Schedules(client, TaskOptions(queue)) as held:
            await held.delete(name)

    _run(context, queue, delete)
    context.report({"deleted": name}, f"the schedule {name} of {queue} is deleted")


@command(app)
def work(
    context: CommandContext,
    tasks: Annotated[list[str], typer.Argument(help="module:function of a task; several of one queue.")],
) -> None:
    """Run jobs in this process until Ctrl-C.

    Ctrl-C and SIGTERM let the jobs in hand end.
    """
    import asyncio

    found = [_task_of(name) for name in tasks]

    async def serve() -> None:
        from heliograph.tasks.worker import TaskWorker

        async with context.target.client() as client:
            working = asyncio.ensure_future(TaskWorker(client, found).run())
            for number in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(number, working.cancel)
            context.output.progress(f"working on {found[0].options.queue}; Ctrl-C ends it")
            with contextlib.suppress(asyncio.CancelledError):
                await working

    asyncio.run(serve())


def _run(context: CommandContext, queue: str, call: Callable[[AsyncClient], Coroutine[Any, Any, _Result]]) -> _Result:
    import asyncio

    from heliograph.tasks.options import TaskOptions

    async def run() -> _Result:
        async with context.target.client() as client:
            # TopicNotFoundError for a name that no task has: opening its topics would create them.
            await client.admin.partitions(TaskOptions(queue).states_topic)
            return await call(client)

    return asyncio.run(run())


async def _states(client: AsyncClient, queue: str) -> dict[str, JobRecord]:
    from heliograph.tasks.options import TaskOptions
    from heliograph.tasks.session import JobStates

    async with JobStates(client, TaskOptions(queue)) as view:
        return view.snapshot()


async def _schedules(client: AsyncClient, queue: str) -> dict[str, tuple[Schedule, int]]:
    from heliograph.tasks.options import TaskOptions
    from heliograph.tasks.scheduler import Schedules

    async with Schedules(client, TaskOptions(queue)) as held:
        return {name: (each, held.submitted_ms(name)) for name, each in held.all().items()}


def _letters(client: AsyncClient, queue: str) -> Letters:
    from heliograph.tasks.letters import Letters

    return Letters(client, queue)


def _row(id: str, record: JobRecord) -> list[Any]:
    return [id, record.task, record.state.value, record.attempt, record.worker, iso_time(record.at_ms), record.note]


def _wanted(ids: list[str] | None, is_all: bool) -> list[str] | None:
    if bool(ids) is is_all:
        raise BadRequestError("name jobs, or give --all", field="ids")
    return ids or None


def _task_of(name: str) -> Task[Any, Any]:
    from heliograph.tasks.task import Task

    module, _, function = name.partition(":")
    if not module or not function:
        raise BadRequestError(f"{name!r} is not of the form module:function", field="tasks")
    sys.path.insert(0, os.getcwd())  # as `python -m` does
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise BadRequestError(f"{name} cannot be imported: {error}", field="tasks") from error
    if not isinstance(found, Task):
        raise BadRequestError(f"{name} is no task: decorate it with heliograph.task", field="tasks")
    return found
