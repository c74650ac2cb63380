"""The creation of namespaces from the bodies that stock tools send, properties, and what is not offered at all."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.gateway.world import FLIGHTS, Gateway

NAMESPACES = "/admin/v2/namespaces"
# The body with which Pulsar's own tool creates a namespace, and Go's library with its defaults.
OF_JAVA: dict[str, Any] = {
    "auth_policies": {
        "namespaceAuthentication": {},
        "subscriptionAuthentication": {},
        "topicAuthentication": {},
    },
    "replication_clusters": [],
    "allowed_clusters": [],
    "bundles": None,
    "backlog_quota_map": {},
    "clusterDispatchRate": {},
    "topicDispatchRate": {},
    "subscriptionDispatchRate": {},
    "replicatorDispatchRate": {},
    "clusterSubscribeRate": {},
    "persistence": None,
    "deduplicationEnabled": None,
    "autoTopicCreationOverride": None,
    "autoSubscriptionCreationOverride": None,
    "publishMaxMessageRate": {},
    "latency_stats_sample_rate": {},
    "message_ttl_in_seconds": None,
    "subscription_expiration_time_minutes": None,
    "retention_policies": None,
    "deleted": False,
    "encryption_required": False,
    "delayed_delivery_policies": None,
    "inactive_topic_policies": None,
    "subscription_auth_mode": "None",
    "max_producers_per_topic": None,
    "max_consumers_per_topic": None,
    "max_consumers_per_subscription": None,
    "max_unacked_messages_per_consumer": None,
    "max_unacked_messages_per_subscription": None,
    "max_subscriptions_per_topic": None,
    "compaction_threshold": None,
    "offload_threshold": -1,
    "offload_threshold_in_seconds": -1,
    "offload_deletion_lag_ms": None,
    "max_topics_per_namespace": None,
    "schema_auto_update_compatibility_strategy": None,
    "schema_compatibility_strategy": "UNDEFINED",
    "is_allow_auto_update_schema": None,
    "schema_validation_enforced": False,
    "offload_policies": None,
    "deduplicationSnapshotIntervalSeconds": None,
    "subscription_types_enabled": [],
    "properties": {},
    "resource_group_name": None,
    "migrated": False,
    "dispatcherPauseOnAckStatePersistentEnabled": None,
    "entryFilters": None,
}
OF_GO: dict[str, Any] = {
    **{name: OF_JAVA[name] for name in ("persistence", "retention_policies", "deleted", "encryption_required")},
    "bundles": {"boundaries": None, "numBundles": 4},
    "schema_validation_enforced": False,
    "offload_threshold": -1,
    "antiAffinityGroup": "",
    "replication_clusters": ["standalone"],
    "schema_auto_update_compatibility_strategy": "Full",
    "schema_compatibility_strategy": "UNDEFINED",
    "auth_policies": {"namespace_auth": {}, "destination_auth": {}, "subscription_auth_roles": {}},
    "subscription_auth_mode": "None",
}
# Go's CreateNsWithNumBundles leaves every field at its empty value.
OF_GO_EMPTY: dict[str, Any] = {
    "bundles": {"boundaries": None, "numBundles": 4},
    "persistence": None,
    "offload_threshold": 0,
    "replication_clusters": None,
    "latency_stats_sample_rate": None,
    "topicDispatchRate": None,
    "autoTopicCreationOverride": None,
    "schema_auto_update_compatibility_strategy": "",
    "schema_compatibility_strategy": "",
    "subscription_auth_mode": "",
}
SET: dict[str, Any] = {
    "bundles": {"numBundles": 2},
    "replication_clusters": ["standalone"],
    "retention_policies": {"retentionTimeInMinutes": 10, "retentionSizeInMB": 5},
    "message_ttl_in_seconds": 60,
    "schema_compatibility_strategy": "BACKWARD",
    "subscription_types_enabled": ["Shared"],
    "encryption_required": True,
    "max_topics_per_namespace": 7,
    "backlog_quota_map": {
        "message_age": {"limit": -1, "limitSize": -1, "limitTime": 30, "policy": "consumer_backlog_eviction"}
    },
    "publishMaxMessageRate": {
        "standalone": {"publishThrottlingRateInMsg": 5, "publishThrottlingRateInByte": -1},
    },
    "properties": {"team": "blue"},
}


@pytest.mark.parametrize("body", [OF_JAVA, OF_GO, OF_GO_EMPTY])
async def test_a_namespace_is_created_from_a_whole_object_that_sets_nothing(
    gateway: Gateway, body: dict[str, Any]
) -> None:
    await gateway.world.namespaces.begin([FLIGHTS])
    http = gateway.http
    assert (await http.put(f"{NAMESPACES}/public/plain")).status_code == 204
    assert (await http.put(f"{NAMESPACES}/public/made", json=body)).status_code == 204
    assert await gateway.world.namespaces.policies("public/made", own=True) == {}
    plain = (await http.get(f"{NAMESPACES}/public/plain")).json()
    made = (await http.get(f"{NAMESPACES}/public/made")).json()
    assert {**made, "bundles": plain["bundles"]} == plain
    again = {**made, "bundles": None}  # a tool copies the policies of one namespace to another
    assert (await http.put(f"{NAMESPACES}/public/copy", json=again)).status_code == 204


async def test_a_namespace_is_created_with_policies(gateway: Gateway) -> None:
    await gateway.world.namespaces.begin([FLIGHTS])
    http = gateway.http
    assert (await http.put(f"{NAMESPACES}/public/made", json={**OF_JAVA, **SET})).status_code == 204
    shown = (await http.get(f"{NAMESPACES}/public/made")).json()
    assert shown["bundles"] == {"boundaries": ["0x00000000", "0x80000000", "0xffffffff"], "numBundles": 2}
    assert {name: shown[name] for name in SET if name != "bundles"} == {
        name: value for name, value in SET.items() if name != "bundles"
    }


@pytest.mark.parametrize(
    ("field", "value", "status"),
    [
        ("replication_clusters", ["mars"], 412),
        ("offload_threshold", 5, 501),
        ("subscription_auth_mode", "Suffix", 422),
        ("resource_group_name", "gold", 501),
        ("entryFilters", {"entryFilterNames": "a"}, 501),
        ("schema_compatibility_strategy", "SOMEHOW", 400),
        ("message_ttl_in_seconds", -1, 412),
        ("backlog_quota_map", {"by_moon": {}}, 422),
        ("properties", {"team": {}}, 400),
    ],
)
async def test_a_namespace_that_cannot_be_as_asked_is_not_created(
    gateway: Gateway, field: str, value: Any, status: int
) -> None:
    await gateway.world.namespaces.begin([FLIGHTS])
    answer = await gateway.http.put(f"{NAMESPACES}/public/made", json={**OF_JAVA, field: value})
    assert answer.status_code == status
    assert (await gateway.http.get(f"{NAMESPACES}/public/made")).status_code == 404


async def test_properties_of_a_namespace(gateway: Gateway) -> None:
    url = f"{NAMESPACES}/public/default"
    await gateway.world.namespaces.begin([FLIGHTS])
    http = gateway.http
    assert (await http.get(f"{url}/properties")).json() == {}
    assert (await http.put(f"{url}/properties", json={"team": "blue", "tier": "1"})).status_code == 204
    assert (await http.put(f"{url}/property/tier/2")).status_code == 204
    assert (await http.get(f"{url}/properties")).json() == {"team": "blue", "tier": "2"}
    assert (await http.get(f"{url}/property/tier")).text == "2"
    assert (await http.delete(f"{url}/property/tier")).text == "2"
    assert (await http.get(f"{url}/property/tier")).status_code == 204
    assert (await http.put(f"{url}/properties", json={"team": "x" * 70_000})).status_code in (400, 413)
    assert (await http.delete(f"{url}/properties")).status_code == 204
    assert (await http.get(f"{url}/properties")).json() == {}


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v3/functions/public/default",
        "/admin/v3/functions/connectors",
        "/admin/v3/sources/public/default/name",
        "/admin/v3/sinks/builtinsinks",
        "/admin/v3/packages/function/public/default",
        "/admin/v3/transactions/coordinators",
        "/admin/v2/resourcegroups",
        "/admin/v2/resourcegroups/gold",
        "/admin/v2/resource-quotas",
        "/admin/v2/worker/cluster",
        "/admin/v2/clusters/standalone/namespaceIsolationPolicies",
        "/admin/v2/clusters/standalone/namespaceIsolationPolicies/brokers",
    ],
)
async def test_what_is_not_offered_says_why(gateway: Gateway, path: str) -> None:
    for method in ("GET", "POST", "PUT", "DELETE"):
        answer = await gateway.http.request(method, path)
        assert answer.status_code == 501
        assert "is not offered: " in answer.json()["reason"]
