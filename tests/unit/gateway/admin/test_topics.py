"""Topic properties, trimming, and what is told of a topic, over REST in the shapes of Pulsar's tools."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.gateway.clients import FakeTopic
from tests.unit.gateway.world import FLIGHTS, FLIGHTS_PATH, Gateway

TOPIC = f"/admin/v2/{FLIGHTS_PATH}"
NAMESPACE = "/admin/v2/namespaces/public/default"
ALL = "0x00000000_0xffffffff"


async def test_properties_of_topics_are_kept(gateway: Gateway) -> None:
    http = gateway.http
    assert (await http.put(TOPIC, json={"team": "air", "n": 2})).status_code == 204
    assert (await http.get(f"{TOPIC}/properties")).json() == {"team": "air", "n": "2"}
    assert (await http.put(f"{TOPIC}/properties", json={"n": "3"})).status_code == 204
    assert (await http.delete(f"{TOPIC}/properties?key=team")).status_code == 204
    assert (await http.get(f"{TOPIC}/properties")).json() == {"n": "3"}
    parts = f"{TOPIC}-parts"
    assert (await http.put(f"{parts}/partitions", json={"partitions": "2", "properties": {"a": "b"}})).is_success
    assert gateway.world.topics[f"{FLIGHTS}-parts"].partitions == 2
    assert (await http.get(f"{parts}/properties")).json() == {"a": "b"}
    assert (await http.put(f"{TOPIC}/properties", json={"a": {}})).status_code == 400


async def test_the_coordinator_of_transactions_is_not_found_and_the_reason_says_why(gateway: Gateway) -> None:
    answer = await gateway.http.get("/admin/v2/persistent/pulsar/system/transaction_coordinator_assign/partitions")
    assert answer.status_code == 404
    assert "transactions are not offered" in answer.json()["reason"]


async def test_properties_that_set_copies_are_no_properties(gateway: Gateway) -> None:
    copies = {"bookkeeperEnsemble": "3", "bookkeeperWriteQuorum": "2", "bookkeeperAckQuorum": "2", "team": "air"}
    assert (await gateway.http.put(TOPIC, json=copies)).status_code == 204
    assert (await gateway.http.get(f"{TOPIC}/properties")).json() == {"team": "air"}


async def test_a_subscription_is_created_with_properties(gateway: Gateway) -> None:
    gateway.world.add()
    body = {"ledgerId": 3, "entryId": "4", "excluded": True, "properties": {"a": "b"}}
    assert (await gateway.http.put(f"{TOPIC}/subscription/s", json=body)).status_code == 204
    assert (await gateway.http.get(f"{TOPIC}/subscription/s/properties")).json() == {"a": "b"}


async def test_statistics_leave_out_the_producers_and_consumers_that_nobody_asks_for(gateway: Gateway) -> None:
    http = gateway.http
    gateway.world.add()
    parts = f"{TOPIC}-parts"
    assert (await http.put(f"{parts}/partitions", json=2)).is_success
    for topic in (TOPIC, parts):
        await http.put(f"{topic}/subscription/s", json="latest")
        path = f"{topic}/stats" if topic == TOPIC else f"{topic}/partitioned-stats"
        both = (await http.get(path)).json()
        assert both["publishers"]
        assert both["subscriptions"]["s"]["consumers"]
        found = (await http.get(f"{path}?excludePublishers=true&excludeConsumers=true")).json()
        for one in (found, *found.get("partitions", {}).values()):
            assert one["publishers"] == []
            assert all(subscription["consumers"] == [] for subscription in one["subscriptions"].values())


async def test_trimming_and_truncation(topic: FakeTopic, gateway: Gateway) -> None:
    assert (await gateway.http.post(f"{TOPIC}/trim")).status_code == 204
    assert (await gateway.http.delete(f"{TOPIC}/truncate")).status_code == 204
    assert topic.cut == ["trim", "truncate"]


async def test_stored_records_have_pulsar_s_shape(gateway: Gateway) -> None:
    gateway.world.add()
    found = (await gateway.http.get(f"{TOPIC}/internal-info")).json()
    assert found["creationDate"] == "2023-11-14T22:13:20.000Z"
    (ledger,) = found["ledgers"]
    assert ledger == {"ledgerId": 100, "entries": 8, "size": 80, "timestamp": 9, "isOffloaded": False}
    assert found["terminatedPosition"] == {"ledgerId": 100, "entryId": 7}
    assert found["cursors"]["s"]["markDelete"] == {"ledgerId": 100, "entryId": -1}
    assert (await gateway.http.get(f"{TOPIC}/partitioned-internalStats")).status_code == 404
    gateway.world.topics[FLIGHTS].partitions = 2
    parts = (await gateway.http.get(f"{TOPIC}/internal-info")).json()["partitions"]
    assert sorted(parts) == [f"{FLIGHTS}-partition-0", f"{FLIGHTS}-partition-1"]
    assert (await gateway.http.get(f"{TOPIC}/partitioned-internalStats")).json()["metadata"]["partitions"] == 2


async def test_backlogs_are_measured_and_analysed(gateway: Gateway) -> None:
    gateway.world.add()
    place = {"ledgerId": 3, "entryId": 4, "partitionIndex": -1}
    size = await gateway.http.put(f"{TOPIC}/backlogSize", json=place)
    assert (size.status_code, size.json()) == (200, 77)
    found = (await gateway.http.post(f"{TOPIC}/subscription/s/analyzeBacklog", json=place)).json()
    assert (found["entries"], found["messages"], found["aborted"]) == (2, 5, False)
    assert (found["filterAcceptedMessages"], found["filterRejectedEntries"]) == (5, 0)
    assert (await gateway.http.post(f"{TOPIC}/subscription/s/analyzeBacklog")).is_success
    assert gateway.world.cursors.calls == [
        ("backlog_size", FLIGHTS, "3:4:-1"),
        ("analyze", FLIGHTS, "s", "3:4:-1"),
        ("analyze", FLIGHTS, "s", None),
    ]


@pytest.mark.parametrize(
    ("path", "status", "call"),
    [
        ("clearBacklog", 204, ("clear", "public/default", None, None)),
        ("clearBacklog/s", 204, ("clear", "public/default", None, "s")),
        (f"{ALL}/clearBacklog", 204, ("clear", "public/default", ALL, None)),
        (f"{ALL}/clearBacklog/s", 204, ("clear", "public/default", ALL, "s")),
        ("unsubscribe/s", 204, ("unsubscribe", "public/default", "s", None)),
        (f"{ALL}/unsubscribe/s", 204, ("unsubscribe", "public/default", "s", ALL)),
        ("unsubscribe/busy", 412, ("unsubscribe", "public/default", "busy", None)),
    ],
)
async def test_subscriptions_of_a_whole_namespace(
    gateway: Gateway, path: str, status: int, call: tuple[Any, ...]
) -> None:
    assert (await gateway.http.post(f"{NAMESPACE}/{path}")).status_code == status
    assert gateway.world.cursors.calls == [call]


async def test_topics_are_listed_by_bundle_and_with_their_hashes(gateway: Gateway) -> None:
    gateway.world.add()
    listed = f"/admin/v2/persistent/public/default?bundle={ALL}"
    assert (await gateway.http.get(listed)).json() == [FLIGHTS]
    assert (await gateway.http.get(listed.replace("ffffffff", "00000001"))).json() == []
    assert (await gateway.http.get(listed.replace("0x", ""))).json() == [FLIGHTS]
    assert (await gateway.http.get(f"{listed}_1")).status_code == 400
    for domain, topics in (("persistent", [FLIGHTS]), ("non-persistent", [])):  # as pulsar-admin asks for a bundle
        assert (await gateway.http.get(f"/admin/v2/{domain}/public/default/{ALL}")).json() == topics
    assert (await gateway.http.get("/admin/v2/persistent/public/default/flights")).status_code == 400
    found = (await gateway.http.get(f"{NAMESPACE}/{ALL}/topicHashPositions")).json()
    assert list(found["topicHashPositions"]) == [FLIGHTS]
    assert (await gateway.http.get(f"{NAMESPACE}/0x00000000_0x10000000/topicHashPositions")).status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("PUT", "subscription/s?replicated=true", None, 501, "replicated subscriptions"),
        ("POST", "subscription/s/replicatedSubscriptionStatus", True, 501, "replicated subscriptions"),
        ("POST", "subscription/s/replicatedSubscriptionStatus", False, 404, "no subscription s"),
        ("PUT", "shadowTopics", ["persistent://public/default/x"], 501, "shadow topics"),
        ("DELETE", "shadowTopics", None, 501, "shadow topics"),
        ("PUT", "", {"PULSAR.SHADOW_SOURCE": "persistent://public/default/x"}, 501, "shadow topics"),
        ("PUT", "partitions", {"partitions": 2, "properties": {"PULSAR.SHADOW_SOURCE": "x"}}, 501, "shadow topics"),
        ("PUT", "offload", {"ledgerId": 1, "entryId": 1}, 501, "offloading"),
        ("GET", "offload", None, 501, "offloading"),
    ],
)
async def test_what_one_cluster_has_not_is_refused_with_a_reason(
    gateway: Gateway, method: str, path: str, body: Any, status: int, words: str
) -> None:
    gateway.world.add()
    answer = await gateway.http.request(method, f"{TOPIC}/{path}".rstrip("/"), json=body)
    assert (answer.status_code, words in answer.json()["reason"]) == (status, True), answer.text


async def test_what_is_never_replicated_says_so(gateway: Gateway) -> None:
    gateway.world.add().subscribe("s", "latest")
    path = f"{TOPIC}/subscription/s/replicatedSubscriptionStatus"
    assert (await gateway.http.get(path)).json() == {FLIGHTS: False}
    assert (await gateway.http.post(path, json=False)).status_code == 204
    assert (await gateway.http.get(f"{TOPIC}/shadowTopics")).json() == []


async def test_a_message_is_traced_and_found_over_http(gateway: Gateway) -> None:
    gateway.world.add()
    base = f"/admin/v2/{FLIGHTS_PATH}"
    traced = await gateway.http.get(f"{base}/ledger/7/entry/3/trace")
    assert (traced.status_code, traced.json()["message_id"]) == (200, "7:3:-1")
    found = await gateway.http.get(f"{base}/messages/find?property=order&value=A-1&limit=4")
    assert found.json() == {"message_ids": ["7:4:-1"], "entries": 3, "is_cut": True}
    followed = await gateway.http.get("/admin/v2/brokers/followed/0af7")
    assert [one["steps"][0]["trace"] for one in followed.json()] == ["0af7"]
