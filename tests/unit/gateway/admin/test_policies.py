"""Tenants, namespaces, bundles and policies in Pulsar's shapes."""

from __future__ import annotations

import json
from typing import Any

import crc32c
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.namespaces.policies import flat, with_policies
from heliograph.gateway.admin.not_offered import NOT_OFFERED
from heliograph.gateway.admin.policy_shapes import NAMESPACE_POLICIES, TOPIC_POLICIES
from heliograph.metadata import codec
from heliograph.metadata.model import NamespacePolicies
from tests.unit.gateway.world import FLIGHTS, Gateway

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
NAMESPACE = f"{NAMESPACES}/public/default"
TOPIC = "/admin/v2/persistent/public/default/flights"
RATE = {"relativeToPublishRate": False, "ratePeriodInSecond": 1}
SLOW = {"relativeToPublishRate": True, "ratePeriodInSecond": 60}
EXAMPLES: list[tuple[str, Any]] = [
    ("retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1024}),
    ("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
    ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
    ("messageTTL", 3600),
    ("dispatchRate", {"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": -1, **RATE}),
    ("dispatchRate", {"dispatchThrottlingRateInMsg": 30, "dispatchThrottlingRateInByte": 1, **SLOW}),
    ("subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": 7, "dispatchThrottlingRateInByte": 1 << 40, **SLOW}),
    ("subscribeRate", {"subscribeThrottlingRatePerConsumer": 10, "ratePeriodInSecond": 30}),
    ("subscribeRate", {"subscribeThrottlingRatePerConsumer": -1, "ratePeriodInSecond": 60}),
    ("subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": 1024, **RATE}),
    ("publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": 1_000_000}),
    ("maxConsumersPerSubscription", 3),
    ("maxSubscriptionsPerTopic", 7),
    ("deduplicationSnapshotInterval", 60),
    ("delayedDelivery", {"active": False, "tickTime": 500, "maxDeliveryDelayInMillis": 9000}),
    ("subscriptionTypesEnabled", ["Failover", "Shared"]),
    (
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
        },
    ),
    (
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 70,
            "deleteWhileInactive": False,
        },
    ),
    ("compactionThreshold", 1 << 20),
    ("schemaCompatibilityStrategy", "FORWARD"),
    ("schemaValidationEnforced", True),
    ("autoSubscriptionCreation", {"allowAutoSubscriptionCreation": False}),
]
OF_NAMESPACES = [
    *EXAMPLES,
    ("deduplication", True),
    ("autoTopicCreation", {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}),
    (
        "autoTopicCreation",
        {"allowAutoTopicCreation": False, "topicType": "non-partitioned"},
    ),
    ("maxProducersPerTopic", 3),
    ("maxConsumersPerTopic", 3),
    ("maxUnackedMessagesPerConsumer", 100),
    ("maxUnackedMessagesPerSubscription", 1000),
    ("isAllowAutoUpdateSchema", False),
    ("schemaAutoUpdateCompatibilityStrategy", "AutoUpdateDisabled"),
    ("encryptionRequired", True),
    ("maxTopicsPerNamespace", 10),
    ("subscriptionExpirationTime", 30),
]
OF_TOPICS = [
    *EXAMPLES,
    ("deduplicationEnabled", True),
    ("maxProducers", 3),
    ("maxConsumers", 3),
    ("maxUnackedMessagesOnConsumer", 100),
    ("maxUnackedMessagesOnSubscription", 1000),
    ("maxMessageSize", 1024),
]


async def begin(gateway: Gateway) -> None:
    await gateway.world.namespaces.begin([FLIGHTS])


