"""The processors of a namespace: how they are, and how they are paused, resumed and deleted.

It is what ``helio functions`` does, by the caller's own connections, so brokers check the rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, Field
from starlette.requests import Request

from heliograph.base.errors import NotFoundError, RequestTimeoutError, TopicNotFoundError
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody, body_schema, parsed, read_body
from heliograph.processors.registry import RECORDS, ProcessorSummary, Registry, delete, lag_of, no_processor
from heliograph.protocol.topic_name import TopicName

PROCESSORS_MAX = 100  # of one answer  # I15
SECONDS_MAX = 60.0  # of one call: a deletion waits for the instances to commit
NamespaceName = Annotated[str, Query(max_length=600, description="Such as `public/default`")]

router = APIRouter(tags=["processors"], responses={404: {"model": ErrorBody, "description": "No such processor"}})


class ProcessorRequest(BaseModel):
    """Which processor is meant."""

    name: Annotated[str, Field(min_length=1, max_length=256, description="Name of the processor")]
    namespace: Annotated[str, Field(max_length=600, description="Namespace of its first input")] = "public/default"


@router.get("/admin/heliograph/processors", summary="Processors of a namespace")
async def processors(services: ServicesDep, namespace: NamespaceName = "public/default") -> dict[str, Any]:
    """Return `processors` by name, at most 100: `state`, `inputs`, `instances` that run, `rate` of messages a second,
    `lag` in messages (null: not known), `keys` with a state and the last `error`. `more` is whether there are others.
    """
    try:
        async with _registry(services, namespace) as registry:
            records = await registry.records()
            found = [asdict(await ProcessorSummary.of(registry, each)) for each in records[:PROCESSORS_MAX]]
    except NotFoundError:
        return {"processors": [], "more": False}
    return {"processors": found, "more": len(records) > PROCESSORS_MAX}


@router.get("/admin/heliograph/processors/processor", summary="A processor and its instances")
async def processor(
    services: ServicesDep,
    name: Annotated[str, Query(min_length=1, max_length=256)],
    namespace: NamespaceName = "public/default",
) -> dict[str, Any]:
    """Return what is recorded of a processor, its `lag` in messages, and `reports`, what each instance said last."""
    async with _registry(services, namespace) as registry:
        record = await registry.known(name)
        lag = await lag_of(registry.client, record)
        return {**record.values(), "lag": lag, "reports": await registry.status(name)}


@router.post(
    "/admin/heliograph/processors/{step}",
    summary="Pause, resume or delete a processor",
    openapi_extra=body_schema(ProcessorRequest),
)
async def steer(
    request: Request, services: ServicesDep, step: Annotated[Literal["pause", "resume", "delete"], Path()]
) -> dict[str, Any]:
    """Have all instances of a processor handle nothing, or go on; or end it and delete its states and subscriptions.

    The caller needs the rights to produce to the records of the namespace; a deletion those of an administrator.
    """
    body = parsed(ProcessorRequest, await read_body(request, services.config.request_bytes_max))
    steps: dict[str, Callable[[Registry], Awaitable[None]]] = {
        "pause": lambda registry: registry.set_paused(body.name, is_paused=True),
        "resume": lambda registry: registry.set_paused(body.name, is_paused=False),
        "delete": lambda registry: delete(registry, body.name),
    }
    with services.noting_change(f"functions {step}", f"{body.namespace}/{body.name}", {}):
        async with _registry(services, body.namespace) as registry:
            await steps[step](registry)
    return {"done": [body.name]}


@asynccontextmanager
async def _registry(services: Services, namespace: str) -> AsyncIterator[Registry]:
    """Open the records of a namespace by the caller's connections. A namespace without processors gets no topics.

    Raises:
        NotFoundError: No processor was ever begun there.
        RequestTimeoutError: The block takes longer than 60 s; a change may have been made.
    """
    topic = str(TopicName.parse(f"persistent://{namespace}/{RECORDS}"))
    try:
        await services.admin.partitions(topic)  # opening it would create it
    except TopicNotFoundError:
        raise no_processor(namespace) from None
    try:
        async with asyncio.timeout(SECONDS_MAX):
            with services.agents.held(services.caller.principal) as client:
                async with Registry(client, namespace) as registry:
                    yield registry
    except TimeoutError:
        raise RequestTimeoutError(f"the processors did not answer in {SECONDS_MAX:.0f} s") from None
