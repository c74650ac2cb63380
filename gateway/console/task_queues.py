"""The queues of durable tasks: what waits, what runs, and the letters of what failed, which are retried or purged.

It is what ``helio tasks`` does, by the caller's own connections, so brokers check the rights. No pickle is loaded.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel, Field
from starlette.requests import Request

from heliograph.base.errors import HeliographError, NotFoundError, RequestTimeoutError
from heliograph.gateway.console.topics import ASKED_AT_ONCE_MAX, TopicSearch
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, body_schema, parsed, read_body
from heliograph.protocol.topic_name import TopicName
from heliograph.tasks.letters import Letter, Letters
from heliograph.tasks.options import PRIORITIES_MAX, SUBSCRIPTION, TaskOptions
from heliograph.tasks.records import JobRecord
from heliograph.tasks.session import JobStates

QUEUES_MAX = 100  # of one answer  # I15
JOBS_MAX = 100_000  # of a queue whose states are counted: 40 MB  # I15
JOBS_SHOWN_MAX = 50  # the newest  # I15
LETTERS_SHOWN_MAX = 100  # the oldest  # I15
SECONDS_MAX = 30.0  # of one call
QUEUE_SECONDS = 2.0  # of one queue of several
IDS_MAX = 1_000  # of jobs in one request  # I15
_LETTERS = "-letters"
QueueName = Annotated[str, Field(min_length=1, max_length=1024, description="Topic of the queue")]

router = APIRouter(tags=["tasks"], responses={404: {"model": ErrorBody, "description": "No such queue"}})


class LettersRequest(BaseModel):
    """Which letters are meant."""

    queue: QueueName
    ids: Annotated[
        list[Annotated[str, Field(max_length=256)]], Field(max_length=IDS_MAX, description="Of jobs; empty: all")
    ] = []


@router.get("/admin/heliograph/tasks", summary="Queues of tasks")
async def queues(
    services: ServicesDep,
    namespace: Annotated[str, Query(max_length=600, description="Such as `public/default`")] = "public/default",
    after: Annotated[str, Query(max_length=1024, description="`next` of the page before")] = "",
) -> dict[str, Any]:
    """Return `queues` of a namespace by name: `backlog` of jobs, `letters`, and `workers` that are connected. With
    `next` the search goes on. Figures are null of a queue that does not tell them, or may not be seen.
    """
    search = TopicSearch(services.admin, _LETTERS, QUEUES_MAX)
    await search.namespace(namespace, after)
    names = [name for row in search.found if (name := str(row["name"])).endswith(_LETTERS)]
    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)

    async def told(name: str) -> dict[str, Any] | None:
        async with gate:
            try:
                async with asyncio.timeout(QUEUE_SECONDS):
                    return await _queue(services, name)
            except (HeliographError, TimeoutError):
                return {"name": name, "backlog": None, "workers": None, "letters": None}

    found = await asyncio.gather(*(told(name.removesuffix(_LETTERS)) for name in names))
    return {"queues": [each for each in found if each is not None], "next": search.next}


@router.get("/admin/heliograph/tasks/queue", summary="Jobs and letters of a queue")
async def queue(services: ServicesDep, name: Annotated[str, Query(min_length=1, max_length=1024)]) -> dict[str, Any]:
    """Return `states`, how many jobs are in which; `jobs`, the newest ones; and `letters`, the oldest ones. `problems`
    says what could not be told.
    """
    options = TaskOptions(str(TopicName.parse(name)), jobs_max=JOBS_MAX)
    problems: list[str] = []

    async def told(what: str, asked: Awaitable[Any], otherwise: Any) -> Any:
        try:
            async with asyncio.timeout(SECONDS_MAX):
                return await asked
        except NotFoundError:
            raise
        except (HeliographError, TimeoutError) as error:
            problems.append(f"{what}: {str(error) or 'no answer in time'}")
            return otherwise

    letters = await told("letters", _letters(services, options.letters_topic), [])
    records = await told("jobs", _states(services, options), {})
    newest = sorted(records.items(), key=lambda each: -each[1].at_ms)[:JOBS_SHOWN_MAX]
    return {
        "states": Counter(record.state.value for record in records.values()),
        "jobs": [_shown(job_id, record) for job_id, record in newest],
        "letters": letters,
        "problems": problems,
    }


@router.post(
    "/admin/heliograph/tasks/retry", summary="Submit failed jobs again", openapi_extra=body_schema(LettersRequest)
)
async def retry(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Submit jobs again that failed for good, with the arguments that they had, and delete their letters.

    The caller needs the rights to consume the letters and to produce to the queue and its states. A failed call may
    have submitted some.
    """
    return await _moved(request, services, "tasks retry", lambda letters, ids: letters.submit_again(ids))