UNSET = {  # what a namespace answers that does not set the policy; the others answer nothing
    "schemaCompatibilityStrategy": "UNDEFINED",
    "schemaAutoUpdateCompatibilityStrategy": "Full",
    "schemaValidationEnforced": False,
    "isAllowAutoUpdateSchema": True,
    "encryptionRequired": False,
    "subscriptionTypesEnabled": [],
    "maxTopicsPerNamespace": 0,
}
COPIES = {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
OF_BOTH_SHOWN = ("persistence", {**COPIES, "managedLedgerMaxMarkDeleteRate": 2.5})


async def check_unset(gateway: Gateway, url: str, name: str, *, of_namespace: bool) -> None:
    answer = await gateway.http.get(f"{url}/{name}")
    if of_namespace and name in UNSET:
        assert (answer.status_code, answer.json()) == (200, UNSET[name]), name
    else:
        assert (answer.status_code, answer.content) == (204, b""), name


def as_text(body: Any) -> Any:
    """Return a body in which each number and flag is text, as some clients send it."""
    if isinstance(body, dict):
        return {name: as_text(value) for name, value in body.items()}
    return json.dumps(body) if isinstance(body, bool | int) else body


@pytest.mark.slow
@pytest.mark.parametrize("of_namespace", [True, False])
async def test_every_policy_is_set_shown_and_removed(gateway: Gateway, of_namespace: bool) -> None:
    url, shapes = (NAMESPACE, NAMESPACE_POLICIES) if of_namespace else (TOPIC, TOPIC_POLICIES)
    examples = [*(OF_NAMESPACES if of_namespace else OF_TOPICS), OF_BOTH_SHOWN]
    assert {name for name, _ in examples} == set(shapes)
    await begin(gateway)
    for name, body in examples:
        http, policy = gateway.http, f"{url}/{name}"
        await check_unset(gateway, url, name, of_namespace=of_namespace)
        by_default = (await http.get(f"{policy}?applied=true")).json()
        ways = [("POST", body), ("PUT", body), ("POST", as_text(body))]
        removals: list[tuple[str, bytes | None]] = [("DELETE", None), ("POST", b"null"), ("POST", b"")]
        for (method, sent), (removal, nothing) in zip(ways, removals, strict=True):
            assert (await http.request(method, policy, json=sent)).status_code == 204, name
            assert (await http.get(policy)).json() == body
            assert (await http.get(f"{policy}?applied=true")).json() == body
            assert (await http.request(removal, policy, content=nothing)).status_code == 204
            await check_unset(gateway, url, name, of_namespace=of_namespace)
            assert (await http.get(f"{policy}?applied=true")).json() == by_default


async def test_topics_are_not_made_by_their_first_use_and_no_type_is_named(gateway: Gateway) -> None:
    await begin(gateway)
    for left_empty in ("", None):
        body = {"allowAutoTopicCreation": False, "topicType": left_empty, "defaultNumPartitions": None}
        assert (await gateway.http.post(f"{NAMESPACE}/autoTopicCreation", json=body)).status_code == 204
        shown = (await gateway.http.get(f"{NAMESPACE}/autoTopicCreation")).json()
        assert shown == {"allowAutoTopicCreation": False, "topicType": "non-partitioned"}


@pytest.mark.parametrize("url", [NAMESPACE, TOPIC])
async def test_a_time_to_live_may_stand_in_the_query(gateway: Gateway, url: str) -> None:
    await begin(gateway)
    assert (await gateway.http.post(f"{url}/messageTTL?messageTTL=20")).status_code == 204
    assert (await gateway.http.get(f"{url}/messageTTL")).json() == 20
    assert (await gateway.http.delete(f"{url}/messageTTL?messageTTL=0")).status_code == 204
    assert (await gateway.http.get(f"{url}/messageTTL")).status_code == 204
    assert (await gateway.http.post(f"{url}/messageTTL?messageTTL=-2")).status_code == 412


@pytest.mark.parametrize("url", [NAMESPACE, TOPIC])
async def test_a_policy_that_is_not_offered_is_never_set(gateway: Gateway, url: str) -> None:
    await begin(gateway)
    for name in {*NOT_OFFERED, "persistence/bookieAffinity"} - {"bookieAffinity", "shadowTopics"}:
        shown = await gateway.http.get(f"{url}/{name}")
        if "/" in name and url == TOPIC:
            continue  # only namespaces have it
        assert shown.status_code in (200, 204), name
        for method in ("POST", "PUT")[: 1 if "/" in name else 2]:
            answer = await gateway.http.request(method, f"{url}/{name}", json={"some": "thing"})
            assert answer.status_code == 501, name
            assert "is not offered: " in answer.json()["reason"]
        assert (await gateway.http.delete(f"{url}/{name}")).status_code == 204
    assert (await gateway.http.post(f"{NAMESPACE}/subscriptionAuthMode", json="None")).status_code == 204
    assert (await gateway.http.post(f"{NAMESPACE}/resourcegroup/gold")).status_code == 501


async def test_the_one_cluster(gateway: Gateway) -> None:
    await begin(gateway)
    for url in (NAMESPACE, TOPIC):
        policy = f"{url}/replication"
        assert (await gateway.http.get(f"{policy}?applied=true")).json() == ["standalone"]
        assert (await gateway.http.post(policy, json=["standalone"])).status_code == 204
        assert (await gateway.http.get(policy)).json() == ["standalone"]
        wrong = await gateway.http.post(policy, json=["standalone", "mars"])
        assert (wrong.status_code, wrong.json()["limit"]) == (412, "standalone")
        assert (await gateway.http.delete(policy)).status_code == 204
    assert (await gateway.http.get(f"{NAMESPACE}/replication")).json() == ["standalone"]
    assert (await gateway.http.get(f"{TOPIC}/replication")).status_code == 204
    allowed = f"{NAMESPACE}/allowedClusters"
    assert (await gateway.http.get(allowed)).json() == []
    assert (await gateway.http.post(allowed, json=["standalone"])).status_code == 204
    assert (await gateway.http.get(allowed)).json() == ["standalone"]
    assert (await gateway.http.get(NAMESPACE)).json()["allowed_clusters"] == ["standalone"]
    assert (await gateway.http.post(allowed, json=[])).status_code == 204
    assert (await gateway.http.get(allowed)).json() == []
    assert (await gateway.http.post(f"{NAMESPACE}/allowedClusters", json=["mars"])).status_code == 412
    assert (await gateway.http.post(f"{TOPIC}/retention?isGlobal=true", json=OF_TOPICS[0][1])).status_code == 501


@settings(deadline=None)
@given(st.sampled_from(sorted(NAMESPACE_POLICIES)), st.data())
def test_shapes_say_the_same_both_ways(name: str, data: st.DataObject) -> None:
    changed = {
        "retention_seconds": data.draw(st.sampled_from([-1, 60, 600])),
        "retention_bytes": data.draw(st.sampled_from([-1, 1 << 20, 1 << 30])),
        "publish_messages_per_second": data.draw(st.integers(0, 1000)),
        "dispatch_messages_per_second": data.draw(st.integers(0, 1 << 60)),
        "auto_create_partitions": data.draw(st.integers(0, 9)),
    }
    values = flat(with_policies(NamespacePolicies(), changed))
    shape = NAMESPACE_POLICIES[name]
    parsed = (
        shape.parsed(shape.shown(values))
        if name != "inactiveTopicPolicies" or values["inactive_delete_seconds"]
        else {}
    )
    assert all(values[field] == value for field, value in parsed.items())


async def test_copies_that_contradict_each_other(gateway: Gateway) -> None:
    await begin(gateway)
    for url in (NAMESPACE, TOPIC):
        wrong = await gateway.http.post(f"{url}/persistence", json={**COPIES, "bookkeeperAckQuorum": 4})
        assert (wrong.status_code, wrong.json()["limit"]) == (412, "E >= Qw >= Qa >= 1")


async def test_backlog_quotas_have_to_fit_into_retention(gateway: Gateway) -> None:
    await begin(gateway)
    quota = {"limitSize": 1 << 30, "policy": "producer_exception"}
    for url in (NAMESPACE, TOPIC):
        assert (await gateway.http.get(f"{url}/backlogQuotaMap")).json() == {}
        assert (await gateway.http.post(f"{url}/backlogQuota", json=quota)).status_code == 204
        age = {"limitTime": 60, "policy": "consumer_backlog_eviction"}
        assert (await gateway.http.post(f"{url}/backlogQuota?backlogQuotaType=message_age", json=age)).is_success
        shown = (await gateway.http.get(f"{url}/backlogQuotaMap")).json()
        assert shown["destination_storage"] == {**quota, "limit": 1 << 30, "limitTime": -1}
        assert (shown["message_age"]["limitTime"], shown["message_age"]["policy"]) == (60, age["policy"])
        small = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1024}
        answer = await gateway.http.post(f"{url}/retention", json=small)
        assert answer.status_code == 412
        assert "backlog quota" in answer.json()["reason"]
        assert (await gateway.http.delete(f"{url}/backlogQuota")).status_code == 204
        assert (await gateway.http.post(f"{url}/retention", json=small)).status_code == 204
        assert (await gateway.http.post(f"{url}/backlogQuota", json=quota)).status_code == 412
        assert sorted((await gateway.http.get(f"{url}/backlogQuotaMap")).json()) == ["message_age"]
        assert (await gateway.http.delete(f"{url}/retention")).status_code == 204


