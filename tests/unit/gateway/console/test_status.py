"""What the console says after a bookie died, and what Prometheus reads of parts that answer, or do not."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from heliograph.base.errors import NamespaceNotFoundError, NotFoundError, ServiceNotReadyError
from heliograph.gateway.console import scrape
from heliograph.gateway.services import Services
from heliograph.metadata.operator_records import ClusterReport, PartReport
from heliograph.metrics.broker import RETRYING
from heliograph.metrics.metric import Histogram
from tests.unit.gateway.world import FLIGHTS, Gateway, View

DEAD = PartReport("bookie-2", "bookie", "MISSING", since_ms=1_700, note="is not registered in metadata")
LABELS = ["public/default", FLIGHTS, "audit"]
LETTERS = ["public/default", f"{FLIGHTS}-audit-DLQ", RETRYING]  # kept until they are sent back
SERIES = {
    "heliograph_subscription_backlog_entries": [[LABELS, 9_000], [LETTERS, 9_000]],
    "heliograph_subscription_backlog_messages": [[LABELS, 90_000]],
    "heliograph_subscription_acknowledged_entries_rate": [[LABELS, 10.0]],
    "heliograph_subscription_out_messages_rate": [[LABELS, 10.0]],
    "heliograph_subscription_consumers": [[LABELS, 1]],
    "heliograph_topic_in_messages_rate": [[LABELS[:2], 50.0]],
}


class Parts:
    """A broker that tells its series, an auditor that repairs, and a bookie that does not answer."""

    def __init__(self) -> None:
        self.others: dict[str, Any] = {}  # brokers, and what they answer; None: nothing, ever

    async def names(self) -> list[str]:
        return ["auditor", "bookie-1", "broker-1", *self.others, "gateway"]

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
        if part in self.others:
            if self.others[part] is None:
                await asyncio.Event().wait()
            return self.others[part]
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
    broken = replace(well, parts=(*well.parts, DEAD), underreplicated_ledgers=7, ledgers_in_repair=2, ledgers_damaged=0)

    async def report() -> ClusterReport:
        return broken

    async def loads() -> tuple[dict[str, Any], ...]:
        return {"broker_id": "broker-1", "topics": 120}, {"broker_id": "broker-2", "topics": 94}

    monkeypatch.setattr(services.cluster, "report", report)
    monkeypatch.setattr(gateway.world.brokers, "loads", loads)
    status = (await gateway.http.get("/status")).json()
    assert status["verdict"] == "degraded, publishing goes on for 214 of 214 topics, nothing is lost"
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


async def test_names_of_pulsar_are_left_to_the_parts_where_they_serve_them(
    gateway: Gateway, services: Services
) -> None:
    assert "pulsar_" in (await gateway.http.get("/metrics?names=pulsar")).text
    told = await gateway.http.get("/metrics?names=pulsar&parts=none")
    assert (told.status_code, told.text.replace("# EOF", "").strip()) == (200, "")


async def test_who_is_no_superuser_gets_the_metrics_of_the_gateway_alone(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Services, "is_superuser", False)
    text = (await gateway.http.get("/metrics")).text
    assert "heliograph_gateway_memory_bytes" in text
    assert "heliograph_broker" not in text
    assert FLIGHTS not in text


async def test_a_hung_broker_hides_no_lag_of_the_others_and_the_verdict_is_not_well(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scrape, "PART_SECONDS", 0.2)
    monkeypatch.setattr(services.parts, "others", {"broker-2": None, "broker-3": {"series": {"x": [[LABELS]]}}})
    status = (await gateway.http.get("/status")).json()
    assert [finding["what"] for finding in status["findings"]] == ["audit of flights is 90,000 messages behind"]
    hung, odd = status["problems"]
    assert hung == "subscriptions of broker-2 cannot be read: no answer in time"
    assert odd.startswith("subscriptions of broker-3 cannot be read: odd answer: ValueError")
    assert status["verdict"] == f"unknown: {hung}"


async def test_a_broker_that_is_known_to_be_down_is_no_further_problem(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    well = await View().report()
    dead = replace(DEAD, name="broker-2", kind="broker")

    async def report() -> ClusterReport:
        return replace(well, parts=(*well.parts, dead))

    monkeypatch.setattr(scrape, "PART_SECONDS", 0.2)
    monkeypatch.setattr(services.cluster, "report", report)
    monkeypatch.setattr(services.parts, "others", {"broker-2": None})
    status = (await gateway.http.get("/status")).json()
    assert status["verdict"] == "degraded, publishing goes on"
    assert status["problems"] == []


async def test_a_cluster_without_the_default_namespace_is_well(gateway: Gateway) -> None:
    gateway.world.admin_error = NamespaceNotFoundError("no namespace public/default")
    status = (await gateway.http.get("/status")).json()
    assert (status["verdict"], status["problems"]) == ("all is well", [])


@pytest.mark.parametrize(
    "answer", [{}, {"add_latency": None}, [], "text", {"add_latency": {"b": None}, "topics": None}]
)
async def test_an_odd_answer_of_one_part_leaves_the_metrics_of_the_others(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch, answer: Any
) -> None:
    monkeypatch.setattr(services.parts, "others", {"broker-2": answer})
    response = await gateway.http.get("/metrics")
    assert response.status_code == 200
    assert 'heliograph_part_scraped{part="broker-2"} 0' in response.text
    assert 'heliograph_broker_topics{broker="broker-1"} 3' in response.text


async def test_brokers_that_cannot_be_listed_are_not_well(
    gateway: Gateway, services: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def names() -> list[str]:
        raise ServiceNotReadyError("no list of actors")

    monkeypatch.setattr(services.parts, "names", names)
    status = (await gateway.http.get("/status")).json()
    assert status["verdict"] == "unknown: subscriptions of all brokers cannot be read: no list of actors"
    assert (await gateway.http.get("/metrics")).status_code == 200