@router.post("/admin/heliograph/tasks/purge", summary="Delete letters", openapi_extra=body_schema(LettersRequest))
async def purge(request: Request, services: ServicesDep) -> dict[str, Any]:
    """Delete letters of jobs that failed for good; the states of the jobs stay. A failed call may have deleted some."""
    return await _moved(request, services, "tasks purge", lambda letters, ids: letters.purge(ids))


async def _moved(
    request: Request,
    services: Services,
    what: str,
    move: Callable[[Letters, list[str] | None], Awaitable[list[str]]],
) -> dict[str, Any]:
    body = parsed(LettersRequest, await read_body(request, services.config.request_bytes_max))
    name = str(TopicName.parse(body.queue))
    await services.admin.subscriptions(f"{name}{_LETTERS}")  # a name that is no queue makes no topics
    with (
        services.noting_change(what, name, {"ids": body.ids or "all"}),
        services.agents.held(services.caller.principal) as client,
    ):
        try:
            async with asyncio.timeout(SECONDS_MAX):
                return {"done": await move(Letters(client, name), body.ids or None)}
        except TimeoutError:
            raise RequestTimeoutError(f"not all letters were handled in {SECONDS_MAX:.0f} s: call again") from None


async def _queue(services: Services, name: str) -> dict[str, Any] | None:
    """Return the figures of a queue, None if there is no such topic."""
    topics = [name, *(f"{name}-priority-{number}" for number in range(1, PRIORITIES_MAX))]
    backlog = workers = 0
    for topic in topics:
        try:
            found = await _figures(services, topic)
        except NotFoundError:
            if topic == name:
                return None
            break  # there are no more priorities
        backlog, workers = backlog + found[0], max(workers, found[1])
    try:
        letters, _ = await _figures(services, f"{name}{_LETTERS}")
    except NotFoundError:
        return None
    return {"name": name, "backlog": backlog, "workers": workers, "letters": letters}


async def _figures(services: Services, topic: str) -> tuple[int, int]:
    """Return messages and consumers of the subscription of tasks."""
    subscriptions = (await services.admin.topic_stats(topic))["subscriptions"]
    found: Mapping[str, Any] = subscriptions.get(SUBSCRIPTION, {})
    return int(found.get("backlogMessages", found.get("msgBacklog", 0))), len(found.get("consumers", ()))


async def _letters(services: Services, topic: str) -> list[dict[str, Any]]:
    """Return the letters that nobody handled. They are looked at, and not held, so a retry beside this sees them."""
    parts = range(await services.admin.partitions(topic))
    found: list[Mapping[str, Any]] = []
    for name in [f"{topic}-partition-{part}" for part in parts] or [topic]:
        found += await services.admin.cursors.peek(name, SUBSCRIPTION, LETTERS_SHOWN_MAX)
    return await asyncio.to_thread(lambda: [_letter(message) for message in found[:LETTERS_SHOWN_MAX]])


def _letter(message: Mapping[str, Any]) -> dict[str, Any]:
    return asdict(Letter.of(message["properties"], bytes(message["payload"]), message["publish_time_ms"]))


async def _states(services: Services, options: TaskOptions) -> Mapping[str, JobRecord]:
    async with services.task_looks:  # one holds states at a time; those that wait are requests, which have a bound
        with services.agents.held(services.caller.principal) as client:
            async with JobStates(client, options) as view:
                return view.snapshot()


def _shown(job_id: str, record: JobRecord) -> dict[str, Any]:
    return {
        "id": job_id,
        "task": record.task,
        "state": record.state.value,
        "attempt": record.attempt,
        "worker": record.worker,
        "at_ms": record.at_ms,
        "progress": record.progress,
        "note": record.note,
    }