REFUSED: list[tuple[str, Any, int]] = [
    ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 412),
    ("retention", {"retentionTimeInMinutes": -2, "retentionSizeInMB": 5}, 412),
    ("retention", {"retentionTimeInMinutes": 5}, 422),
    ("retention", 5, 422),
    ("messageTTL", -1, 412),
    ("messageTTL", 1 << 63, 412),
    ("messageTTL", "five", 422),
    ("messageTTL", True, 422),
    ("messageTTL", {}, 422),
    ("subscriptionTypesEnabled", "Shared", 422),
    ("subscriptionTypesEnabled", ["Loud"], 400),
    ("dispatchRate", {"dispatchThrottlingRateInMsg": "many"}, 422),
    ("dispatchRate", {"relativeToPublishRate": "yes"}, 422),
    ("dispatchRate", {"ratePeriodInSecond": 0}, 412),
    ("subscribeRate", {"subscribeThrottlingRatePerConsumer": -2}, 412),
    ("schemaCompatibilityStrategy", "SOMEHOW", 400),
    ("schemaCompatibilityStrategy", 5, 422),
    ("delayedDelivery", {"active": "yes"}, 422),
    ("delayedDelivery", {"active": True, "maxDeliveryDelayInMillis": -5}, 412),
    ("persistence", {**COPIES, "managedLedgerMaxMarkDeleteRate": "fast"}, 422),
    ("persistence", {**COPIES, "managedLedgerMaxMarkDeleteRate": -1}, 422),
    ("inactiveTopicPolicies", {"maxInactiveDurationSeconds": 0, "deleteWhileInactive": True}, 412),
    (
        "inactiveTopicPolicies",
        {"maxInactiveDurationSeconds": 5, "deleteWhileInactive": True, "inactiveTopicDeleteMode": "later"},
        400,
    ),
    ("offloadPolicies", {}, 501),
    ("nothing", {}, 404),
]


