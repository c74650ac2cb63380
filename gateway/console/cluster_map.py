"""The map of the console: machines, bookies, brokers and repair, with what each part told last.

A part that is expected stays on the map when it is dead, with the figures that it told last and when that was; those
of the report are there after a restart of the gateway, too.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fastapi import APIRouter

from heliograph.base.clock import wall_ms
from heliograph.base.errors import HeliographError
from heliograph.client import discovery
from heliograph.gateway.services import Services, ServicesDep
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metrics.metric import LATENCY_BOUNDS

MAP = "/admin/heliograph/map"
PART_SECONDS = 3.0  # a part that takes longer has the figures of before
PARTS_MAX = 1_000  # whose last figures are kept # I15
SAMPLE_SECONDS = 10.0  # between two samples of a histogram
SAMPLES_MAX = 7  # so that a percentile is of the last minute
SAMPLE_SECONDS_MAX = 70.0  # age of a sample, after which it says nothing of the last minute

router = APIRouter(include_in_schema=False)


@dataclass
class PartSeen:
    """The latest answer of one part.

    Attributes:
        seen_ms: when, in milliseconds since the epoch; 0: it never answered this gateway.
        figures: as they are shown.
        samples: monotonic times, and the counts of its histogram of syncs at that time, oldest first.
    """

    seen_ms: int = 0
    figures: dict[str, Any] = field(default_factory=dict)
    samples: deque[tuple[float, list[int]]] = field(default_factory=lambda: deque(maxlen=SAMPLES_MAX))

    def p99_of(self, counts: Sequence[int], now: float) -> float | None:
        """Return the 99th percentile of the last minute in seconds, as the end of its bucket.

        Returns:
            None if nothing ran, or no sample of the last minute is there to compare with; infinite for the bucket that
            has no end.
        """
        if len(counts) != len(LATENCY_BOUNDS) + 1:
            return None  # a part of another release
        while self.samples and now - self.samples[0][0] > SAMPLE_SECONDS_MAX:
            self.samples.popleft()
        if self.samples and any(new < old for new, old in zip(counts, self.samples[-1][1], strict=True)):
            self.samples.clear()  # the part is another process
        before = self.samples[0][1] if self.samples else counts
        if not self.samples or now - self.samples[-1][0] >= SAMPLE_SECONDS:
            self.samples.append((now, list(counts)))
        return percentile([new - old for new, old in zip(counts, before, strict=True)], 0.99)


def percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the upper end in seconds of the bucket in which a share of all observations is reached; the last one's
    is infinite."""
    total, reached = sum(counts), 0
    if not total:
        return None
    for bound, count in zip((*LATENCY_BOUNDS, math.inf), counts, strict=True):
        reached += count
        if reached >= share * total:
            return bound
    raise AssertionError("the shares of all buckets are everything")


@router.get(MAP)
async def cluster_map(services: ServicesDep) -> dict[str, Any]:
    """Return all parts that are expected or there, what they told last, and what is being repaired; for superusers."""
    services.require_superuser("map")
    report = await services.report()
    wanted = [part for part in report.parts if part.kind in ("bookie", "broker")][:PARTS_MAX]
    for name in services.seen.keys() - {part.name for part in wanted}:
        del services.seen[name]
    disks, brokers, repair, wishes, _ = await asyncio.gather(
        _or_why(services.cluster.bookies()),
        _or_why(_brokers(services)),
        _or_why(services.parts.ask(discovery.AUDITOR, "repair_status", [])),
        _or_why(services.cluster.wishes()),
        asyncio.gather(*(_look(services, part) for part in wanted)),
    )
    asked = {"brokers": brokers, "bookies": disks, "wishes": wishes}
    by_id = {} if isinstance(disks, str) else {view.bookie_id: view for view in disks}
    loads = {} if isinstance(brokers, str) else brokers
    rows = []
    for part in report.parts:
        row = {**asdict(part), "is_well": part.is_well}
        if (seen := services.seen.get(part.name)) is not None and seen.seen_ms >= part.seen_ms:
            row |= {"seen_ms": seen.seen_ms, **seen.figures}
        if (view := by_id.get(part.name)) is not None:
            row |= {"is_writable": view.writable, "rack": view.rack}
        rows.append(row | loads.get(part.name, {}))
    return {
        "as_of_ms": report.as_of_ms,
        "now_ms": wall_ms(),
        "nodes": [asdict(node) for node in report.nodes],
        "parts": rows,
        "repair": _repair(report, repair),
        "wishes": [] if isinstance(wishes, str) else [_shown(asdict(wish)) for wish in wishes],
        "silent": {what: why for what, why in asked.items() if isinstance(why, str)},
    }


async def _or_why(work: Any) -> Any:
    """Return the result of work within ``PART_SECONDS``, or its failure as text."""
    try:
        async with asyncio.timeout(PART_SECONDS):
            return await work
    except (TimeoutError, HeliographError) as error:
        return str(error) or f"no answer within {PART_SECONDS:.0f} s"


async def _look(services: Services, part: PartReport) -> None:
    """Keep the part's present answer; if it does not answer, the earlier answer stays."""
    if not part.address:
        return  # it is down, and a call would wait for it
    told = await _or_why(services.parts.ask(part.name, "statistics", []))
    if isinstance(told, Mapping):
        seen = services.seen.setdefault(part.name, PartSeen())
        seen.seen_ms = wall_ms()
        seen.figures = _of_bookie(seen, told) if part.kind == "bookie" else {"moves": told.get("bundle_moves_total")}


def _of_bookie(seen: PartSeen, told: Mapping[str, Any]) -> dict[str, Any]:
    p99 = seen.p99_of(told.get("journal_sync_latency", {}).get("counts", ()), time.monotonic())
    return {
        "free_bytes": told.get("free_bytes"),
        "total_bytes": told.get("total_bytes"),
        "used_share": told.get("disk_used_share"),
        "sync_p99_seconds": None if p99 is None else min(p99, LATENCY_BOUNDS[-1]),
        "sync_p99_is_more": p99 == math.inf,
    }


async def _brokers(services: Services) -> dict[str, dict[str, Any]]:
    """Return the leader's and the load reports' facts of the brokers, by the names of their parts."""
    loads = {load["broker_id"]: load for load in await services.admin.brokers.loads()}
    found = {}
    for broker in await services.admin.brokers.list():
        load = loads.get(broker["broker_id"], {})
        names = ("cpu_share", "memory_share", "messages_in_per_second", "messages_out_per_second", "topics")
        row = {name: load.get(name) for name in (*names, "bundles_owned")}
        more = {name: broker.get(name) for name in ("broker_id", "is_leader", "is_draining")}
        found[broker.get("actor_name") or broker["broker_id"]] = row | more
    return found


def _repair(report: ClusterReport, told: Any) -> dict[str, Any]:
    """Return the progress of repair; ``unknown`` says why the auditor does not tell it."""
    known = {
        "ledgers_missing_copies": report.underreplicated_ledgers,
        "ledgers_moving": report.ledgers_moving,
        "ledgers_damaged": report.ledgers_damaged,
        "is_paused": report.is_repair_paused,
    }
    if isinstance(told, str):
        return known | {"unknown": told}
    names = (
        *("bytes_repaired", "bytes_per_second", "seconds_left", "ledgers_left", "ledgers_in_repair", "last_failure"),
        *("ledgers_repaired", "ledgers_without_place"),
    )
    return known | {"is_paused": told["is_paused"]} | {name: told.get(name) for name in names}


def _shown(wish: dict[str, Any]) -> dict[str, Any]:
    return {**wish, "kind": wish["kind"].value, "state": wish["state"].value}
