"""The table of policies: Pulsar's names and JSON shapes, and the fields of Heliograph that they stand for. No I/O.

An unlimited rate is -1 in Pulsar and an unlimited count is 0; in Heliograph both are 0. Unlimited sizes and times are
-1 in both.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.gateway.errors import UnacceptableFieldError

Values = Mapping[str, Any]
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PolicyShape:
    """One policy in both forms.

    Args:
        fields: the fields of Heliograph that it stands for.
        shown: returns the JSON for their values.
        parsed: returns their values in a JSON body; raises UnacceptableFieldError.
        example: a body, for the documentation.
    """

    fields: tuple[str, ...]
    shown: Callable[[Values], Any]
    parsed: Callable[[Any], dict[str, Any]]
    example: Any


def number_of(body: Any, name: str, lowest: int) -> int:
    """Return a whole number of a body.

    Raises:
        UnacceptableFieldError: it is no whole number, or too low.
    """
    if isinstance(body, float) and body.is_integer():
        body = int(body)
    if not isinstance(body, int) or isinstance(body, bool) or body < lowest:
        raise UnacceptableFieldError(f"{name} is {body!r}", field=name, limit=f"a whole number, {lowest} or more")
    return body


def object_of(body: Any, name: str) -> Mapping[str, Any]:
    """Return a part of a body that has to be a JSON object.

    Raises:
        UnacceptableFieldError: it is not.
    """
    if not isinstance(body, dict):
        raise UnacceptableFieldError(f"{name} must be a JSON object", field=name)
    return body


def _number(field: str, lowest: int = 0, scale: int = 1) -> PolicyShape:
    return PolicyShape(
        (field,),
        lambda values: _scaled_down(values[field], scale),
        lambda body: {field: _scaled_up(number_of(body, field, lowest), scale)},
        10,
    )


def _flag(field: str) -> PolicyShape:
    return PolicyShape((field,), lambda values: values[field], lambda body: {field: _bool(body, field)}, True)


def _text(field: str) -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        if not isinstance(body, str):
            raise UnacceptableFieldError(f"{field} must be text", field=field)
        return {field: body}

    return PolicyShape((field,), lambda values: values[field], parsed, "FULL")


def _rate(prefix: str, field: str, *, has_period: bool) -> PolicyShape:
    messages, size = f"{field}_messages_per_second", f"{field}_bytes_per_second"
    in_messages, in_bytes = f"{prefix}ThrottlingRateInMsg", f"{prefix}ThrottlingRateInByte"
    more = {"relativeToPublishRate": False, "ratePeriodInSecond": 1} if has_period else {}

    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, in_messages)
        if given.get("relativeToPublishRate"):
            raise UnacceptableFieldError("rates relative to publishing are not offered", field="relativeToPublishRate")
        period = number_of(given.get("ratePeriodInSecond", 1), "ratePeriodInSecond", 1)
        rates = {messages: given.get(in_messages, -1), size: given.get(in_bytes, -1)}
        return {name: max(0, number_of(rate, name, -1)) // period for name, rate in rates.items()}

    return PolicyShape(
        (messages, size),
        lambda values: {in_messages: values[messages] or -1, in_bytes: values[size] or -1, **more},
        parsed,
        {in_messages: 1000, in_bytes: -1, **more},
    )


def _retention() -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "retention")
        minutes = number_of(given.get("retentionTimeInMinutes"), "retentionTimeInMinutes", -1)
        size = number_of(given.get("retentionSizeInMB"), "retentionSizeInMB", -1)
        if (minutes == 0) != (size == 0):
            raise UnacceptableFieldError(
                "with only one of retentionTimeInMinutes and retentionSizeInMB being 0 nothing would be kept: "
                "set both to 0, or neither",
                field="retentionSizeInMB" if size == 0 else "retentionTimeInMinutes",
            )
        return {"retention_seconds": _scaled_up(minutes, 60), "retention_bytes": _scaled_up(size, MIB)}

    return PolicyShape(
        ("retention_seconds", "retention_bytes"),
        lambda values: {
            "retentionTimeInMinutes": _scaled_down(values["retention_seconds"], 60),
            "retentionSizeInMB": _scaled_down(values["retention_bytes"], MIB),
        },
        parsed,
        {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1024},
    )


PERSISTENCE_FIELDS = {
    "ensemble_size": "bookkeeperEnsemble",
    "write_quorum": "bookkeeperWriteQuorum",
    "ack_quorum": "bookkeeperAckQuorum",
}


def _persistence() -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "persistence")
        return {ours: number_of(given.get(theirs), theirs, 1) for ours, theirs in PERSISTENCE_FIELDS.items()}

    return PolicyShape(
        tuple(PERSISTENCE_FIELDS),
        lambda values: {
            **{theirs: values[ours] for ours, theirs in PERSISTENCE_FIELDS.items()},
            "managedLedgerMaxMarkDeleteRate": 0.0,
        },
        parsed,
        {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
    )


def _auto_topics() -> PolicyShape:
    def shown(values: Values) -> Any:
        partitions = values["auto_create_partitions"]
        return {
            "allowAutoTopicCreation": values["auto_create_topics"],
            "topicType": "partitioned" if partitions else "non-partitioned",
            "defaultNumPartitions": partitions,
        }

    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "autoTopicCreation")
        kind = given.get("topicType", "non-partitioned")
        if kind not in ("partitioned", "non-partitioned"):
            raise UnacceptableFieldError(
                f"topicType is {kind!r}", field="topicType", limit="partitioned, non-partitioned"
            )
        partitions = 0
        if kind == "partitioned":
            partitions = number_of(given.get("defaultNumPartitions"), "defaultNumPartitions", 1)
        allowed = _bool(given.get("allowAutoTopicCreation"), "allowAutoTopicCreation")
        return {"auto_create_topics": allowed, "auto_create_partitions": partitions}

    example = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}
    return PolicyShape(("auto_create_topics", "auto_create_partitions"), shown, parsed, example)


def _auto_subscriptions() -> PolicyShape:
    name = "allowAutoSubscriptionCreation"
    return PolicyShape(
        ("auto_create_subscriptions",),
        lambda values: {name: values["auto_create_subscriptions"]},
        lambda body: {"auto_create_subscriptions": _bool(object_of(body, name).get(name), name)},
        {name: True},
    )


def _delayed_delivery() -> PolicyShape:
    return PolicyShape(
        ("delayed_delivery",),
        lambda values: {"active": values["delayed_delivery"], "tickTime": 1000},
        lambda body: {"delayed_delivery": _bool(object_of(body, "delayedDelivery").get("active"), "active")},
        {"active": True, "tickTime": 1000},
    )


def _inactive_topics() -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "inactiveTopicPolicies")
        seconds = number_of(given.get("maxInactiveDurationSeconds"), "maxInactiveDurationSeconds", 1)
        is_on = _bool(given.get("deleteWhileInactive"), "deleteWhileInactive")
        mode = given.get("inactiveTopicDeleteMode", "delete_when_no_subscriptions")
        return {"inactive_delete_seconds": seconds if is_on else 0, "inactive_delete_mode": mode}

    return PolicyShape(
        ("inactive_delete_seconds", "inactive_delete_mode"),
        lambda values: {
            "inactiveTopicDeleteMode": values["inactive_delete_mode"],
            "maxInactiveDurationSeconds": values["inactive_delete_seconds"],
            "deleteWhileInactive": values["inactive_delete_seconds"] > 0,
        },
        parsed,
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 3600,
            "deleteWhileInactive": True,
        },
    )


def _bool(body: Any, name: str) -> bool:
    if not isinstance(body, bool):
        raise UnacceptableFieldError(f"{name} must be true or false", field=name)
    return body


def _scaled_up(value: int, scale: int) -> int:
    return value * scale if value > 0 else value


def _scaled_down(value: int, scale: int) -> int:
    return max(1, value // scale) if value > 0 else value


_BOTH: dict[str, PolicyShape] = {
    "retention": _retention(),
    "messageTTL": _number("message_ttl_seconds"),
    "persistence": _persistence(),
    "dispatchRate": _rate("dispatch", "dispatch", has_period=True),
    "subscriptionDispatchRate": _rate("dispatch", "subscription_dispatch", has_period=True),
    "publishRate": _rate("publish", "publish", has_period=False),
    "deduplicationSnapshotInterval": _number("deduplication_snapshot_seconds", lowest=1),
    "maxConsumersPerSubscription": _number("max_consumers_per_subscription"),
    "maxSubscriptionsPerTopic": _number("max_subscriptions"),
    "delayedDelivery": _delayed_delivery(),
    "inactiveTopicPolicies": _inactive_topics(),
    "compactionThreshold": _number("compaction_threshold_bytes"),
    "schemaCompatibilityStrategy": _text("schema_compatibility"),
    "schemaValidationEnforced": _flag("schema_validation_enforced"),
    "autoSubscriptionCreation": _auto_subscriptions(),
}
NAMESPACE_POLICIES: dict[str, PolicyShape] = {
    **_BOTH,
    "deduplication": _flag("deduplication"),
    "autoTopicCreation": _auto_topics(),
    "maxProducersPerTopic": _number("max_producers"),
    "maxConsumersPerTopic": _number("max_consumers"),
    "maxUnackedMessagesPerConsumer": _number("max_unacked_per_consumer"),
    "maxUnackedMessagesPerSubscription": _number("max_unacked_per_subscription"),
    "isAllowAutoUpdateSchema": _flag("schema_auto_update"),
    "subscriptionExpirationTime": _number("subscription_expiration_seconds", scale=60),
}
TOPIC_POLICIES: dict[str, PolicyShape] = {
    **_BOTH,
    "deduplicationEnabled": _flag("deduplication"),
    "maxProducers": _number("max_producers"),
    "maxConsumers": _number("max_consumers"),
    "maxUnackedMessagesOnConsumer": _number("max_unacked_per_consumer"),
    "maxUnackedMessagesOnSubscription": _number("max_unacked_per_subscription"),
    "maxMessageSize": _number("max_message_bytes"),
}
# Policies of Pulsar that are not offered, with the reason.
NOT_OFFERED = {
    "replication": "there is one cluster",
    "offloadPolicies": "there is no tiered storage",
    "offloadThreshold": "there is no tiered storage",
    "offloadDeletionLagMs": "there is no tiered storage",
    "replicatorDispatchRate": "there is one cluster",
    "subscribeRate": "subscribing is not limited",
    "encryptionRequired": "clients encrypt where they want",
    "bookieAffinity": "bookies have racks, not groups",
}


# Fields of Pulsar's Policies object by the namespace policy that has their shape.
_CREATED_WITH = {
    "retention_policies": "retention",
    "message_ttl_in_seconds": "messageTTL",
    "persistence": "persistence",
    "deduplicationEnabled": "deduplication",
    "autoTopicCreationOverride": "autoTopicCreation",
    "autoSubscriptionCreationOverride": "autoSubscriptionCreation",
    "max_producers_per_topic": "maxProducersPerTopic",
    "max_consumers_per_topic": "maxConsumersPerTopic",
    "max_consumers_per_subscription": "maxConsumersPerSubscription",
    "max_subscriptions_per_topic": "maxSubscriptionsPerTopic",
    "inactive_topic_policies": "inactiveTopicPolicies",
    "compaction_threshold": "compactionThreshold",
    "schema_compatibility_strategy": "schemaCompatibilityStrategy",
    "schema_validation_enforced": "schemaValidationEnforced",
    "is_allow_auto_update_schema": "isAllowAutoUpdateSchema",
}
_ONLY_SHOWN = {
    "max_unacked_messages_per_consumer": "maxUnackedMessagesPerConsumer",
    "max_unacked_messages_per_subscription": "maxUnackedMessagesPerSubscription",
    "delayed_delivery_policies": "delayedDelivery",
    "subscription_expiration_time_minutes": "subscriptionExpirationTime",
}
_SHOWN_BY_CLUSTER = {
    "publishMaxMessageRate": "publishRate",
    "topicDispatchRate": "dispatchRate",
    "subscriptionDispatchRate": "subscriptionDispatchRate",
}


def policies_parsed(body: Values) -> dict[str, Any]:
    """Return the policies that Pulsar's ``Policies`` object sets for a new namespace.

    Raises:
        UnacceptableFieldError: a field has another form.
    """
    values: dict[str, Any] = {}
    for field, policy in _CREATED_WITH.items():
        if body.get(field) is not None:
            values |= NAMESPACE_POLICIES[policy].parsed(body[field])
    return values


def policies_shown(values: Values, cluster: str) -> dict[str, Any]:
    """Return all policies of a namespace as Pulsar's ``Policies`` object."""
    shown = {policy: shape.shown(values) for policy, shape in NAMESPACE_POLICIES.items()}
    return {
        "auth_policies": {},
        "replication_clusters": [cluster],
        "bundles": {"numBundles": values["bundles"]},
        "backlog_quota_map": quotas_shown(values),
        **{field: shown[policy] for field, policy in {**_CREATED_WITH, **_ONLY_SHOWN}.items()},
        **{field: {cluster: shown[policy]} for field, policy in _SHOWN_BY_CLUSTER.items()},
        "deleted": False,
    }