async def test_the_rate_of_one_subscription(gateway: Gateway) -> None:
    await begin(gateway)
    url, http = f"{TOPIC}/late/dispatchRate", gateway.http
    assert (await http.get(url)).status_code == 204
    of_all = {"dispatchThrottlingRateInMsg": 7, "dispatchThrottlingRateInByte": -1, **RATE}
    of_one = {"dispatchThrottlingRateInMsg": 30, "dispatchThrottlingRateInByte": 1, **SLOW}
    assert (await http.post(f"{TOPIC}/subscriptionDispatchRate", json=of_all)).is_success
    assert (await http.get(f"{url}?applied=true")).json() == of_all
    assert (await http.post(url, json=of_one)).status_code == 204
    assert (await http.get(url)).json() == (await http.get(f"{url}?applied=true")).json() == of_one
    assert (await http.get(f"{TOPIC}/other/dispatchRate?applied=true")).json() == of_all
    assert (await http.get(f"{TOPIC}/subscriptionDispatchRate")).json() == of_all
    assert (await http.post(f"{url}?isGlobal=true", json=of_one)).status_code == 501
    assert (await http.delete(url)).status_code == 204
    assert (await http.get(url)).status_code == 204
    assert (await http.post(url, json=of_one)).status_code == 204
    assert (await http.delete(f"{TOPIC}/policies")).status_code == 204
    assert (await http.get(url)).status_code == 204


