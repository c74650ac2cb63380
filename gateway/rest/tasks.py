"""Tasks over HTTP: submit a job, follow it, wait for its result, cancel it, list the jobs of a queue."""

from __future__ import annotations

import asyncio
import json
import uuid
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from heliograph.base.clock import iso_time
from heliograph.base.errors import BadRequestError, MessageTooLargeError, NotFoundError
from heliograph.gateway.rest.lasting import failure_of
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import (
    SMALL_BODY_BYTES,
    CancelAnswer,
    ErrorBody,
    JobBody,
    JobsAnswer,
    SubmitAnswer,
    SubmitRequest,
    aside,
    body_schema,
    check_values,
    parsed,
    read_body,
    until_left,
)
from heliograph.gateway.shapes.json_forms import to_base64
from heliograph.gateway.shapes.topics import PERSISTENT, topic_name
from heliograph.gateway.shapes.url_segments import decoded
from heliograph.protocol.topic_name import TopicName
from heliograph.tasks.options import TaskOptions
from heliograph.tasks.records import ENCODING, ID, ID_CHARACTERS_MAX, NAME, NAMED, JobRecord, JobState
from heliograph.tasks.session import QueueSession

QUEUE = "/tasks/{tenant}/{namespace}/{queue}"
JOB = f"{QUEUE}/{{id}}"
IGNORED_BODY_BYTES_MAX = 64 * 1024

router = APIRouter(tags=["tasks"])
_errors: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorBody, "description": "A value is malformed"},
    404: {"model": ErrorBody, "description": "The queue does not exist: its first worker or task makes it"},
    429: {"model": ErrorBody, "description": "Too many queues of tasks are in use, or requests that wait"},
    503: {"model": ErrorBody, "description": "Try again; or the queue has more jobs than the gateway follows"},
}


def _queue_name(tenant: str, namespace: str, queue: str) -> TopicName:
    return topic_name(PERSISTENT, tenant, namespace, queue)


def _job_id(id: Annotated[str, Path(description="Id of the job")]) -> str:
    found = decoded(id)
    if not 0 < len(found) <= ID_CHARACTERS_MAX:
        raise BadRequestError("the id of a job is empty or too long", field="id", limit=f"{ID_CHARACTERS_MAX}")
    return found


QueueInUrl = Annotated[TopicName, Depends(_queue_name)]
JobInUrl = Annotated[str, Depends(_job_id)]


@router.post(
    QUEUE,
    summary="Submit a job",
    status_code=202,
    responses={
        202: {"model": SubmitAnswer},
        409: {"model": ErrorBody, "description": "The id is that of a job of another task"},
        **_errors,
    },
    openapi_extra=body_schema(SubmitRequest),
)
async def submit(request: Request, services: ServicesDep, queue: QueueInUrl) -> Response:
    """Submit a call of a task, whose `encoding` has to be `json`. Status 202: the job is durable and will be run.

    The same `id` again is the same job: it is not submitted twice while its state is known.
    """
    raw = await read_body(request, services.config.request_bytes_max)
    if len(raw) > SMALL_BODY_BYTES:
        await check_values(raw)
    body = await aside(len(raw), partial(parsed, SubmitRequest, raw))
    payload = json.dumps({"args": body.args, "kwargs": body.kwargs}).encode()
    id = body.id or uuid.uuid4().hex
    properties = {ID: id, NAME: body.task, ENCODING: "json"}
    if body.id is not None:
        properties[NAMED] = "yes"
    await _check(services, queue)
    async with services.task_queues.lease(services.caller, str(queue)) as session:
        await session.submit_once(id, payload, properties, key=body.key, delay=body.delayMs / 1000)
    return _json({"id": id}, 202)


@router.get(QUEUE, summary="List jobs", response_model=JobsAnswer, responses=_errors)
async def list_jobs(
    services: ServicesDep,
    queue: QueueInUrl,
    state: Annotated[JobState | None, Query(description="Only jobs in this state")] = None,
    limit: Annotated[int, Query(ge=1, le=1000, description="Jobs to return, newest first")] = 100,
) -> Response:
    """Return how many jobs are in which state, and the newest ones. Jobs that no worker has begun have no state."""
    await _check(services, queue)
    async with services.task_queues.lease(services.caller, str(queue)) as session:
        await session.states.refresh()
        found = session.states.snapshot()
    return _json(await asyncio.to_thread(_listed, found, state, limit))


