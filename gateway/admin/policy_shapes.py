"""The table of policies: Pulsar's names and JSON shapes, and the fields of Heliograph that they stand for. No I/O.

An unlimited rate is -1 in Pulsar and an unlimited count is 0; in Heliograph both are 0. Unlimited sizes and times are
-1 in both. Clients send numbers and flags also as text.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.gateway.errors import PreconditionError, UnacceptableFieldError
from heliograph.gateway.shapes.json_forms import number_of

Values = Mapping[str, Any]
UNDEFINED = "UNDEFINED"  # a schema compatibility strategy: that of the broker
_OLD_COMPATIBILITY = {
    "FULL": "Full",
    "BACKWARD": "Backward",
    "FORWARD": "Forward",
    "ALWAYS_COMPATIBLE": "AlwaysCompatible",
    "ALWAYS_INCOMPATIBLE": "AutoUpdateDisabled",
    "FULL_TRANSITIVE": "FullTransitive",
    "BACKWARD_TRANSITIVE": "BackwardTransitive",
    "FORWARD_TRANSITIVE": "ForwardTransitive",
}
MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PolicyShape:
    """One policy in both forms.

    Args:
        fields: the fields of Heliograph that it stands for.
        shown: returns the JSON for their values.
        parsed: returns their values in a JSON body; raises UnacceptableFieldError.
        example: a body, for the documentation.
        unset: what a namespace that does not set it answers; None: nothing, with status 204.
    """

    fields: tuple[str, ...]
    shown: Callable[[Values], Any]
    parsed: Callable[[Any], dict[str, Any]]
    example: Any
    unset: Any = None


def flag_of(body: Any, name: str) -> bool:
    """Return a flag of a body, which may be text.

    Raises:
        UnacceptableFieldError: it is neither true nor false.
    """
    found = {"true": True, "false": False}.get(body.strip().lower()) if isinstance(body, str) else body
    if not isinstance(found, bool):
        raise UnacceptableFieldError(f"{name} must be true or false", field=name)
    return found


def object_of(body: Any, name: str) -> Mapping[str, Any]:
    """Return a part of a body that has to be a JSON object.

    Raises:
        UnacceptableFieldError: it is not.
    """
    if not isinstance(body, dict):
        raise UnacceptableFieldError(f"{name} must be a JSON object", field=name)
    return body


def _number(field: str, lowest: int = 0, scale: int = 1, unset: int | None = None) -> PolicyShape:
    return PolicyShape(
        (field,),
        lambda values: _scaled_down(values[field], scale),
        lambda body: {field: _scaled_up(number_of(body, field, lowest), scale)},
        10,
        unset,
    )


def _flag(field: str, *, unset: bool | None = None) -> PolicyShape:
    return PolicyShape((field,), lambda values: values[field], lambda body: {field: flag_of(body, field)}, True, unset)


def _schema_compatibility() -> PolicyShape:
    field = "schema_compatibility"

    def parsed(body: Any) -> dict[str, Any]:
        if not isinstance(body, str):
            raise UnacceptableFieldError(f"{field} must be text", field=field)
        return {} if body == UNDEFINED else {field: body}

    return PolicyShape((field,), lambda values: values[field], parsed, "FULL", UNDEFINED)


def _old_schema_compatibility() -> PolicyShape:
    """Return the shape of ``schemaAutoUpdateCompatibilityStrategy``, which was before ``schemaCompatibilityStrategy``
    and has other names for the same."""
    field = "schema_compatibility"
    ours = {theirs: name for name, theirs in _OLD_COMPATIBILITY.items()}

    def parsed(body: Any) -> dict[str, Any]:
        if body not in ours:
            limit = ", ".join(ours)
            raise UnacceptableFieldError(f"the strategy is {body!r}", field="schemaAutoUpdateCompatibilityStrategy",
                                         limit=limit)  # fmt: skip
        return {field: ours[body]}

    return PolicyShape((field,), lambda values: _OLD_COMPATIBILITY[values[field]], parsed, "Full", "Full")


def _subscription_types() -> PolicyShape:
    field = "subscription_types"

    def parsed(body: Any) -> dict[str, Any]:
        if not isinstance(body, list) or not all(isinstance(name, str) for name in body):
            raise UnacceptableFieldError("the body must be a list of subscription types", field=field)
        return {field: ",".join(sorted(set(body)))}

    return PolicyShape(
        (field,), lambda values: [name for name in values[field].split(",") if name], parsed, ["Shared"], []
    )


def _publish_rate() -> PolicyShape:
    fields = {
        "publishThrottlingRateInMsg": "publish_messages_per_second",
        "publishThrottlingRateInByte": "publish_bytes_per_second",
    }

    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "publishRate")
        return {field: max(0, number_of(given.get(name, -1), name, -1)) for name, field in fields.items()}

    return PolicyShape(
        tuple(fields.values()),
        lambda values: {name: _amount(values[field], 1) for name, field in fields.items()},
        parsed,
        {"publishThrottlingRateInMsg": 1000, "publishThrottlingRateInByte": -1},
    )


def _dispatch_rate(prefix: str) -> PolicyShape:
    """Return the shape of a dispatch rate. Pulsar counts in periods, and Heliograph stores the rate of one second."""
    fields = {
        "dispatchThrottlingRateInMsg": f"{prefix}_messages_per_second",
        "dispatchThrottlingRateInByte": f"{prefix}_bytes_per_second",
    }
    period_field, relative_field = f"{prefix}_period_seconds", f"{prefix}_relative"

    def shown(values: Values) -> Any:
        period = values[period_field]
        return {
            **{name: _amount(values[field], period) for name, field in fields.items()},
            "relativeToPublishRate": values[relative_field],
            "ratePeriodInSecond": period,
        }

    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "dispatchRate")
        period = number_of(given.get("ratePeriodInSecond", 1), "ratePeriodInSecond", 1)
        return {
            **{field: _per_second(number_of(given.get(name, -1), name, -1), period) for name, field in fields.items()},
            period_field: period,
            relative_field: flag_of(given.get("relativeToPublishRate") or False, "relativeToPublishRate"),
        }

    example = {"dispatchThrottlingRateInMsg": 1000, "dispatchThrottlingRateInByte": -1}
    more = {"relativeToPublishRate": False, "ratePeriodInSecond": 1}
    return PolicyShape((*fields.values(), period_field, relative_field), shown, parsed, {**example, **more})


def _subscribe_rate() -> PolicyShape:
    name, period_name = "subscribeThrottlingRatePerConsumer", "ratePeriodInSecond"

    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "subscribeRate")
        period = number_of(given.get(period_name, 30), period_name, 1)
        rate = _per_second(number_of(given.get(name, -1), name, -1), period)
        return {"subscribes_per_second": rate, "subscribe_period_seconds": period}

    return PolicyShape(
        ("subscribes_per_second", "subscribe_period_seconds"),
        lambda values: {
            name: _amount(values["subscribes_per_second"], values["subscribe_period_seconds"]),
            period_name: values["subscribe_period_seconds"],
        },
        parsed,
        {name: 10, period_name: 30},
    )


def _per_second(amount: int, period: int) -> int | float:
    """Return the rate of a second; 0, which means no limit, where there is none."""
    if amount <= 0:
        return 0
    return amount // period if amount % period == 0 else amount / period


def _amount(per_second: float, period: int) -> int:
    """Return the amount that a rate allows in a period; -1 without a limit."""
    return max(1, round(per_second * period)) if per_second else -1


def _retention() -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "retention")
        minutes = number_of(given.get("retentionTimeInMinutes"), "retentionTimeInMinutes", -1)
        size = number_of(given.get("retentionSizeInMB"), "retentionSizeInMB", -1)
        if (minutes == 0) != (size == 0):
            raise PreconditionError(
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


MARK_DELETES = "mark_deletes_per_second"


def _persistence() -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "persistence")
        rate = given.get("managedLedgerMaxMarkDeleteRate") or 0
        if not isinstance(rate, int | float) or not 0 <= rate < math.inf:
            raise UnacceptableFieldError(f"managedLedgerMaxMarkDeleteRate is {rate!r}",
                                         field="managedLedgerMaxMarkDeleteRate", limit="0 or more")  # fmt: skip
        copies = {ours: number_of(given.get(theirs), theirs, 1) for ours, theirs in PERSISTENCE_FIELDS.items()}
        return {**copies, MARK_DELETES: rate}

    return PolicyShape(
        (*PERSISTENCE_FIELDS, MARK_DELETES),
        lambda values: {
            **{theirs: values[ours] for ours, theirs in PERSISTENCE_FIELDS.items()},
            "managedLedgerMaxMarkDeleteRate": float(values.get(MARK_DELETES, 0)),
        },
        parsed,
        {"bookkeeperEnsemble": 3, "bookkeeperWriteQuorum": 3, "bookkeeperAckQuorum": 2},
    )


def _auto_topics() -> PolicyShape:
    def shown(values: Values) -> Any:
        partitions = values["auto_create_partitions"]
        found = {"allowAutoTopicCreation": values["auto_create_topics"]}
        if not partitions:
            return found | {"topicType": "non-partitioned"}
        return found | {"topicType": "partitioned", "defaultNumPartitions": partitions}

    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "autoTopicCreation")
        kind = given.get("topicType") or "non-partitioned"  # a tool that forbids topics may leave it empty
        if kind not in ("partitioned", "non-partitioned"):
            raise UnacceptableFieldError(
                f"topicType is {kind!r}", field="topicType", limit="partitioned, non-partitioned"
            )
        partitions = 0
        if kind == "partitioned":
            partitions = number_of(given.get("defaultNumPartitions"), "defaultNumPartitions", 1)
        allowed = flag_of(given.get("allowAutoTopicCreation"), "allowAutoTopicCreation")
        return {"auto_create_topics": allowed, "auto_create_partitions": partitions}

    example = {"allowAutoTopicCreation": True, "topicType": "partitioned", "defaultNumPartitions": 4}
    return PolicyShape(("auto_create_topics", "auto_create_partitions"), shown, parsed, example)


def _auto_subscriptions() -> PolicyShape:
    name = "allowAutoSubscriptionCreation"
    return PolicyShape(
        ("auto_create_subscriptions",),
        lambda values: {name: values["auto_create_subscriptions"]},
        lambda body: {"auto_create_subscriptions": flag_of(object_of(body, name).get(name), name)},
        {name: True},
    )


def _delayed_delivery() -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "delayedDelivery")
        return {
            "delayed_delivery": flag_of(given.get("active"), "active"),
            "delayed_tick_ms": number_of(given.get("tickTime") or 0, "tickTime", 0),
            "delayed_ms_max": number_of(given.get("maxDeliveryDelayInMillis") or 0, "maxDeliveryDelayInMillis", 0),
        }

    return PolicyShape(
        ("delayed_delivery", "delayed_tick_ms", "delayed_ms_max"),
        lambda values: {
            "active": values["delayed_delivery"],
            "tickTime": values["delayed_tick_ms"],
            "maxDeliveryDelayInMillis": values["delayed_ms_max"],
        },
        parsed,
        {"active": True, "tickTime": 1000, "maxDeliveryDelayInMillis": 0},
    )


def _inactive_topics() -> PolicyShape:
    def parsed(body: Any) -> dict[str, Any]:
        given = object_of(body, "inactiveTopicPolicies")
        seconds = number_of(given.get("maxInactiveDurationSeconds"), "maxInactiveDurationSeconds", 1)
        is_on = flag_of(given.get("deleteWhileInactive"), "deleteWhileInactive")
        mode = given.get("inactiveTopicDeleteMode", "delete_when_no_subscriptions")
        return {"inactive_delete": is_on, "inactive_delete_seconds": seconds, "inactive_delete_mode": mode}

    return PolicyShape(
        ("inactive_delete", "inactive_delete_seconds", "inactive_delete_mode"),
        lambda values: {
            "inactiveTopicDeleteMode": values["inactive_delete_mode"],
            "maxInactiveDurationSeconds": values["inactive_delete_seconds"],
            "deleteWhileInactive": values["inactive_delete"] and values["inactive_delete_seconds"] > 0,
        },
        parsed,
        {
            "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
            "maxInactiveDurationSeconds": 3600,
            "deleteWhileInactive": True,
        },
    )


def _scaled_up(value: int, scale: int) -> int:
    return value * scale if value > 0 else value


def _scaled_down(value: int, scale: int) -> int:
    return max(1, value // scale) if value > 0 else value


_BOTH: dict[str, PolicyShape] = {
    "retention": _retention(),
    "messageTTL": _number("message_ttl_seconds"),
    "persistence": _persistence(),
    "dispatchRate": _dispatch_rate("dispatch"),
    "subscriptionDispatchRate": _dispatch_rate("subscription_dispatch"),
    "publishRate": _publish_rate(),
    "subscribeRate": _subscribe_rate(),
    "deduplicationSnapshotInterval": _number("deduplication_snapshot_seconds", lowest=1),
    "maxConsumersPerSubscription": _number("max_consumers_per_subscription"),
    "maxSubscriptionsPerTopic": _number("max_subscriptions"),
    "delayedDelivery": _delayed_delivery(),
    "inactiveTopicPolicies": _inactive_topics(),
    "compactionThreshold": _number("compaction_threshold_bytes"),
    "schemaCompatibilityStrategy": _schema_compatibility(),
    "schemaValidationEnforced": _flag("schema_validation_enforced", unset=False),
    "subscriptionTypesEnabled": _subscription_types(),
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
    "isAllowAutoUpdateSchema": _flag("schema_auto_update", unset=True),
    "schemaAutoUpdateCompatibilityStrategy": _old_schema_compatibility(),
    "encryptionRequired": _flag("encryption_required", unset=False),
    "maxTopicsPerNamespace": _number("max_topics", unset=0),
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
