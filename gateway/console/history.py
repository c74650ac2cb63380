"""Two hours of what parts and topics did: the parts keep the samples, and the gateway asks them on demand."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse

from heliograph.base.errors import HeliographError, NotFoundError
from heliograph.client.discovery import BROKER_PREFIX, GATEWAY
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.gateway.shapes.topics import ADMIN_TOPIC, TopicInUrl

PART_SECONDS = 5.0  # a part that takes longer is named, and has no samples in the answer
ASKED_AT_ONCE_MAX = 16  # parts  # I15

router = APIRouter(tags=["status"])


@router.get(
    "/admin/heliograph/history",
    summary="Two hours of the parts",
    responses={404: {"model": ErrorBody, "description": "No such part"}},
)
async def part_history(
    services: ServicesDep,
    part: Annotated[str, Query(description="Name of a part, such as `broker-1`; empty: every part")] = "",
    series: Annotated[
        str, Query(description="Names of metrics as in `/metrics`, with commas between them; empty: all")
    ] = "",
) -> JSONResponse:
    """Return samples of the last two hours, one for ten seconds, as each part has kept them in memory since its start.

    Gauges are as they were, of counters there is the growth each second, of latencies `name:p50` and `name:p99`, in
    seconds. `parts` has of each `step_seconds`, `age_seconds` of the last sample, and `series`, pairs of a name and its
    samples, oldest first; `silent` says why others have none. A topic's samples are at its own address.
    """
    services.require_superuser("history", part)
    names = [GATEWAY, *(name for name in await services.parts.names() if name != GATEWAY)]
    if part and part not in names:
        raise NotFoundError(f"this cluster has no {part} now", field="part", limit=", ".join(names))
    wanted = frozenset(name for name in series.split(",") if name)
    gate = asyncio.Semaphore(ASKED_AT_ONCE_MAX)
    found: dict[str, Any] = {}
    silent: dict[str, str] = {}

    async def asked(name: str) -> None:
        try:
            async with gate, asyncio.timeout(PART_SECONDS):
                told = await _told(services, name)
                found[name] = {**told, "series": [_row(row) for row in told["series"] if _is_wanted(row, wanted)]}
        except (TimeoutError, HeliographError) as error:
            silent[name] = str(error) or "no answer in time"
        except (KeyError, TypeError, IndexError) as error:
            silent[name] = f"odd answer: {error!r}"

    await asyncio.gather(*map(asked, [part] if part else names))
    return JSONResponse({"parts": dict(sorted(found.items())), "silent": silent})


@router.get(f"{ADMIN_TOPIC}/history", summary="Two hours of a topic", tags=["topics"])
async def topic_history(services: ServicesDep, topic: TopicInUrl) -> JSONResponse:
    """Return samples of the last two hours, one for ten seconds: rates, the mean latency of publishing, and backlogs.

    The owner keeps them in memory, of the busiest topics and of those that were asked for in that time.
    """
    return JSONResponse(dict(await services.admin.topic_history(str(topic))))


async def _told(services: Services, name: str) -> Mapping[str, Any]:
    if name == GATEWAY:
        return services.history.told()
    if name.startswith(BROKER_PREFIX):
        told = await services.parts.ask(name, "asked", ["history", {}])
    else:
        told = await services.parts.ask(name, "history", [])
    return told if isinstance(told, Mapping) else {}


def _row(row: Any) -> list[Any]:
    (name,), samples = row
    return [name, samples]


def _is_wanted(row: Any, wanted: frozenset[str]) -> bool:
    return not wanted or str(row[0][0]).partition(":")[0] in wanted