@router.get(
    JOB,
    summary="Follow a job",
    response_model=JobBody,
    responses={413: {"model": ErrorBody, "description": "The result is too large for an answer"}, **_errors},
)
async def follow(
    request: Request,
    services: ServicesDep,
    queue: QueueInUrl,
    id: JobInUrl,
    timeout_ms: Annotated[
        int, Query(alias="timeoutMs", ge=0, description="Time to wait for the end of the job, in milliseconds")
    ] = 0,
) -> Response:
    """Return the state of a job, with its result if it has one. A job of which nothing is known is `PENDING`.

    A result that is JSON is `result`; one of a task with another `encoding` is `resultBase64`.
    """
    await read_body(request, IGNORED_BODY_BYTES_MAX)  # a disconnect is reported only after the body was read
    await _check(services, queue)
    seconds = min(timeout_ms, services.config.reply_wait_ms_max) / 1000
    found: list[dict[str, Any]] = []

    async def look() -> None:
        async with services.task_queues.lease(services.caller, str(queue)) as session:
            found.append(await _state_of(session, id, seconds, services.config.rest_answer_bytes_max))

    with services.requests.taken(services.caller):
        left = asyncio.ensure_future(until_left(request.receive))
        try:
            error = await failure_of(services, look(), left)
        finally:
            left.cancel()
    if error is not None:
        raise error
    return _json(found[0]) if found else Response(status_code=400)  # the caller is gone and reads no answer


@router.delete(JOB, summary="Cancel a job", response_model=CancelAnswer, responses=_errors)
async def cancel(
    services: ServicesDep,
    queue: QueueInUrl,
    id: JobInUrl,
    task: Annotated[str, Query(description="Name of the task, for a job that no worker has begun")] = "",
) -> Response:
    """Revoke a job unless it has ended. A coroutine that runs it is cancelled; a thread is not."""
    await _check(services, queue)
    async with services.task_queues.lease(services.caller, str(queue)) as session:
        record = await session.known(id)
        if record is None and not task:
            raise NotFoundError(f"nothing is known of the job {id!r}: name its task to revoke it unbegun", field="task")
        is_revoked = await session.revoke(id, task)
    return _json({"revoked": is_revoked})


async def _check(services: Services, queue: TopicName) -> None:
    """Raise NotFoundError for what is no queue: a session makes topics of it, and a subscription that keeps jobs."""
    await services.admin.partitions(str(queue))
    try:
        await services.admin.partitions(TaskOptions(str(queue)).states_topic)
    except NotFoundError:
        raise NotFoundError(f"{queue} is a topic, but no queue of tasks", field="queue") from None


async def _state_of(session: QueueSession, id: str, seconds: float, bytes_max: int) -> dict[str, Any]:
    record = await session.known(id)
    if seconds and (record is None or not record.has_ended):
        try:
            async with asyncio.timeout(seconds):
                record = await session.ended(id)
        except TimeoutError:
            record = await session.known(id)
    body = _row(id, record)
    if record is not None and record.state is JobState.SUCCESS:
        data = await session.load_result(record)
        if len(data) > bytes_max:
            raise MessageTooLargeError("the result is too large for an answer", limit=f"{bytes_max} bytes")
        try:
            body["result"] = await asyncio.to_thread(json.loads, data)
        except ValueError:
            body["resultBase64"] = to_base64(data)
    return body


def _listed(found: dict[str, JobRecord], state: JobState | None, limit: int) -> dict[str, Any]:
    counts = {each.value: 0 for each in JobState}
    for record in found.values():
        counts[record.state.value] += 1
    shown = [(id, record) for id, record in found.items() if state is None or record.state is state]
    shown.sort(key=lambda each: each[1].at_ms, reverse=True)
    return {"states": counts, "jobs": [_row(id, record) for id, record in shown[:limit]]}


def _row(id: str, record: JobRecord | None) -> dict[str, Any]:
    if record is None:
        return {"id": id, "state": JobState.PENDING.value}
    return {
        "id": id,
        "state": record.state.value,
        "task": record.task,
        "attempt": record.attempt,
        "worker": record.worker,
        "at": iso_time(record.at_ms),
        "key": record.key,
        "parent": record.parent,
        "progress": record.progress,
        "note": record.note,
    }


def _json(body: dict[str, Any], status: int = 200) -> Response:
    return Response(json.dumps(body), status_code=status, media_type="application/json")