# Backlog quotas: Pulsar has one of each type; here both types share the action.

QUOTA_TYPES = {"destination_storage": "backlog_quota_bytes", "message_age": "backlog_quota_seconds"}


def quotas_shown(values: Values) -> dict[str, Any]:
    """Return Pulsar's map of quotas by type; a type without a quota is left out."""
    size, seconds, action = (values[f"backlog_quota_{name}"] for name in ("bytes", "seconds", "action"))
    found = {}
    if size >= 0:
        found["destination_storage"] = {"limit": size, "limitSize": size, "limitTime": -1, "policy": action}
    if seconds >= 0:
        found["message_age"] = {"limit": -1, "limitSize": -1, "limitTime": seconds, "policy": action}
    return found


def quota_parsed(body: Any, kind: str) -> dict[str, Any]:
    """Return the values of the fields that a quota of one type sets.

    Raises:
        UnacceptableFieldError: a field has another form.
    """
    given = object_of(body, "backlogQuota")
    action = given.get("policy", "producer_request_hold")
    name = "limitSize" if kind == "destination_storage" else "limitTime"
    limit = given.get(name, given.get("limit") if name == "limitSize" else None)
    return {QUOTA_TYPES[kind]: number_of(limit, name, -1), "backlog_quota_action": action}


def quota_conflict(values: Values) -> str | None:
    """Return why a quota contradicts retention, below which it has to be, or None."""
    size, quota = values["retention_bytes"], values["backlog_quota_bytes"]
    if size > 0 and quota >= 0 and quota >= size:
        return f"a backlog quota of {quota} bytes is not below the {size} bytes that retention keeps"
    seconds, age = values["retention_seconds"], values["backlog_quota_seconds"]
    if seconds > 0 and age >= 0 and age >= seconds:
        return f"a backlog quota of {age} s is not below the {seconds} s that retention keeps"
    return None
