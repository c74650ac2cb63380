"""The values of policies in namespaces that do not set them: settings of the cluster, which change live (pure).

A field has the name and the meaning of the policy (``metadata/model.py``, class ``NamespacePolicies``), which a
namespace and, for most, a topic may set to another value. Other policies have a fixed default.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from heliograph.base.settings import check_limits, setting

PARTITIONS_MAX = 10_000  # of a topic
QUOTA_ACTIONS = ("producer_request_hold", "producer_exception", "consumer_backlog_eviction")
DELETE_MODES = ("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up")
SCHEMA_COMPATIBILITIES = (
    "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE", "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE",
    "FULL", "FULL_TRANSITIVE",
)  # fmt: skip
PARTITIONED = "partitioned"


def _choice(default: str, meaning: str, choices: tuple[str, ...]) -> str:
    return setting(default, meaning, choices=choices, is_live=True)


def _flag(meaning: str, *, default: bool) -> bool:
    return setting(default, meaning, is_live=True)


def _number(default: int, meaning: str, least: int = 0, most: int | None = None) -> int:
    if most is None:
        return setting(default, meaning, least=least, is_live=True)
    return setting(default, meaning, least=least, most=most, is_live=True)


@dataclass(frozen=True, slots=True)
class PolicyDefaults:
    """The defaults of policies. Their retention is ``default_retention_seconds`` with ``retention_bytes``, and their
    numbers of copies are settings of the broker too."""

    auto_create_topics: bool = _flag("using a topic creates it", default=True)
    auto_create_type: str = _choice(
        "non-partitioned", "the type of partitions created automatically", ("non-partitioned", PARTITIONED)
    )  # with auto_create_partitions the policy of that name
    auto_create_partitions: int = _number(1, "partitions of such a topic, if it is partitioned", 1, PARTITIONS_MAX)
    auto_create_subscriptions: bool = _flag("a consumer creates the subscription that it names", default=True)
    retention_bytes: int = _number(
        -1, "acknowledged messages that are kept at most, within `default_retention_seconds`; -1: all", -1
    )
    message_ttl_seconds: int = _number(0, "age at which a message counts as acknowledged; 0: never")
    backlog_quota_bytes: int = _number(-1, "size of the largest backlog of a subscription; -1: any", -1)
    backlog_quota_seconds: int = _number(-1, "age of the oldest message of a backlog; -1: any", -1)
    backlog_quota_action: str = _choice(QUOTA_ACTIONS[0], "the action above a quota", QUOTA_ACTIONS)
    deduplication: bool = _flag("drop messages that a producer sent before", default=False)
    deduplication_seconds: int = _number(86_400, "time for which an absent producer is remembered; -1: always", -1)
    deduplication_snapshot_entries: int = _number(1_000, "entries between two snapshots of sequence ids")
    deduplication_snapshot_seconds: int = _number(120, "time between two snapshots of sequence ids", 1)
    publish_messages_per_second: int = _number(0, "rate of a topic's producers; 0: any")
    publish_bytes_per_second: int = _number(0, "rate of a topic's producers; 0: any")
    dispatch_messages_per_second: int = _number(0, "rate of a topic's consumers; 0: any")
    dispatch_bytes_per_second: int = _number(0, "rate of a topic's consumers; 0: any")
    subscription_dispatch_messages_per_second: int = _number(0, "rate of a subscription's consumers; 0: any")
    subscription_dispatch_bytes_per_second: int = _number(0, "rate of a subscription's consumers; 0: any")
    dispatch_relative: bool = _flag("these rates, and those of topics, are above that of publishing", default=False)
    subscribes_per_second: int = _number(0, "how often one consumer may subscribe; 0: any")
    subscribe_period_seconds: int = _number(30, "period in which that is counted", 1)
    max_topics: int = _number(0, "topics of a namespace, each partition counted; 0: any number")
    max_producers: int = _number(0, "producers of a topic; 0: any number")
    max_consumers: int = _number(0, "consumers of a topic; 0: any number")
    max_consumers_per_subscription: int = _number(0, "consumers of a subscription; 0: any number")
    max_subscriptions: int = _number(0, "subscriptions of a topic; 0: any number")
    max_unacked_per_consumer: int = _number(50_000, "unacknowledged messages of a consumer; 0: any number")
    max_unacked_per_subscription: int = _number(200_000, "unacknowledged messages of a subscription; 0: any number")
    delayed_delivery: bool = _flag("deliver messages when their producers ask for it, not at once", default=True)
    delayed_tick_ms: int = _number(0, "times of delivery are rounded up to multiples of this; 0: exact")
    delayed_ms_max: int = _number(0, "longest delay that a producer may ask for; 0: any")
    inactive_delete: bool = _flag("delete unused topics after `inactive_delete_seconds`", default=True)
    inactive_delete_seconds: int = _number(0, "time after which an unused topic is deleted; 0: never")
    inactive_delete_mode: str = _choice(DELETE_MODES[0], "when a topic counts as unused", DELETE_MODES)
    subscription_expiration_seconds: int = _number(0, "time after which an unused subscription is deleted; 0: never")
    compaction_threshold_bytes: int = _number(0, "bytes since the last compaction that start the next one; 0: none do")
    schema_compatibility: str = _choice("FULL", "how schemas may follow each other", SCHEMA_COMPATIBILITIES)
    schema_validation_enforced: bool = _flag("refuse producers without a schema where the topic has one", default=False)

    def __post_init__(self) -> None:
        check_limits(self)

    def values(self) -> dict[str, Any]:
        """Return the policies by the names of their fields in ``NamespacePolicies``."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        found["subscription_dispatch_relative"] = self.dispatch_relative
        if found.pop("auto_create_type") != PARTITIONED:
            found["auto_create_partitions"] = 0
        return found
