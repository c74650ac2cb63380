"""The map, the changes that the console asks the operator for, and the view of the audit log."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from heliograph.auth.audit import AuditLog
from heliograph.auth.config import AuditConfig
from heliograph.base.errors import NotFoundError, ServiceNotReadyError
from heliograph.gateway.console.cluster_map import PartSeen, percentile
from heliograph.gateway.services import Services
from heliograph.metadata.operator_records import ClusterReport, PartReport, Wish
from heliograph.metrics.metric import LATENCY_BOUNDS
from tests.unit.gateway.world import Gateway, View

DEAD = PartReport("bookie-1", "bookie", "MISSING", since_ms=1_700, note="is not registered in metadata")
TOLD = {
    "free_bytes": 7,
    "total_bytes": 10,
    "disk_used_share": 0.3,
    "journal_sync_latency": {"counts": [0, 98, 0, 2] + [0] * 9},
}
LINES = {"is_kept": True, "lines": [{"time": "2026-01-02", "role": "root", "operation": "delete_topic"}]}


class Parts:
    """A bookie and a broker that answer, and an operator that stores wishes."""

    def __init__(self) -> None:
        self.wishes: list[Any] = []

    async def names(self) -> list[str]:
        return ["bookie-1", "broker-1", "broker-2", "operator"]

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        if method == "store_wish":
            self.wishes += arguments
            return arguments[0]
        answers: dict[tuple[str, str], Any] = {
            ("bookie-1", "statistics"): TOLD,
            ("broker-1", "statistics"): {"bundle_moves_total": 3},
            ("broker-1", "asked"): LINES,
            ("auditor", "pause"): None,
        }
        if (part, method) not in answers:
            raise ServiceNotReadyError(f"{part} starts") if part == "broker-2" else NotFoundError(f"no {part} now")
        return answers[part, method]


@pytest.fixture
def services(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Services:
    found: Services = gateway.app.state.services
    monkeypatch.setattr(found, "parts", Parts())
    return found


async def test_a_dead_bookie_stays_on_the_map_with_what_it_told_last(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = (await gateway.http.get("/admin/heliograph/map")).json()
    bookie, broker = shown["parts"][1], shown["parts"][0]
    assert (bookie["free_bytes"], bookie["is_writable"], bookie["sync_p99_seconds"]) == (7, True, None)
    monkeypatch.setitem(TOLD, "journal_sync_latency", {"counts": [0, 98, 0, 2] + [0] * 8 + [7]})
    bookie = (await gateway.http.get("/admin/heliograph/map")).json()["parts"][1]
    assert (bookie["sync_p99_seconds"], bookie["sync_p99_is_more"]) == (LATENCY_BOUNDS[-1], True)
    assert (broker["is_leader"], broker["moves"], broker["cpu_share"]) == (True, 3, 0.5)
    assert shown["repair"]["unknown"] == "no auditor now"
    well = await View().report()

    async def report() -> ClusterReport:
        return replace(well, parts=(well.parts[0], DEAD))

    monkeypatch.setattr(services.cluster, "report", report)
    later = (await gateway.http.get("/admin/heliograph/map")).json()["parts"][1]
    assert (later["name"], later["is_well"], later["free_bytes"]) == ("bookie-1", False, 7)
    assert later["seen_ms"] == bookie["seen_ms"] > 0
    services.seen.clear()  # another gateway
    dead = replace(DEAD, free_bytes=8, total_bytes=10, used_share=0.2, seen_ms=1_600)

    async def report_of_the_dead() -> ClusterReport:
        return replace(well, parts=(well.parts[0], dead))

    monkeypatch.setattr(services.cluster, "report", report_of_the_dead)
    later = (await gateway.http.get("/admin/heliograph/map")).json()["parts"][1]
    assert (later["free_bytes"], later["used_share"], later["seen_ms"]) == (8, 0.2, 1_600)


async def test_a_map_without_wishes_says_why(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wishes() -> list[Wish]:
        raise ServiceNotReadyError("no session")

    monkeypatch.setattr(services.cluster, "wishes", wishes)
    shown = (await gateway.http.get("/admin/heliograph/map")).json()
    assert (shown["wishes"], shown["silent"]["wishes"]) == ([], "no session"), "the page walks over a list"


def test_a_percentile_is_of_the_last_minute_and_restarts_with_the_part() -> None:
    assert percentile([0] * 13, 0.99) is None
    assert percentile([99] + [0] * 11 + [1], 0.99) == LATENCY_BOUNDS[0]
    assert percentile([98] + [0] * 11 + [2], 0.99) == math.inf
    seen = PartSeen()
    assert seen.p99_of([0, 5] + [0] * 11, 0.0) is None, "it is of all time since the start"
    assert seen.p99_of([0, 5, 0, 1] + [0] * 9, 20.0) == LATENCY_BOUNDS[3], "what was before is not counted"
    assert seen.p99_of([1] + [0] * 12, 30.0) is None, "the process is another one"
    assert seen.p99_of([2] + [0] * 12, 40.0) == LATENCY_BOUNDS[0]
    assert seen.p99_of([9] + [0] * 12, 500.0) is None, "nobody looked for minutes"
    assert seen.p99_of([9] + [0] * 11, 510.0) is None, "another release has other buckets"


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"kind": "scale", "subject": "bookies", "count": 4}, 200),
        ({"kind": "restart", "names": ["broker-1"]}, 200),
        ({"kind": "restart"}, 200),
        ({"kind": "replace", "subject": "bookie-1"}, 200),
        ({"kind": "scale", "subject": "gateways", "count": 4}, 400),
        ({"kind": "scale", "subject": "bookies", "count": 0}, 400),
        ({"kind": "scale", "subject": "bookies", "count": True}, 400),
        ({"kind": "restart", "names": "broker-1"}, 400),
        ({"kind": "restart", "names": ["broker-9"]}, 404),
        ({"kind": "replace", "subject": "broker-1"}, 404),
        ({"kind": "replace", "subject": None}, 404),
        ({"kind": "hold", "subject": "bookie-1"}, 400),
    ],
)
async def test_only_wishes_of_the_console_reach_the_operator(
    gateway: Gateway, services: Services, body: dict[str, Any], status: int
) -> None:
    found = await gateway.http.post("/admin/heliograph/wishes", json=body)
    assert found.status_code == status, found.text
    assert len(services.parts.wishes) == (status == 200)  # type: ignore[attr-defined]
    if status == 200:
        assert (found.json()["kind"], found.json()["state"]) == (body["kind"], "asked")


async def test_a_restart_that_would_be_an_upgrade_is_left_to_the_command(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def report() -> ClusterReport:
        return ClusterReport(parts=(PartReport("bookie-1", "bookie", version="1", installed="2"),))

    monkeypatch.setattr(services.cluster, "report", report)
    found = await gateway.http.post("/admin/heliograph/wishes", json={"kind": "restart"})
    assert found.status_code == 409
    assert "helio restart --rolling" in found.json()["reason"]


async def test_the_audit_view_has_the_lines_of_brokers_and_of_the_gateway_and_names_the_silent(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    audit = AuditLog(AuditConfig(topic="audit"), "gateway")
    monkeypatch.setattr(services, "audit", audit)
    await gateway.http.post("/admin/heliograph/wishes", json={"kind": "scale", "subject": "bookies", "count": 4})
    await gateway.http.post("/admin/heliograph/parts/auditor/pause", json={"arguments": [True]})
    await gateway.http.post("/admin/heliograph/parts/auditor/repair_status", json={"arguments": []})
    shown = (await gateway.http.get("/admin/heliograph/audit")).json()
    found = [(line["operation"], line.get("target"), line.get("arguments")) for line in shown["lines"]]
    assert sorted(found[:2], key=str) == [
        ("pause", "auditor", {"0": "True"}),
        ("wish scale", "bookies", {"count": "4"}),
    ]
    assert found[2][0] == "delete_topic"
    assert (shown["is_kept"], shown["silent"]) == (True, {"broker-2": "broker-2 starts"})
