"""Pulsar's object ``Policies``, which has all policies of a namespace at once. No I/O.

Clients send the whole object to create a namespace: what is null, empty, ``UNDEFINED``, or as the object is when it is
made, is not set.
"""

from __future__ import annotations

from typing import Any

from heliograph.base.errors import UnsupportedError
from heliograph.gateway.admin.backlog_quotas import QUOTA_FIELDS, quota_conflict, quota_parsed, quotas_shown
from heliograph.gateway.admin.not_offered import NOT_OFFERED
from heliograph.gateway.admin.policy_shapes import NAMESPACE_POLICIES, UNDEFINED, Values, object_of
from heliograph.gateway.errors import PreconditionError, UnacceptableFieldError

# Fields of the object by the namespace policy that has their shape.
_FIELDS = {
    "retention_policies": "retention",
    "message_ttl_in_seconds": "messageTTL",
    "persistence": "persistence",
    "deduplicationEnabled": "deduplication",
    "deduplicationSnapshotIntervalSeconds": "deduplicationSnapshotInterval",
    "autoTopicCreationOverride": "autoTopicCreation",
    "autoSubscriptionCreationOverride": "autoSubscriptionCreation",
    "max_producers_per_topic": "maxProducersPerTopic",
    "max_consumers_per_topic": "maxConsumersPerTopic",
    "max_consumers_per_subscription": "maxConsumersPerSubscription",
    "max_subscriptions_per_topic": "maxSubscriptionsPerTopic",
    "max_topics_per_namespace": "maxTopicsPerNamespace",
    "max_unacked_messages_per_consumer": "maxUnackedMessagesPerConsumer",
    "max_unacked_messages_per_subscription": "maxUnackedMessagesPerSubscription",
    "delayed_delivery_policies": "delayedDelivery",
    "inactive_topic_policies": "inactiveTopicPolicies",
    "subscription_expiration_time_minutes": "subscriptionExpirationTime",
    "subscription_types_enabled": "subscriptionTypesEnabled",
    "compaction_threshold": "compactionThreshold",
    "schema_compatibility_strategy": "schemaCompatibilityStrategy",
    "schema_validation_enforced": "schemaValidationEnforced",
    "is_allow_auto_update_schema": "isAllowAutoUpdateSchema",
    "encryption_required": "encryptionRequired",
}
# Fields that hold a policy for each cluster.
_BY_CLUSTER = {
    "publishMaxMessageRate": "publishRate",
    "topicDispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
    "clusterSubscribeRate": "subscribeRate",
}
# Fields of policies that are not offered, with the values that ask for nothing; of any of them, nothing empty does.
_REFUSED: dict[str, tuple[str, tuple[Any, ...]]] = {
    "replicatorDispatchRate": ("replicatorDispatchRate", ()),
    "offload_policies": ("offloadPolicies", ()),
    "offload_threshold": ("offloadThreshold", (-1,)),
    "offload_threshold_in_seconds": ("offloadThresholdInSeconds", (-1,)),
    "offload_deletion_lag_ms": ("offloadDeletionLagMs", ()),
    "resource_group_name": ("resourcegroup", ()),
    "entryFilters": ("entryFilters", ()),
    "antiAffinityGroup": ("antiAffinity", ()),
}


