"""The status page at ``/`` and its data, health and metrics. The page loads nothing from other hosts."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import time
from dataclasses import asdict
from functools import cache
from importlib.resources import files
from typing import Any

from fastapi import APIRouter
from starlette.responses import HTMLResponse, JSONResponse, Response

from heliograph.base.clock import iso_time
from heliograph.base.completion import shielded
from heliograph.base.errors import HeliographError, NamespaceNotFoundError
from heliograph.base.version import heliograph_version
from heliograph.client import discovery
from heliograph.gateway.admin.cluster import check_ready
from heliograph.gateway.console.scrape import lags, scraped
from heliograph.gateway.services import Services, ServicesDep
from heliograph.gateway.shapes.bodies import ErrorBody
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metrics.exposition import CONTENT_TYPE
from heliograph.report.findings import ClusterFinding, Lag, findings, verdict

TOPICS_SHOWN_MAX = 100
STATS_AT_ONCE_MAX = 16  # topics whose statistics are asked for at the same time
PART_SECONDS = 5.0  # a part of the page that takes longer is left out
STATUS_SECONDS = 1.0  # a status younger than this is reused, however many pages are open

router = APIRouter(tags=["status"])
_NUMBERS = ("msgRateIn", "msgRateOut", "msgThroughputIn", "msgThroughputOut", "msgInCounter", "storageSize")


@router.get("/", include_in_schema=False)
async def page() -> HTMLResponse:
    """Return the status page."""
    return HTMLResponse(_page(), headers={"Content-Security-Policy": _policy(), "Cache-Control": "no-store"})


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
async def metrics(services: ServicesDep) -> Response:
    """Return the metrics of the cluster in Prometheus' text format; of the gateway alone for those who are no
    superusers."""
    return Response(await scraped(services), headers={"Content-Type": CONTENT_TYPE})


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
    for part in report.parts:
        if not part.is_well:
            silent.pop(part.name, None)  # a finding says so
    problems += [f"subscriptions of {broker} cannot be read: {why}" for broker, why in sorted(silent.items())]
    return {
        "verdict": verdict(known, found, problems[0] if problems else ""),
        "findings": [asdict(finding) for finding in found],
        "version": heliograph_version(),
        "cluster": services.config.cluster_name,
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
    """Return what is wrong, and why brokers do not tell their subscriptions.

    Only superusers hear of repair and of all topics; the report is theirs alone, too.
    """
    repair: dict[str, Any] | None = None
    found: list[Lag] = []
    silent: dict[str, str] = {}
    if services.is_superuser:
        with contextlib.suppress(TimeoutError, HeliographError):
            async with asyncio.timeout(PART_SECONDS):
                if report.underreplicated_ledgers > 0:
                    repair = await services.parts.ask(discovery.AUDITOR, "repair_status", [])
        try:
            found, silent = await lags(services)
        except (TimeoutError, HeliographError) as error:
            silent["all brokers"] = str(error) or "no answer in time"
    return findings(report, repair, found), silent


def _serving(report: ClusterReport, kind: str) -> list[PartReport]:
    return [part for part in report.parts if part.kind == kind and part.address]


async def _topics(services: Services) -> list[dict[str, Any]]:
    found = sorted(await services.admin.list_topics("public/default"), key=lambda item: str(item["name"]))
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

    return list(await asyncio.gather(*(row(item["name"], item["partitions"]) for item in found[:TOPICS_SHOWN_MAX])))


@cache
def _policy() -> str:
    """Return the policy of the page: its own script and style run, by their hashes, and nothing else does."""
    script, style = (_hash_of(tag) for tag in ("script", "style"))
    return (
        f"default-src 'none'; script-src '{script}'; style-src '{style}'; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )


def _hash_of(tag: str) -> str:
    text = _page().partition(f"<{tag}>")[2].partition(f"</{tag}>")[0]
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


@cache
def _page() -> str:
    return files("heliograph.gateway.console").joinpath("console.html").read_text(encoding="utf-8")
