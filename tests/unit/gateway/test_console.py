"""What the console says after a bookie died, and what Prometheus reads of parts that answer, or do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.base.errors import NotFoundError, ServiceNotReadyError
from heliograph.gateway.services import Services
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metrics.metric import Histogram
from tests.unit.gateway.world import FLIGHTS, Gateway, View

DEAD = PartReport("bookie-2", "bookie", "MISSING", since_ms=1_700, note="is not registered in metadata")
LABELS = ["public/default", FLIGHTS, "audit"]
SERIES = {
    "heliograph_subscription_backlog_entries": [[LABELS, 9_000]],
    "heliograph_subscription_backlog_messages": [[LABELS, 90_000]],
    "heliograph_subscription_acknowledged_entries_rate": [[LABELS, 10.0]],
    "heliograph_subscription_out_messages_rate": [[LABELS, 10.0]],
    "heliograph_subscription_consumers": [[LABELS, 1]],
    "heliograph_topic_in_messages_rate": [[LABELS[:2], 50.0]],
}


class Parts:
    """A broker that tells its series, an auditor that repairs, and a bookie that does not answer."""

    async def names(self) -> list[str]:
        return ["auditor", "bookie-1", "broker-1", "gateway"]

    async def ask(self, part: str, method: str, arguments: list[Any]) -> Any:
        answers: dict[tuple[str, str], Any] = {
            ("auditor", "repair_status"): {"seconds_left": 200.0},
            ("auditor", "statistics"): {"sessions": 1, "auditor": {"is_leader": True}, "worker": {"bytes_repaired": 5}},
            ("broker-1", "statistics"): {
                "topics": 3,
                "metadata_silent_seconds": 0.0,
                "add_latency": {"bookie-1": Histogram().told()},
            },
            ("broker-1", "asked"): {"series": SERIES, "topics_hidden": 0},
        }
        if part == "bookie-1":
            raise ServiceNotReadyError("bookie-1 starts")
        if (part, method) not in answers:
            raise NotFoundError(f"{part} has no {method}")
        return answers[part, method]


@pytest.fixture
def services(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> Services:
    found: Services = gateway.app.state.services
    monkeypatch.setattr(found, "parts", Parts())
    return found


async def test_it_says_what_died_what_is_repaired_until_when_who_is_behind_and_what_helps(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = await View().report()
    broken = replace(well, parts=(*well.parts, DEAD), underreplicated_ledgers=7, ledgers_in_repair=2)

    async def report() -> ClusterReport:
        return broken

    monkeypatch.setattr(services.cluster, "report", report)
    status = (await gateway.http.get("/status")).json()
    assert status["verdict"] == "degraded, publishing goes on, nothing is lost"
    died, repair, behind = status["findings"]
    assert (died["what"], died["since_ms"]) == ("bookie-2 is down: is not registered in metadata", 1_700)
    assert repair["meanwhile"] == "repair goes on with 2 of them now, and is done in about 3 min"
    assert behind["what"] == "audit of flights is 90,000 messages behind"
    assert "falls further behind" in behind["meanwhile"]
    commands = [finding["command"] for finding in status["findings"]]
    assert commands == ["helio logs bookie-2", "helio ledgers repair-status", "helio topics stats flights"]
    assert "bookie-2" in [part["name"] for part in status["parts"]], "a part that died stays on the page"


async def test_a_report_that_cannot_be_read_is_unknown_and_not_well(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def report() -> ClusterReport:
        raise ServiceNotReadyError("the store is away")

    monkeypatch.setattr(services.cluster, "report", report)
    status = (await gateway.http.get("/status")).json()
    assert status["verdict"].startswith("unknown: the report of the cluster cannot be read: the store is away")


async def test_a_part_that_does_not_answer_is_left_out_and_said_to_be(gateway: Gateway, services: Services) -> None:
    text = (await gateway.http.get("/metrics")).text
    assert 'heliograph_part_scraped{part="bookie-1"} 0' in text
    assert 'heliograph_part_scraped{part="broker-1"} 1' in text
    assert 'heliograph_broker_topics{broker="broker-1"} 3' in text
    assert 'heliograph_broker_add_latency_seconds_count{broker="broker-1",bookie="bookie-1"} 0' in text
    assert 'heliograph_auditor_repaired_bytes_total{worker="auditor"} 5' in text
    assert 'heliograph_part_up{part="bookie-1",kind="bookie"} 1' in text
    assert "heliograph_bookie_entries_added_total" not in text


async def test_who_is_no_superuser_gets_the_metrics_of_the_gateway_alone(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Services, "is_superuser", False)
    text = (await gateway.http.get("/metrics")).text
    assert "heliograph_gateway_memory_bytes" in text
    assert "heliograph_broker" not in text
    assert FLIGHTS not in text