def policies_parsed(body: Values, cluster: str) -> dict[str, Any]:
    """Return the policies that Pulsar's ``Policies`` object sets for a new namespace.

    Raises:
        UnacceptableFieldError, PreconditionError: a field has another form, or names another cluster.
        UnsupportedError: it sets a policy that is not offered.
    """
    for field, (policy, nothing) in _REFUSED.items():
        if body.get(field) and body[field] not in nothing:
            raise UnsupportedError(f"{field} is not offered: {NOT_OFFERED[policy]}", field=field)
    values: dict[str, Any] = {}
    for field in ("replication_clusters", "allowed_clusters"):
        check_clusters(body.get(field) or [], field, cluster)
    if body.get("allowed_clusters"):
        values["allows_cluster"] = True
    for field, policy in _FIELDS.items():
        shape = NAMESPACE_POLICIES[policy]
        given = body.get(field)
        if given is not None and given not in (shape.unset, UNDEFINED, ""):
            values |= shape.parsed(given)
    for field, policy in _BY_CLUSTER.items():
        given = object_of(body.get(field) or {}, field).get(cluster)
        if given is not None:
            values |= NAMESPACE_POLICIES[policy].parsed(given)
    for kind, quota in object_of(body.get("backlog_quota_map") or {}, "backlog_quota_map").items():
        if kind not in QUOTA_FIELDS:
            raise UnacceptableFieldError(f"there is no quota {kind!r}", field="backlog_quota_map")
        values |= quota_parsed(quota, kind)
    return values


def policies_shown(
    values: Values, own: Values, properties: dict[str, str], granted: Values, cluster: str
) -> dict[str, Any]:
    """Return all policies of a namespace as Pulsar's ``Policies`` object.

    Args:
        values: the policies that hold, and ``bundles``.
        own: those that were set for the namespace itself; the others are null.
        granted: what roles may do, by the names of ``permissions.granted``.
    """

    def shown(policy: str) -> Any:
        shape = NAMESPACE_POLICIES[policy]
        return shape.shown(values) if any(field in own for field in shape.fields) else shape.unset

    number = values["bundles"]
    return {
        "auth_policies": {
            "namespace_auth": granted["namespace_auth"],
            "destination_auth": granted["destination_auth"],
            "subscription_auth_roles": granted["subscription_auth_roles"],
            "topicAuthentication": granted["destination_auth"],
            "namespaceAuthentication": granted["namespace_auth"],
            "subscriptionAuthentication": granted["subscription_auth_roles"],
        },
        "replication_clusters": [cluster],
        "allowed_clusters": [cluster] if own.get("allows_cluster") else [],
        "bundles": {"boundaries": _boundaries(number), "numBundles": number},
        "backlog_quota_map": quotas_shown(values),
        **{field: shown(policy) for field, policy in _FIELDS.items()},
        **{field: {} if shown(policy) is None else {cluster: shown(policy)} for field, policy in _BY_CLUSTER.items()},
        "clusterDispatchRate": {},
        "replicatorDispatchRate": {},
        "latency_stats_sample_rate": {},
        "subscription_auth_mode": granted["subscription_auth_mode"],
        "schema_auto_update_compatibility_strategy": shown("schemaAutoUpdateCompatibilityStrategy"),
        "offload_threshold": -1,
        "offload_threshold_in_seconds": -1,
        "offload_deletion_lag_ms": None,
        "offload_policies": None,
        "entryFilters": None,
        "resource_group_name": None,
        "properties": properties,
        "deleted": bool(values.get("is_closing")),
    }


def check_clusters(given: Any, field: str, cluster: str) -> None:
    """Raise PreconditionError unless a list of clusters names only the one that there is."""
    if not isinstance(given, list):
        raise UnacceptableFieldError(f"{field} must be a list of clusters", field=field)
    unknown = [name for name in given if name != cluster]
    if unknown:
        raise PreconditionError(f"there is no cluster {unknown[0]}: it is {cluster}", field=field, limit=cluster)


def check_quota(values: Values) -> None:
    """Raise PreconditionError if a backlog quota contradicts retention."""
    conflict = quota_conflict(values)
    if conflict is not None:
        raise PreconditionError(f"{conflict}: raise one or lower the other", field="retention,backlogQuota")


def _boundaries(number: int) -> list[str]:
    """Return the hashes between which the bundles of a namespace lie at first."""
    return [f"0x{min(index * (1 << 32) // number, (1 << 32) - 1):08x}" for index in range(number + 1)]