async def test_a_group_of_namespaces_that_avoid_each_other_is_empty(gateway: Gateway) -> None:
    await begin(gateway)
    path = f"{NAMESPACES}/standalone/antiAffinity/any?property=public"
    assert (await gateway.http.get(path)).json() == []
    assert (await gateway.http.get(path.replace("standalone", "mars"))).status_code == 404


async def test_a_quota_by_the_name_of_older_clients(gateway: Gateway) -> None:
    await begin(gateway)
    for url in (NAMESPACE, TOPIC):
        body = {"limit": 1 << 30, "limitSize": 0, "policy": "producer_exception"}
        assert (await gateway.http.post(f"{url}/backlogQuota", json=body)).status_code == 204
        shown = (await gateway.http.get(f"{url}/backlogQuotaMap")).json()
        assert shown["destination_storage"]["limitSize"] == 1 << 30


async def test_what_is_refused(gateway: Gateway) -> None:
    await begin(gateway)
    for url in (NAMESPACE, TOPIC):
        for policy, body, status in REFUSED:
            answer = await gateway.http.post(f"{url}/{policy}", json=body)
            assert (policy, answer.status_code) == (policy, status)
            assert answer.json()["field"]


async def test_policies_of_what_is_not_there(gateway: Gateway) -> None:
    await begin(gateway)
    for url in (f"{NAMESPACES}/public/none/messageTTL", TOPIC.replace("flights", "none") + "/messageTTL"):
        for method in ("GET", "DELETE"):
            assert (await gateway.http.request(method, url)).status_code == 404
        assert (await gateway.http.post(url, json=5)).status_code == 404


async def test_tenants_and_namespaces_come_and_go(gateway: Gateway) -> None:
    await begin(gateway)
    http = gateway.http
    body = {"adminRoles": ["boss"], "allowedClusters": ["standalone"]}
    assert (await http.put(f"{TENANTS}/acme", json=body)).status_code == 204
    assert (await http.put(f"{TENANTS}/acme", json=body)).status_code == 409
    assert (await http.get(f"{TENANTS}/acme")).json() == body
    assert (await http.post(f"{TENANTS}/acme", json={"adminRoles": []})).status_code == 204
    assert (await http.get(f"{TENANTS}/acme")).json()["adminRoles"] == []
    assert (await http.put(f"{TENANTS}/other", json={"allowedClusters": ["mars"]})).status_code == 412
    assert (await http.put(f"{TENANTS}/other", json={"adminRoles": "boss"})).status_code == 422
    assert (await http.get(TENANTS)).json() == ["acme", "public"]
    policies = {
        "bundles": {"numBundles": 4},
        "message_ttl_in_seconds": 5,
        "retention_policies": {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1},
    }
    assert (await http.put(f"{NAMESPACES}/acme/a", json=policies)).status_code == 204
    assert (await http.put(f"{NAMESPACES}/acme/b")).status_code == 204
    assert (await http.put(f"{NAMESPACES}/acme/a")).status_code == 409
    assert (await http.put(f"{NAMESPACES}/nobody/a")).status_code == 404
    shown = (await http.get(f"{NAMESPACES}/acme/a")).json()
    assert (shown["bundles"]["numBundles"], shown["message_ttl_in_seconds"]) == (4, 5)
    assert shown["replication_clusters"] == ["standalone"]
    assert (await http.get(f"{NAMESPACES}/acme")).json() == ["acme/a", "acme/b"]
    assert (await http.delete(f"{NAMESPACES}/acme/a")).status_code == 204
    assert (await http.delete(f"{NAMESPACES}/acme/a")).status_code == 404
    assert (await http.delete(f"{TENANTS}/acme")).status_code == 409
    assert (await http.delete(f"{TENANTS}/acme?force=true")).status_code == 204
    assert (await http.delete(f"{TENANTS}/acme")).status_code == 404
    assert (await http.delete(NAMESPACE)).status_code == 409
    assert (await http.delete(f"{NAMESPACE}?force=true")).status_code == 204


