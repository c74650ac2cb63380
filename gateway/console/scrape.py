"""The answer to Prometheus: the gateway's own metrics, those of the report of the cluster, and those of every part.

One endpoint serves all, because its port is fixed and it asks for credentials as everything at the gateway does. A part
that is gone has no series; ``heliograph_part_up`` tells of the parts that are expected.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError, NotPermittedError
from heliograph.base.guard.quiet_log import QuietLog
from heliograph.client import discovery
from heliograph.gateway.services import Services
from heliograph.metadata.operator_records import ClusterReport
from heliograph.metrics.broker import HIDDEN, RETRYING, TOPIC_METRICS
from heliograph.metrics.exposition import exposition
from heliograph.metrics.parts import Found, of_topics, reader_of
from heliograph.metrics.pulsar import pulsar_lines, pulsar_text
from heliograph.metrics.table import METRICS
from heliograph.report.findings import Lag

PART_SECONDS = 5.0  # a part that takes longer has no series in this scrape
_NO_ANSWER = (TimeoutError, HeliographError)
_ODD_ANSWER = (AttributeError, KeyError, TypeError, ValueError)  # what reading it raises

_quiet = QuietLog(logging.getLogger(__name__))


async def scraped(services: Services, *, parts: str = "all") -> str:
    """Return the text for Prometheus: all metrics for superusers, else the gateway's own.

    Args:
        parts: ``none``: without the metrics that the parts serve themselves.
    """
    found: Found = {name: list(samples) for name, samples in services.metrics.series().items()}
    if services.is_superuser:
        asked = [_of_report(services)] if parts == "none" else [_of_report(services), _of_parts(services)]
        for more in await asyncio.gather(*asked):
            _merge(found, more)
    return await asyncio.to_thread(_text, found)


async def scraped_for_pulsar(services: Services, *, parts: str = "all") -> str:
    """Return the metrics of all parts by the names of Pulsar and BookKeeper; for superusers.

    Args:
        parts: ``none``: nothing, as the parts serve all of these themselves.

    Raises:
        NotPermittedError: the caller is none.
    """
    if not services.is_superuser:
        raise NotPermittedError("metrics by Pulsar's names are for superusers")
    names = [] if parts == "none" else await _names(services)
    found = await asyncio.gather(*(_found_or_none(services, name) for name in names))
    cluster = services.config.ray_namespace
    lines = [(name, _kind(name), cluster, each) for name, each in zip(names, found, strict=True)]
    return await asyncio.to_thread(lambda: pulsar_text([pulsar_lines(*each) for each in lines]))


def _text(found: Found) -> str:
    """Return the exposition. A namespace is served by many brokers, and a topic may be by two while it moves."""
    for metric in TOPIC_METRICS:
        sums: dict[tuple[str, ...], float] = {}
        for labels, value in found.get(metric.name, ()):
            before = sums.get(tuple(labels), 0)
            sums[tuple(labels)] = max(before, value) if metric.unit == "seconds" else before + value  # ages have no sum
        found[metric.name] = list(sums.items())
    return exposition(METRICS.values(), found)


async def lags(services: Services) -> tuple[list[Lag], dict[str, str]]:
    """Return how far the subscriptions are behind that the brokers name in their series, and why other brokers name
    none; for superusers.

    Raises:
        HeliographError, TimeoutError: the parts cannot be listed.
    """
    found: Found = {}
    silent: dict[str, str] = {}

    async def asked(name: str) -> None:
        try:
            async with asyncio.timeout(PART_SECONDS):
                _merge(found, await _of_topics(services, name))
        except (*_NO_ANSWER, *_ODD_ANSWER) as error:
            silent[name] = _why(name, error)

    await asyncio.gather(*(asked(name) for name in await _names(services) if _kind(name) == "broker"))

    def values(name: str) -> dict[tuple[str, ...], float]:
        return {tuple(labels): value for labels, value in found.get(f"heliograph_{name}", ())}

    done, rates = values("subscription_acknowledged_entries_rate"), values("topic_in_messages_rate")
    delivered, consumers = values("subscription_out_messages_rate"), values("subscription_consumers")
    messages = values("subscription_backlog_messages")
    behind = [
        Lag(
            topic=key[1],
            subscription=key[2],
            messages=messages.get(key, backlog),  # a broker of an earlier release tells entries alone
            backlog=backlog,
            acknowledged_rate=done.get(key, 0.0),
            in_rate=rates.get(key[:2], 0.0),
            out_rate=delivered.get(key, 0.0),
            consumers=int(consumers.get(key, 0)),
        )
        for key, backlog in values("subscription_backlog_entries").items()
        if len(key) == 3 and key[1] != HIDDEN and key[2] != RETRYING
    ]
    return behind, silent


async def _of_report(services: Services) -> Found:
    try:
        return of_report(await services.report(), wall_ms())
    except HeliographError:
        return {}  # an alert finds that the age of the report is not told


def of_report(report: ClusterReport, now_ms: int) -> Found:
    """Return the samples of ``CLUSTER_METRICS`` that a report tells. Numbers that it does not know are left out."""
    numbers = {
        "report_age_seconds": max(now_ms - report.as_of_ms, 0) / 1000 if report.as_of_ms else -1,
        "report_is_silent": int(report.is_silent),
        "ledgers_underreplicated": report.underreplicated_ledgers,
        "ledgers_in_repair": report.ledgers_in_repair,
        "ledgers_moving": report.ledgers_moving,
        "ledgers_damaged": report.ledgers_damaged,
        "repair_is_paused": int(report.is_repair_paused),
        "publishing_problems": len(report.publishing_notes),
        "bookies_available": len(report.bookies_available),
        "bookies_full": len(report.full_disks),
    }
    found: Found = {f"heliograph_{name}": [((), value)] for name, value in numbers.items() if value >= 0}
    found["heliograph_part_up"] = [((part.name, part.kind), int(part.is_well)) for part in report.parts]
    found["heliograph_part_clock_skew_seconds"] = [((part.name,), part.skew_ms / 1000) for part in report.parts]
    restarts = [((part.name,), part.restarts) for part in report.parts if part.restarts is not None]
    found["heliograph_part_restarts_total"] = [*restarts]
    others = [part for part in report.parts if part.version and part.name != discovery.GATEWAY]  # which tells its own
    found["heliograph_build_info"] = [((part.name, part.version), 1) for part in others]
    return found


async def _of_parts(services: Services) -> Found:
    found: Found = {}

    with contextlib.suppress(*_NO_ANSWER):
        for more in await asyncio.gather(*(_found_or_none(services, name) for name in await _names(services))):
            _merge(found, more)
    return found


async def _found_or_none(services: Services, name: str) -> Found:
    try:
        async with asyncio.timeout(PART_SECONDS):
            return await _of_part(services, name)
    except (*_NO_ANSWER, *_ODD_ANSWER) as error:
        _why(name, error)
        return {"heliograph_part_scraped": [((name,), 0)]}


async def _names(services: Services) -> list[str]:
    """Return the names of the parts that tell metrics."""
    async with asyncio.timeout(PART_SECONDS):
        return [name for name in await services.parts.names() if reader_of(name) is not None]


def _why(part: str, error: Exception) -> str:
    """Return why a part cannot be read; log an answer that this release does not understand."""
    if isinstance(error, _NO_ANSWER):
        return str(error) or "no answer in time"
    _quiet.warning("odd", "%s has an odd answer for the metrics: %r", part, error)
    return f"odd answer: {error!r}"


async def _of_part(services: Services, name: str) -> Found:
    reader, statistics = reader_of(name), await services.parts.ask(name, "statistics", [])
    assert reader is not None, "these are the names that are asked"
    found = reader(name, statistics)
    if _kind(name) == "broker":
        with contextlib.suppress(HeliographError):  # of a broker of the release before this one
            found |= await _of_topics(services, name)
    found["heliograph_part_scraped"] = [((name,), int(bool(statistics)))]
    return found


async def _of_topics(services: Services, broker: str) -> Found:
    return of_topics(broker, await services.parts.ask(broker, "asked", ["metrics", {}]))


def _kind(name: str) -> str:
    return discovery.AUDITOR if name == discovery.AUDITOR else name.partition("-")[0]


def _merge(found: Found, more: Found) -> None:
    for name, samples in more.items():
        found.setdefault(name, []).extend(samples)
