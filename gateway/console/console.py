"""Data of the console's first page, also for programs: the status with its verdict; health and metrics."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import JSONResponse, Response

from heliograph.base.clock import iso_time
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, NamespaceNotFoundError
from heliograph.base.version import heliograph_version
from heliograph.client import discovery
from heliograph.gateway.admin.cluster import check_ready
from heliograph.gateway.console.scrape import lags, scraped, scraped_for_pulsar
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metrics.exposition import CONTENT_TYPE
from heliograph.operations.table import Answer
from heliograph.report.findings import ClusterFinding, Lag, findings, verdict

TOPICS_SHOWN_MAX = 100
STATS_AT_ONCE_MAX = 16  # topics whose statistics are asked for at the same time
PART_SECONDS = 5.0  # a part of the page that takes longer is left out
STATUS_SECONDS = 1.0  # a status younger than this is reused, however many pages are open

router = APIRouter(tags=["status"])
_NUMBERS = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "msgInCounter", "storageSize")


@router.get("/status", summary="Data of the status page")
async def status(services: ServicesDep) -> JSONResponse:
    """Return the report of the cluster, topics of `public/default` with their rates, and this gateway's counters."""
    return JSONResponse(await _status_of(services))


@router.get("/health", summary="Health", responses={503: {"model": ErrorBody, "description": "No broker answers"}})
async def health(services: ServicesDep) -> dict[str, str]:
    """Return `{"status": "ok"}` when a broker answers, 503 otherwise."""
    await check_ready(services)
    return {"status": "ok"}


@router.get("/metrics", summary="Prometheus metrics", response_class=Response)
async def metrics(
    services: ServicesDep,
    parts: Annotated[
        Literal["all", "none"], Query(description="`none`: without the metrics that the parts serve themselves")
    ] = "all",
    names: Annotated[Literal["", "pulsar"], Query(description="`pulsar`: the names of Pulsar and BookKeeper")] = "",
) -> Response:
    """Return the metrics of the cluster in Prometheus' text format; of the gateway alone for those who are no
    superusers."""
    text = await (scraped_for_pulsar(services, parts=parts) if names else scraped(services, parts=parts))
    return Response(text, headers={"Content-Type": CONTENT_TYPE})


async def _status_of(services: Services) -> dict[str, Any]:
    role = services.caller.role
    cached = services.statuses.get(role)
    if cached is None or time.monotonic() - cached[0] >= STATUS_SECONDS:
        for old in [
            name for name, (begun, _) in services.statuses.items() if time.monotonic() - begun >= STATUS_SECONDS
        ]:
            del services.statuses[old]
        cached = services.statuses[role] = (time.monotonic(), asyncio.ensure_future(_gather_status(services)))
    return await shielded(cached[1])


async def _gather_status(services: Services) -> dict[str, Any]:
    problems: list[str] = []
    known: ClusterReport | None = None
    topics: list[dict[str, Any]] = []
    try:
        async with asyncio.timeout(PART_SECONDS):
            known = await services.report()
    except (TimeoutError, HeliographError) as error:
        problems.append(f"the report of the cluster cannot be read: {str(error) or 'no answer in time'}")
    try:
        async with asyncio.timeout(PART_SECONDS):
            topics = await _topics(services)
    except NamespaceNotFoundError:
        pass  # public/default was deleted
    except (TimeoutError, HeliographError) as error:
        problems.append(f"topics cannot be read: {str(error) or 'no answer in time'}")
    report = known or ClusterReport()
    found, silent = await _findings(services, report)
    served = await _topics_served(services, silent)
    for part in report.parts:
        if not part.is_well:
            silent.pop(part.name, None)  # a finding says so
    problems += [f"subscriptions of {broker} cannot be read: {why}" for broker, why in sorted(silent.items())]
    return {
        "verdict": verdict(known, found, problems[0] if problems else "", served),
        "findings": [asdict(finding) for finding in found],
        "version": heliograph_version(),
        "cluster": services.config.cluster_name,
        "caller": {"role": services.caller.role, "isSuperuser": services.is_superuser},
        "uptimeSeconds": round(time.monotonic() - services.started, 1),
        "dashboardUrl": services.config.dashboard_url,
        "brokers": [{"id": part.name, "serviceUrl": part.address} for part in _serving(report, "broker")],
        "bookies": [
            {
                "id": part.name,
                "address": part.address,
                "rack": part.rack,
                "writable": part.name in report.bookies_available,
            }
            for part in _serving(report, "bookie")
        ],
        "parts": [{**asdict(part), "is_well": part.is_well} for part in report.parts],
        "healthy": report.is_healthy,
        "asOf": iso_time(report.as_of_ms) if report.as_of_ms else "",
        "underReplicatedLedgers": report.underreplicated_ledgers,
        "topics": topics,
        "gateway": services.metrics.totals(),
        "problems": [*problems, *report.notes, *report.publishing_notes],
    }


async def _findings(services: Services, report: ClusterReport) -> tuple[list[ClusterFinding], dict[str, str]]:
    """Return the problems, and the reasons why brokers do not list their subscriptions.

    Only superusers hear of repair and of all topics; the report is theirs alone, too.
    """
    repair: dict[str, Any] | None = None
    found: list[Lag] = []
    silent: dict[str, str] = {}
    if services.is_superuser:
        with contextlib.suppress(TimeoutError, HeliographError):
            async with asyncio.timeout(PART_SECONDS):
                if report.underreplicated_ledgers > 0 or any(not part.is_well for part in report.parts):
                    repair = await services.parts.ask(discovery.AUDITOR, "repair_status", [])
        try:
            found, silent = await lags(services)
        except (TimeoutError, HeliographError) as error:
            silent["all brokers"] = str(error) or "no answer in time"
    return findings(report, repair, found), silent


async def _topics_served(services: Services, silent: Mapping[str, str]) -> tuple[int, int] | None:
    """Return how many of the open topics brokers serve that answer, and how many are open; None if not known."""
    if not services.is_superuser:
        return None
    try:
        async with asyncio.timeout(PART_SECONDS):
            loads = await services.admin.brokers.loads()
    except (TimeoutError, HeliographError):
        return None
    numbers = {str(load["broker_id"]): int(load.get("topics", 0)) for load in loads}
    served = sum(count for name, count in numbers.items() if name not in silent)
    return (served, sum(numbers.values())) if any(numbers.values()) else None


def _serving(report: ClusterReport, kind: str) -> list[PartReport]:
    return [part for part in report.parts if part.kind == kind and part.address]


async def _topics(services: Services) -> list[dict[str, Any]]:
    found: list[Answer] = await anext(services.admin.topic_pages("public/default", limit=TOPICS_SHOWN_MAX), [])
    gate = asyncio.Semaphore(STATS_AT_ONCE_MAX)

    async def row(name: str, partitions: int) -> dict[str, Any]:
        async with gate:
            try:
                stats = await services.admin.topic_stats(name)
            except HeliographError:
                stats = {}  # the topic is being moved or deleted: the next refresh shows it
        numbers = {number: stats.get(number, 0) for number in _NUMBERS}
        subscriptions = stats.get("subscriptions", {})
        backlog = {sub: one.get("backlogMessages", one.get("msgBacklog", 0)) for sub, one in subscriptions.items()}
        return {"name": name, "partitions": partitions, **numbers, "backlog": backlog}

    return list(await asyncio.gather(*(row(item["name"], item["partitions"]) for item in found)))
