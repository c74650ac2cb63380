"""Pulsar's /admin/v2 and /lookup/v2, as far as they exist."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.base.errors import BadRequestError, ClusterNotFoundError, NamespaceNotFoundError
from heliograph.gateway.shapes import topics
from heliograph.operations.table import TOPICS_PAGE
from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import FLIGHTS, FLIGHTS_PATH, Gateway

NAMESPACE = "/admin/v2/persistent/public/default"
TOPIC = f"{NAMESPACE}/flights"


async def test_a_topic_is_created_listed_and_deleted(gateway: Gateway) -> None:
    assert (await gateway.http.put(TOPIC)).status_code == 204
    again = await gateway.http.put(TOPIC)
    assert (again.status_code, again.json()["field"]) == (409, "topic")
    assert (await gateway.http.get(f"{NAMESPACE}/")).json() == [FLIGHTS]
    assert (await gateway.http.get(f"{NAMESPACE}/partitioned")).json() == []
    assert (await gateway.http.get(f"{TOPIC}/partitions")).json()["partitions"] == 0
    assert (await gateway.http.delete(TOPIC)).status_code == 204
    assert (await gateway.http.delete(TOPIC)).status_code == 404


@pytest.mark.parametrize("body", [4, {"partitions": 4, "properties": {}}])
async def test_a_partitioned_topic_is_created_listed_and_deleted(gateway: Gateway, body: object) -> None:
    assert (await gateway.http.put(f"{TOPIC}/partitions", json=body)).status_code == 204
    names = [f"{FLIGHTS}-partition-{number}" for number in range(4)]
    assert (await gateway.http.get(NAMESPACE)).json() == names
    assert (await gateway.http.get("/admin/v2/namespaces/public/default/topics?mode=PERSISTENT")).json() == names
    assert (await gateway.http.get(f"{NAMESPACE}/partitioned")).json() == [FLIGHTS]
    assert (await gateway.http.get(f"{TOPIC}/partitions")).json() == {"partitions": 4, "deleted": False}
    assert (await gateway.http.delete(TOPIC)).status_code == 409
    assert (await gateway.http.delete(f"{TOPIC}/partitions")).status_code == 204
    assert gateway.world.topics == {}


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ("four", 400, "body"),
        ("0", 400, "partitions"),
        ("-2", 400, "partitions"),
        ("true", 400, "partitions"),
        ("2.5", 400, "partitions"),
        ("", 400, "partitions"),
        ('{"partitions": "four"}', 400, "partitions"),
        ("1" * 70_000, 413, "body"),
        ("[" * 60_000, 400, "body"),
    ],
)
async def test_a_number_of_partitions_that_is_none(gateway: Gateway, body: str, status: int, field: str) -> None:
    answer = await gateway.http.put(f"{TOPIC}/partitions", content=body)
    assert (answer.status_code, answer.json()["field"]) == (status, field)
    assert gateway.world.topics == {}


async def test_a_partitioned_topic_grows(gateway: Gateway) -> None:
    topic = gateway.world.add(partitions=4)
    gateway.world.add("persistent://public/default/plain")
    assert (await gateway.http.post(f"{TOPIC}/partitions", json=8)).status_code == 204
    assert topic.partitions == 8
    assert (await gateway.http.post(f"{TOPIC}/partitions", json=2)).status_code == 400
    assert (await gateway.http.post(f"{NAMESPACE}/plain/partitions", json=4)).status_code == 405
    assert (await gateway.http.post(f"{TOPIC}/createMissedPartitions")).status_code == 204
    assert (await gateway.http.put(f"{TOPIC}/unload")).status_code == 204


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}, 204),
        ({"properties": {"bookkeeperEnsemble": "3", "bookkeeperWriteQuorum": "2", "bookkeeperAckQuorum": "2"}}, 204),
        ({"owner": "me"}, 204),
        ({"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}, 412),
        ({"bookkeeperEnsemble": 3}, 400),
        ({"bookkeeperEnsemble": "x", "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}, 400),
        (["x"], 400),
    ],
)
async def test_copies_of_a_topic(gateway: Gateway, body: Any, status: int) -> None:
    answer = await gateway.http.put(TOPIC, json=body)
    assert answer.status_code == status
    if status == 412:
        assert answer.json()["limit"] == "E >= Qw >= Qa >= 1"


async def test_deletion_minds_who_is_attached_but_not_the_gateways_own_producers(gateway: Gateway) -> None:
    topic = gateway.world.add()
    await gateway.http.post("/topics/persistent/public/default/flights", json={"messages": [{"payload": "x"}]})
    assert topic.producers == 1
    topic.subscribe("audit", "latest")
    busy = await gateway.http.delete(TOPIC)
    assert (busy.status_code, topic.producers) == (412, 0)
    assert (await gateway.http.delete(f"{TOPIC}?force=true")).status_code == 204


async def test_the_gateways_own_consumers_of_a_topic_that_is_deleted_go_with_it(gateway: Gateway) -> None:
    """A consumer that stayed would subscribe again, and so create the partition again."""
    gateway.world.add(partitions=2)
    for name in ("flights", "flights-partition-1"):
        url = f"/topics/persistent/public/default/{name}/subscription/s/messages?timeoutMs=0"
        assert (await gateway.http.post(url)).status_code == 200
    assert (await gateway.http.delete(f"{TOPIC}/partitions?force=true")).status_code == 204
    assert [consumer.closed for consumer in gateway.world.consumers] == [True, True]


async def test_subscriptions(topic: FakeTopic, gateway: Gateway) -> None:
    topic.publish(b"x", None, {}, None)
    url = f"{TOPIC}/subscription"
    assert (await gateway.http.put(f"{url}/early", json="earliest")).status_code == 204
    assert (await gateway.http.put(f"{url}/late")).status_code == 204
    ends = {"ledgerId": -1, "entryId": -1, "partitionIndex": -1}
    assert (await gateway.http.put(f"{url}/by-id", json=ends)).status_code == 204
    assert {name: len(item.pending) for name, item in topic.subscriptions.items()} == {
        "early": 1,
        "late": 0,
        "by-id": 1,
    }
    assert (await gateway.http.put(f"{url}/late")).status_code == 409
    assert (await gateway.http.put(f"{url}/x", json="middle")).status_code == 400
    assert (await gateway.http.put(f"{url}/x", json={"ledgerId": "5"})).status_code == 400
    assert (await gateway.http.get(f"{TOPIC}/subscriptions")).json() == ["by-id", "early", "late"]
    topic.subscriptions["late"].consumers = 1
    assert (await gateway.http.delete(f"{url}/late")).status_code == 412
    assert (await gateway.http.delete(f"{url}/late?force=true")).status_code == 204
    assert (await gateway.http.delete(f"{url}/late")).status_code == 404


async def test_statistics(gateway: Gateway) -> None:
    gateway.world.add(partitions=2)
    assert (await gateway.http.get(f"{TOPIC}/stats")).json()["msgRateIn"] == 1.5
    assert (await gateway.http.get(f"{TOPIC}/internalStats")).json()["ledgers"] == [{"ledgerId": 100}]
    sums = (await gateway.http.get(f"{TOPIC}/partitioned-stats")).json()
    assert sums["metadata"]["partitions"] == 2
    assert sorted(sums["partitions"]) == [f"{FLIGHTS}-partition-0", f"{FLIGHTS}-partition-1"]
    sums = (await gateway.http.get(f"{TOPIC}/partitioned-stats?perPartition=false")).json()
    assert sums["partitions"] == {}
    assert (await gateway.http.get(f"{NAMESPACE}/unknown/stats")).status_code == 404


EVERYTHING = "0x00000000_0xffffffff"
OWNED = {"broker_assignment": "shared", "is_controlled": False, "is_active": True}
LEADER = {
    "brokerId": "127.0.0.1:8080",
    "serviceUrl": "http://127.0.0.1:8080",
    "name": "broker-1",
    "brokerServiceUrl": "pulsar://127.0.0.1:6650",
}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/admin/v2/clusters", ["standalone"]),
        ("/admin/v2/brokers/leaderBroker", LEADER),
        ("/admin/v2/brokers", ["127.0.0.1:8080"]),
        ("/admin/v2/brokers/standalone", ["127.0.0.1:8080"]),
        ("/admin/v2/brokers/standalone/127.0.0.1:8080/ownedNamespaces", {f"public/default/{EVERYTHING}": OWNED}),
        ("/admin/v2/brokers/standalone/broker-1/ownedNamespaces", {f"public/default/{EVERYTHING}": OWNED}),
        ("/admin/v2/brokers/standalone/127.0.0.1:6650/ownedNamespaces", {f"public/default/{EVERYTHING}": OWNED}),
        ("/admin/v2/brokers/configuration/values", {}),
        ("/admin/v2/brokers/configuration/runtime", {"clusterName": "standalone", "port": "0"}),
        ("/admin/v2/clusters/standalone/peers", []),
        ("/admin/v2/clusters/standalone/failureDomains", {}),
        ("/admin/v2/non-persistent/public/default", []),
        ("/admin/v2/namespaces/public/default/topics?mode=NON_PERSISTENT", []),
    ],
)
async def test_what_the_cluster_is_made_of(gateway: Gateway, path: str, expected: object) -> None:
    answer = await gateway.http.get(path)
    assert (answer.status_code, answer.json()) == (200, expected)


async def test_racks_of_bookies(gateway: Gateway) -> None:
    await gateway.world.namespaces.begin()
    http, base = gateway.http, "/admin/v2/bookies/racks-info"
    registered = {"rack": "default", "hostname": "bookie-1"}
    assert (await http.get(base)).json() == {"default": {"127.0.0.1:3181": registered}}
    for refused, status in ((f"{base}/127.0.0.1:3181", 412), (f"{base}/1.1.1.1:1?group=g", 404)):
        assert (await http.post(refused, json={"rack": "r1"})).status_code == status
    assert (await http.post(f"{base}/bookie-1?group=g", json={"rack": "/"})).status_code == 412
    body = {"rack": "r1", "hostname": "h"}
    assert (await http.post(f"{base}/127.0.0.1:3181?group=g", json=body)).status_code == 204
    assert (await http.get(base)).json() == {"g": {"127.0.0.1:3181": body}}
    assert (await http.get(f"{base}/bookie-1")).json() == body
    assert (await http.delete(f"{base}/bookie-1")).status_code == 204
    assert (await http.delete(f"{base}/bookie-1")).status_code == 404
    assert (await http.get(f"{base}/127.0.0.1:3181")).json() == registered
    assert (await http.get(f"{base}/1.1.1.1:1")).status_code == 404


async def test_settings_that_change_while_brokers_run(gateway: Gateway) -> None:
    base = "/admin/v2/brokers/configuration"
    names = (await gateway.http.get(base)).json()
    assert {"connections_max", "brokerMaxConnections", "balance.shed_gap"} <= set(names)
    assert (await gateway.http.post(f"{base}/brokerMaxConnections/7")).status_code == 204
    assert (await gateway.http.post(f"{base}/balance.shed_gap/0.5")).status_code == 204
    changed = {"brokerMaxConnections": "7", "connections_max": "7", "balance.shed_gap": "0.5"}
    shedder = {"loadBalancerBrokerThresholdShedderPercentage": "50"}
    assert (await gateway.http.get(f"{base}/values")).json() == changed | shedder
    assert (await gateway.http.delete(f"{base}/connections_max")).status_code == 204
    assert "brokerMaxConnections" not in (await gateway.http.get(f"{base}/values")).json()
    refused = await gateway.http.post(f"{base}/connections_max/-1")
    assert (refused.status_code, refused.json()["limit"]) == (412, "at least 0")


async def test_a_lookup_by_the_name_of_a_listener(gateway: Gateway) -> None:
    gateway.world.add()
    path = f"/lookup/v2/topic/{FLIGHTS_PATH}"
    found = [
        (await gateway.http.get(path, params={"listenerName": "outside"})).json(),
        (await gateway.http.get(path, headers={"X-Pulsar-ListenerName": "outside"})).json(),
    ]
    assert [answer["brokerUrl"] for answer in found] == ["pulsar://outside:6650"] * 2


async def test_the_load_report_is_one_object_that_pulsar_s_tools_parse(gateway: Gateway) -> None:
    found = (await gateway.http.get("/admin/v2/broker-stats/load-report")).json()
    assert (found["loadReportType"], found["webServiceUrl"]) == ("LocalBrokerData", "http://127.0.0.1:8080")
    assert found["cpu"] == {"usage": 50.0, "limit": 100.0}
    assert found["bundles"] == [f"public/default/{EVERYTHING}"]
    assert found["brokers"] == [{"broker_id": "broker-1", "cpu_share": 0.5}]
    (metrics,) = (await gateway.http.get("/admin/v2/broker-stats/metrics")).json()
    assert metrics["metrics"] == {"brk_cpu_share": 0.5}


async def test_the_statistics_of_all_loaded_topics(gateway: Gateway) -> None:
    gateway.world.add()
    found = (await gateway.http.get("/admin/v2/broker-stats/topics")).json()
    assert found["public/default"][EVERYTHING]["persistent"][FLIGHTS]["msgRateIn"] == 1.5


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("PUT", "/admin/v2/clusters/standalone", 409, "exists"),
        ("PUT", "/admin/v2/clusters/other", 501, "replication"),
        ("POST", "/admin/v2/clusters/standalone", 405, "registered"),
        ("DELETE", "/admin/v2/clusters/standalone", 405, "helio down"),
        ("DELETE", "/admin/v2/clusters/other", 404, "no cluster other"),
        ("POST", "/admin/v2/clusters/standalone/peers", 501, "replication"),
        ("GET", "/admin/v2/clusters/standalone/migrate", 501, "migration"),
        ("POST", "/admin/v2/clusters/standalone/failureDomains/d", 501, "failure domains"),
        ("GET", "/admin/v2/clusters/standalone/failureDomains/d", 404, "failure domain d"),
        ("POST", "/admin/v2/brokers/configuration/x/1", 412, "no setting named x"),
        ("DELETE", "/admin/v2/brokers/configuration/x", 412, "no setting named x"),
        ("POST", "/admin/v2/brokers/shutdown", 405, "drain"),
        ("GET", "/admin/v2/broker-stats/mbeans", 501, "Java"),
        ("GET", "/admin/v2/broker-stats/allocator-stats/default", 501, "Java"),
        ("GET", "/admin/v2/brokers/standalone/9.9.9.9:1/ownedNamespaces", 404, "no broker"),
    ],
)
async def test_what_is_not_offered_is_refused_with_a_reason(
    gateway: Gateway, method: str, path: str, status: int, words: str
) -> None:
    answer = await gateway.http.request(method, path)
    assert (answer.status_code, words in answer.json()["reason"]) == (status, True), answer.json()


async def test_bookies_and_health_and_lookup(gateway: Gateway) -> None:
    (bookie,) = (await gateway.http.get("/admin/v2/bookies/all")).json()["bookies"]
    assert (bookie["bookieId"], bookie["writable"], bookie["freeBytes"]) == ("bookie-1", True, 10)
    assert (await gateway.http.get("/admin/v2/brokers/health")).text == "ok"
    assert (await gateway.http.get("/admin/v2/brokers/version")).text
    assert (await gateway.http.get("/admin/v2/brokers/backlog-quota-check")).status_code == 204
    assert gateway.world.brokers.asked == [("check",)]
    bundle = await gateway.http.get("/lookup/v2/topic/persistent/public/default/flights/bundle")
    assert bundle.text == EVERYTHING
    found = (await gateway.http.get("/lookup/v2/topic/persistent/public/default/flights")).json()
    assert found["brokerUrl"] == found["nativeUrl"] == "pulsar://127.0.0.1:6650"
    assert found["brokerUrlTls"] == found["brokerUrlSsl"] == ""


async def test_auto_creation_is_answered_as_stock_clients_expect(gateway: Gateway) -> None:
    assert (await gateway.http.get(f"{TOPIC}/partitions?checkAllowAutoCreation=true")).json()["partitions"] == 0
    assert (await gateway.http.get(f"{TOPIC}/partitions")).status_code == 404


@pytest.mark.parametrize(
    "path",
    ["/admin/v2/tenants/x", "/admin/v2/namespaces/x/y", "/admin/v2/clusters/x", "/nowhere"],
)
async def test_what_is_not_there(gateway: Gateway, path: str) -> None:
    answer = await gateway.http.get(path)
    assert answer.status_code == 404
    assert answer.json()["reason"]


async def test_without_brokers_the_gateway_says_so(gateway: Gateway) -> None:
    gateway.world.admin_error = ClusterNotFoundError("no broker")
    for path in ("/health", "/admin/v2/brokers/health", "/admin/v2/brokers/ready"):
        answer = await gateway.http.get(path)
        assert (answer.status_code, answer.json()["advice"]) == (503, "refresh")
    status = (await gateway.http.get("/status")).json()
    assert status["problems"] == ["topics cannot be read: no broker"]
    assert status["verdict"] == "unknown: topics cannot be read: no broker"
    assert status["bookies"] == [{"id": "bookie-1", "address": "127.0.0.1:3181", "rack": "default", "writable": True}]


async def test_a_broker_that_knows_no_pages_is_asked_for_all_topics(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(namespace: str, *pages: Any) -> list[dict[str, Any]]:
        if pages:
            raise BadRequestError("list_topics: got an unexpected keyword argument", field="arguments")
        names = ("persistent://public/other/a", "persistent://public/other/b", "non-persistent://public/other/a")
        return [{"name": name, "partitions": 0} for name in names]

    monkeypatch.setattr(gateway.world, "list_topics", listed)
    url = "/admin/v2/persistent/public/other"
    begin = "persistent://public/other/"
    assert (await gateway.http.get(url)).json() == [f"{begin}a", f"{begin}b"]
    assert (await gateway.http.get(f"{url}?prefix=b")).json() == [f"{begin}b"]
    assert (await gateway.http.get(f"{url}?after={begin}a")).json()["field"] == "arguments"


async def test_a_whole_list_is_gathered_from_pages_and_has_a_limit(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, asked = "persistent://public/many/", list[tuple[str, int]]()

    async def listed(namespace: str, after: str, limit: int, prefix: str, domain: str) -> list[dict[str, Any]]:
        asked.append((after, limit))
        first = int(after.rpartition("/")[2] or -1) + 1
        return [{"name": f"{begin}{n:04}", "partitions": n % 2} for n in range(first, min(first + limit, 2_500))]

    monkeypatch.setattr(gateway.world, "list_topics", listed)
    url = "/admin/v2/persistent/public/many"
    assert len((await gateway.http.get(url)).json()) == 2_500
    assert asked == [("", TOPICS_PAGE), (f"{begin}0999", TOPICS_PAGE), (f"{begin}1999", TOPICS_PAGE)]
    lists = (url, "/admin/v2/namespaces/public/many/topics?mode=PERSISTENT", f"{url}/0x00000000_0xffffffff")
    for each in (*lists, f"{url}/partitioned"):
        monkeypatch.setattr(topics, "TOPICS_LISTED_MAX", 2_500)
        assert (await gateway.http.get(each)).status_code == 200
        monkeypatch.setattr(topics, "TOPICS_LISTED_MAX", 1_000)
        assert (await gateway.http.get(each)).json()["limit"] == "1..1000 topics"
        paged = (await gateway.http.get(each, params={"limit": 1_100, "mode": "ALL"})).json()
        assert "0x" in each or len(paged) == 1_100
    page = (await gateway.http.get(f"{url}/partitioned?limit=2&after={begin}0004")).json()
    assert page == [f"{begin}0005", f"{begin}0007"]
    bundle = {"bundle": "0x00000000_0x80000000", "limit": "3", "prefix": "00"}
    assert len((await gateway.http.get(url, params=bundle)).json()) == 3, "a page of a bundle is not cut short"


async def test_topics_are_listed_in_pages(gateway: Gateway) -> None:
    for name in ("a1", "a2", "b1"):
        assert (await gateway.http.put(f"/admin/v2/persistent/public/default/{name}")).status_code == 204
    url = "/admin/v2/persistent/public/default"
    begin = "persistent://public/default/"
    assert (await gateway.http.get(f"{url}?limit=1&prefix=a")).json() == [f"{begin}a1"]
    assert (await gateway.http.get(f"{url}?limit=1&prefix=a&after={begin}a1")).json() == [f"{begin}a2"]
    assert (await gateway.http.get(f"{url}?limit=1&prefix=a&after={begin}a2")).json() == []
    assert (await gateway.http.get(f"{url}?limit=-1")).json()["field"] == "limit"


async def test_whether_a_broker_is_ready_is_asked_without_a_list_of_topics(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def listed(namespace: str = "") -> list[dict[str, Any]]:
        raise AssertionError("a list costs more with each topic")

    monkeypatch.setattr(gateway.world, "list_topics", listed)
    for path in ("/health", "/admin/v2/brokers/health", "/admin/v2/brokers/ready"):
        assert (await gateway.http.get(path)).status_code == 200
    gateway.world.admin_error = NamespaceNotFoundError("public/default was deleted")
    assert (await gateway.http.get("/health")).status_code == 200


async def test_the_console_page_and_what_it_shows() -> None:
    async with Gateway(dashboard_url="http://127.0.0.1:8265") as gateway:
        topic = gateway.world.add()
        topic.subscribe("audit", "latest")
        topic.publish(b"x", None, {}, None)
        page = await gateway.http.get("/")
        assert "text/html" in page.headers["content-type"]
        assert "//" not in page.text  # no asset from elsewhere
        status = (await gateway.http.get("/status")).json()
        (row,) = status["topics"]
        assert (row["name"], row["msgRateIn"], row["backlog"]) == (FLIGHTS, 1.5, {"audit": 1})
        assert status["dashboardUrl"] == "http://127.0.0.1:8265"
        assert status["problems"] == []
        assert status["healthy"]
        assert [(part["name"], part["state"], part["note"]) for part in status["parts"]] == [
            ("broker-1", "ALIVE", ""),
            ("bookie-1", "ALIVE", ""),
        ]


async def test_documentation_and_metrics(gateway: Gateway) -> None:
    gateway.world.add()
    await gateway.http.post("/topics/persistent/public/default/flights", json={"messages": [{"payload": "abc"}]})
    await gateway.http.get("/nowhere")
    text = (await gateway.http.get("/metrics")).text
    assert 'heliograph_gateway_messages_produced_total{transport="rest"} 1' in text
    assert 'heliograph_gateway_produced_bytes_total{transport="rest"} 3' in text
    route = 'route="/topics/{domain}/{tenant}/{namespace}/{topic}",status="200"'
    assert f'heliograph_gateway_http_requests_total{{method="POST",{route}}} 1' in text
    assert 'route="none",status="404"' in text
    assert (await gateway.http.get("/docs")).status_code == 200
    paths = (await gateway.http.get("/openapi.json")).json()["paths"]
    body = paths["/topics/{domain}/{tenant}/{namespace}/{topic}"]["post"]["requestBody"]
    message = body["content"]["application/json"]["schema"]["properties"]["messages"]["items"]
    assert "payloadBase64" in message["properties"]


async def test_wrong_methods_and_plain_http_to_websockets(gateway: Gateway) -> None:
    answer = await gateway.http.post("/metrics")
    assert answer.status_code == 405
    assert answer.json()["reason"]
    answer = await gateway.http.get("/ws/v2/producer/persistent/public/default/t")
    assert answer.status_code == 426


@pytest.mark.parametrize(
    ("body", "position"),
    [
        ({"ledgerId": 5, "entryId": 1}, "5:0"),
        ({"ledgerId": 5, "entryId": 0}, "5:-1"),
        ({"ledgerId": 5, "entryId": 1, "isExcluded": True}, "5:1"),
        ({"ledgerId": -1, "entryId": -1}, "earliest"),
        ({"ledgerId": 2**63 - 1, "entryId": 2**63 - 1}, "latest"),
    ],
)
async def test_a_subscription_starts_at_a_message(gateway: Gateway, body: dict[str, Any], position: str) -> None:
    topic = gateway.world.add()
    asked: list[object] = []
    topic.subscribe = lambda name, place: asked.append(place)  # type: ignore[method-assign, assignment, return-value]
    assert (await gateway.http.put(f"{TOPIC}/subscription/s", json=body)).status_code == 204
    assert asked == [position]


async def test_topics_that_store_nothing_have_lists_and_paths_of_their_own(gateway: Gateway) -> None:
    volatile = "non-persistent://public/default/volatile"
    gateway.world.add()
    gateway.world.add(volatile)
    get = gateway.http.get
    assert (await get("/admin/v2/non-persistent/public/default")).json() == [volatile]
    assert (await get("/admin/v2/persistent/public/default")).json() == [FLIGHTS]
    topics = "/admin/v2/namespaces/public/default/topics"
    assert (await get(f"{topics}?mode=NON_PERSISTENT")).json() == [volatile]
    assert (await get(f"{topics}?mode=ALL")).json() == [volatile, FLIGHTS]
    assert (await get("/admin/v2/non-persistent/public/default/volatile/stats")).status_code == 200
    assert (await get("/admin/v2/persistent/public/default/volatile/stats")).status_code == 404


async def test_topics_are_ended(topic: FakeTopic, gateway: Gateway) -> None:
    answer = await gateway.http.post(f"{TOPIC}/terminate")
    assert answer.json() == {"ledgerId": topic.ledger_id, "entryId": -1, "partitionIndex": -1}
    assert topic.is_terminated
    assert (await gateway.http.post(f"{TOPIC}/terminate/partitions")).status_code == 405
    parts = gateway.world.add(f"{FLIGHTS}-parts", partitions=2)
    assert (await gateway.http.post(f"{TOPIC}-parts/terminate")).status_code == 405
    answer = await gateway.http.post(f"{TOPIC}-parts/terminate/partitions")
    assert [one["partitionIndex"] for one in answer.json().values()] == [0, 1]
    assert parts.is_terminated
    assert (await gateway.http.post(f"{NAMESPACE}/nowhere/terminate")).status_code == 404


async def test_compaction_is_begun_and_watched(gateway: Gateway) -> None:
    gateway.world.add()
    assert (await gateway.http.get(f"{TOPIC}/compaction")).json() == {"status": "NOT_RUN", "lastError": ""}
    assert (await gateway.http.put(f"{TOPIC}/compaction")).status_code == 204
    assert (await gateway.http.get(f"{TOPIC}/compaction")).json()["status"] == "RUNNING"
    assert (await gateway.http.put(f"{TOPIC}/compaction")).status_code == 409
    assert (await gateway.http.put(f"{NAMESPACE}/nowhere/compaction")).status_code == 404


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/topics", 404), ("PATCH", TOPIC, 405)])
async def test_a_path_or_method_that_there_is_not_is_named(
    gateway: Gateway, method: str, path: str, status: int
) -> None:
    answer = await gateway.http.request(method, path)
    assert answer.status_code == status
    assert path in answer.json()["reason"]
    assert "/docs" in answer.json()["reason"]