async def test_bundles(gateway: Gateway) -> None:
    found = (await gateway.http.get(f"{NAMESPACE}/bundles")).json()
    assert (found["boundaries"], found["numBundles"]) == (["0x00000000", "0xffffffff"], 1)
    bundle = "0x00000000_0xffffffff"
    for path in ("unload", f"{bundle}/unload", f"{bundle}/split?unload=true"):
        assert (await gateway.http.put(f"{NAMESPACE}/{path}")).status_code == 204
    name = "public/default"
    assert gateway.world.brokers.asked == [
        ("unload", name),
        ("unload", name, bundle),
        ("split", name, bundle, None),
        ("unload", name, "low"),
        ("unload", name, "high"),
    ]


async def test_policies_are_documented_one_by_one(gateway: Gateway) -> None:
    paths = (await gateway.http.get("/openapi.json")).json()["paths"]
    body = paths["/admin/v2/namespaces/{tenant}/{namespace}/{policy}"]["post"]["requestBody"]
    assert set(body["content"]["application/json"]["examples"]) == set(NAMESPACE_POLICIES)


async def test_all_policies_of_a_topic_are_removed_at_once(gateway: Gateway) -> None:
    await begin(gateway)
    for name, body in OF_TOPICS[:5]:
        assert (await gateway.http.post(f"{TOPIC}/{name}", json=body)).status_code == 204
    assert (await gateway.http.delete(f"{TOPIC}/policies")).status_code == 204
    assert await gateway.world.namespaces.topic_policies(FLIGHTS) == {}


async def test_what_tools_send_for_policies_that_are_not_offered(gateway: Gateway) -> None:
    """A group as bare text; a flag that is set by a request without a body."""
    await begin(gateway)
    requests = [
        (f"{NAMESPACE}/antiAffinity", b"group"),
        (f"{NAMESPACE}/dispatcherPauseOnAckStatePersistent", b""),
        (f"{TOPIC}/dispatcherPauseOnAckStatePersistent", b""),
    ]
    for url, body in requests:
        assert (await gateway.http.post(url, content=body)).status_code == 501, url
        assert (await gateway.http.get(url)).status_code in (200, 204)
        assert (await gateway.http.delete(url)).status_code == 204


def test_records_of_older_versions_have_rates_of_one_second() -> None:
    values = flat(codec.decode(NamespacePolicies, _older(NamespacePolicies(dispatch_messages_per_second=30))))
    assert NAMESPACE_POLICIES["dispatchRate"].shown(values) == {
        "dispatchThrottlingRateInMsg": 30, "dispatchThrottlingRateInByte": -1, **RATE,
    }  # fmt: skip
    assert NAMESPACE_POLICIES["subscribeRate"].shown(values)["subscribeThrottlingRatePerConsumer"] == -1


def _older(record: NamespacePolicies) -> bytes:
    """Return the record as versions without periods wrote it."""
    head, _, body = codec.encode(record).partition(b"\n")
    new = ("_period_seconds", "_relative", "subscribes_per_second")
    fields = {name: value for name, value in json.loads(body).items() if not name.endswith(new)}
    body = json.dumps(fields).encode()
    return b"%s %08x\n%s" % (head.rpartition(b" ")[0], crc32c.crc32c(body), body)
