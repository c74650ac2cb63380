"""Tenants, namespaces, bundles and policies in Pulsar's shapes."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.broker.namespaces.policies import flat, with_policies
from heliograph.gateway.admin.policy_shapes import NAMESPACE_POLICIES, TOPIC_POLICIES
from heliograph.metadata.model import NamespacePolicies
from tests.unit.gateway.world import FLIGHTS, Gateway, run

TENANTS = "/admin/v2/tenants"
NAMESPACES = "/admin/v2/namespaces"
NAMESPACE = f"{NAMESPACES}/public/default"
TOPIC = "/admin/v2/persistent/public/default/flights"
RATE = {"relativeToPublishRate": False, "ratePeriodInSecond": 1}
EXAMPLES: list[tuple[str, Any]] = [
    ("retention", {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1024}),
    ("retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}),
    ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}),
    ("messageTTL", 3600),
    ("dispatchRate", {"dispatchThrottlingRateInMsg": 100, "dispatchThrottlingRateInByte": -1, **RATE}),
    ("subscriptionDispatchRate", {"dispatchThrottlingRateInMsg": -1, "dispatchThrottlingRateInByte": 1024, **RATE}),
    ("publishRate", {"publishThrottlingRateInMsg": 100, "publishThrottlingRateInByte": 1_000_000}),
    ("maxConsumersPerSubscription", 3),
    ("maxSubscriptionsPerTopic", 7),
    ("deduplicationSnapshotInterval", 60),
    ("delayedDelivery", {"active": False, "tickTime": 1000}),
    (
        "inactiveTopicPolicies",
        {
            "inactiveTopicDeleteMode": "delete_when_subscriptions_caught_up",
            "maxInactiveDurationSeconds": 60,
            "deleteWhileInactive": True,
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
        {"allowAutoTopicCreation": False, "topicType": "non-partitioned", "defaultNumPartitions": 0},
    ),
    ("maxProducersPerTopic", 3),
    ("maxConsumersPerTopic", 3),
    ("maxUnackedMessagesPerConsumer", 100),
    ("maxUnackedMessagesPerSubscription", 1000),
    ("isAllowAutoUpdateSchema", False),
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


def test_every_policy_of_a_namespace_is_set_shown_and_removed() -> None:
    assert {name for name, _ in OF_NAMESPACES} == set(NAMESPACE_POLICIES) - {"persistence"}

    async def scenario(gateway: Gateway) -> None:
        await begin(gateway)
        for name, body in OF_NAMESPACES:
            url = f"{NAMESPACE}/{name}"
            before = (await gateway.http.get(url)).json()
            assert (await gateway.http.post(url, json=body)).status_code == 204, name
            assert (await gateway.http.get(url)).json() == body
            assert (await gateway.http.delete(url)).status_code == 204
            assert (await gateway.http.get(url)).json() == before

    run(scenario)


def test_every_policy_of_a_topic_is_set_shown_and_removed() -> None:
    assert {name for name, _ in OF_TOPICS} == set(TOPIC_POLICIES) - {"persistence"}

    async def scenario(gateway: Gateway) -> None:
        await begin(gateway)
        for name, body in OF_TOPICS:
            url = f"{TOPIC}/{name}"
            assert (await gateway.http.get(url)).status_code == 204  # it overrides nothing
            of_namespace = (await gateway.http.get(f"{url}?applied=true")).json()
            assert (await gateway.http.put(url, json=body)).status_code == 204, name
            assert (await gateway.http.get(url)).json() == body
            assert (await gateway.http.get(f"{url}?applied=true")).json() == body
            assert (await gateway.http.delete(url)).status_code == 204
            assert (await gateway.http.get(f"{url}?applied=true")).json() == of_namespace

    run(scenario)


@settings(deadline=None)
@given(st.sampled_from(sorted(NAMESPACE_POLICIES)), st.data())
def test_shapes_say_the_same_both_ways(name: str, data: st.DataObject) -> None:
    changed = {
        "retention_seconds": data.draw(st.sampled_from([-1, 60, 600])),
        "retention_bytes": data.draw(st.sampled_from([-1, 1 << 20, 1 << 30])),
        "publish_messages_per_second": data.draw(st.integers(0, 1000)),
        "auto_create_partitions": data.draw(st.integers(0, 9)),
    }
    values = flat(with_policies(NamespacePolicies(), changed))
    shape = NAMESPACE_POLICIES[name]
    parsed = shape.parsed(shape.shown(values)) if name != "inactiveTopicPolicies" else {}
    assert all(values[field] == value for field, value in parsed.items())


def test_copies() -> None:
    async def scenario(gateway: Gateway) -> None:
        await begin(gateway)
        body = {"bookkeeperEnsemble": 5, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2}
        for url in (NAMESPACE, TOPIC):
            assert (await gateway.http.post(f"{url}/persistence", json=body)).status_code == 204
            shown = (await gateway.http.get(f"{url}/persistence")).json()
            assert shown == {**body, "managedLedgerMaxMarkDeleteRate": 0.0}
            wrong = await gateway.http.post(f"{url}/persistence", json={**body, "bookkeeperAckQuorum": 4})
            assert (wrong.status_code, wrong.json()["limit"]) == (412, "E >= Qw >= Qa >= 1")

    run(scenario)


def test_backlog_quotas_have_to_fit_into_retention() -> None:
    async def scenario(gateway: Gateway) -> None:
        await begin(gateway)
        quota = {"limitSize": 1 << 30, "policy": "producer_exception"}
        for url in (NAMESPACE, TOPIC):
            assert (await gateway.http.get(f"{url}/backlogQuotaMap")).json() == {}
            assert (await gateway.http.post(f"{url}/backlogQuota", json=quota)).status_code == 204
            age = {"limitTime": 60, "policy": "producer_exception"}
            assert (await gateway.http.post(f"{url}/backlogQuota?backlogQuotaType=message_age", json=age)).is_success
            shown = (await gateway.http.get(f"{url}/backlogQuotaMap")).json()
            assert shown["destination_storage"] == {**quota, "limit": 1 << 30, "limitTime": -1}
            assert shown["message_age"]["limitTime"] == 60
            small = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1024}
            answer = await gateway.http.post(f"{url}/retention", json=small)
            assert answer.status_code == 412
            assert "backlog quota" in answer.json()["reason"]
            assert (await gateway.http.delete(f"{url}/backlogQuota")).status_code == 204
            assert (await gateway.http.post(f"{url}/retention", json=small)).status_code == 204
            assert (await gateway.http.post(f"{url}/backlogQuota", json=quota)).status_code == 412
            assert sorted((await gateway.http.get(f"{url}/backlogQuotaMap")).json()) == ["message_age"]
            assert (await gateway.http.delete(f"{url}/retention")).status_code == 204

    run(scenario)


REFUSED: list[tuple[str, Any, int]] = [
    ("retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 5}, 422),
    ("retention", {"retentionTimeInMinutes": 5}, 422),
    ("retention", 5, 422),
    ("messageTTL", -1, 422),
    ("messageTTL", "5", 422),
    ("messageTTL", True, 422),
    ("messageTTL", None, 422),
    ("dispatchRate", {"dispatchThrottlingRateInMsg": "many"}, 422),
    ("dispatchRate", {"relativeToPublishRate": True}, 422),
    ("schemaCompatibilityStrategy", "SOMEHOW", 400),
    ("schemaCompatibilityStrategy", 5, 422),
    ("delayedDelivery", {"active": "yes"}, 422),
    ("inactiveTopicPolicies", {"maxInactiveDurationSeconds": 0, "deleteWhileInactive": True}, 422),
    (
        "inactiveTopicPolicies",
        {"maxInactiveDurationSeconds": 5, "deleteWhileInactive": True, "inactiveTopicDeleteMode": "later"},
        400,
    ),
    ("offloadPolicies", {}, 501),
    ("replication", [], 501),
    ("nothing", {}, 404),
]


def test_what_is_refused() -> None:
    async def scenario(gateway: Gateway) -> None:
        await begin(gateway)
        for url in (NAMESPACE, TOPIC):
            for policy, body, status in REFUSED:
                answer = await gateway.http.post(f"{url}/{policy}", json=body)
                assert (policy, answer.status_code) == (policy, status)
                assert answer.json()["field"]

    run(scenario)


def test_policies_of_what_is_not_there() -> None:
    async def scenario(gateway: Gateway) -> None:
        await begin(gateway)
        for url in (f"{NAMESPACES}/public/none/messageTTL", TOPIC.replace("flights", "none") + "/messageTTL"):
            for method in ("GET", "DELETE"):
                assert (await gateway.http.request(method, url)).status_code == 404
            assert (await gateway.http.post(url, json=5)).status_code == 404

    run(scenario)


def test_tenants_and_namespaces_come_and_go() -> None:
    async def scenario(gateway: Gateway) -> None:
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

    run(scenario)


def test_bundles() -> None:
    async def scenario(gateway: Gateway) -> None:
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

    run(scenario)


def test_policies_are_documented_one_by_one() -> None:
    async def scenario(gateway: Gateway) -> None:
        paths = (await gateway.http.get("/openapi.json")).json()["paths"]
        body = paths["/admin/v2/namespaces/{tenant}/{namespace}/{policy}"]["post"]["requestBody"]
        assert set(body["content"]["application/json"]["examples"]) == set(NAMESPACE_POLICIES)

    run(scenario)
