"""Every policy of namespaces and topics through pulsar-admin: set, get, remove, get."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from tests.clients.admin.conftest import VERSION
from tests.clients.admin.session import AdminSession
from tests.clients.support.report import ClientMatrix

TOOL = "pulsar-admin"
Shown = Any
DAY_MINUTES = 1440


@dataclass(frozen=True)
class PolicyCommands:
    """How a policy is set, and what is shown then.

    Args:
        name: the commands are ``set-<name>``, ``get-<name>`` and ``remove-<name>``.
        options: of the set command.
        shown: what the get command shows; of an object the members that are named.
        unset: what it shows before and after.
        removed: options of the remove command; None: there is none.
        row: of docs/clients.md; like the name if it is not given.
    """

    name: str
    options: str
    shown: Shown
    unset: Shown = None
    removed: str | None = ""
    row: str = ""

    @property
    def feature(self) -> str:
        """Return the row without its table."""
        return self.row or self.name.replace("-", "_")


RATE = {"dispatchThrottlingRateInMsg": 10, "dispatchThrottlingRateInByte": 2000, "ratePeriodInSecond": 5}
RATE_OPTIONS = "-md 10 -bd 2000 -dt 5"

BOTH = [
    PolicyCommands("retention", "-s 10M -t 1d", {"retentionTimeInMinutes": DAY_MINUTES, "retentionSizeInMB": 10}),
    PolicyCommands("dispatch-rate", RATE_OPTIONS, RATE),
    PolicyCommands("subscription-dispatch-rate", RATE_OPTIONS, RATE),
    PolicyCommands(
        "publish-rate", "-m 10 -b 2000", {"publishThrottlingRateInMsg": 10, "publishThrottlingRateInByte": 2000}
    ),
    PolicyCommands(
        "subscribe-rate", "-sr 5 -st 30", {"subscribeThrottlingRatePerConsumer": 5, "ratePeriodInSecond": 30}
    ),
    PolicyCommands("max-subscriptions-per-topic", "--max-subscriptions-per-topic 3", 3),
    PolicyCommands("deduplication", "-e", True),
    PolicyCommands("compaction-threshold", "-t 10M", 10 << 20),
    PolicyCommands("delayed-delivery", "-e -t 5s", {"active": True, "tickTime": 5000}),
    PolicyCommands("max-consumers-per-subscription", "-c 4", 4),
    PolicyCommands(
        "inactive-topic-policies", "-e -t 1h -m delete_when_no_subscriptions",
        {"inactiveTopicDeleteMode": "delete_when_no_subscriptions", "maxInactiveDurationSeconds": 3600},
    ),
    PolicyCommands("persistence", "-e 3 -w 3 -a 2 -r 9", {"bookkeeperAckQuorum": 2,
        "managedLedgerMaxMarkDeleteRate": 9}),
    PolicyCommands("subscription-types-enabled", "-t Exclusive,Shared", ["Exclusive", "Shared"]),
    PolicyCommands("auto-subscription-creation", "-e", {"allowAutoSubscriptionCreation": True}),
]  # fmt: skip
NAMESPACES = [
    *BOTH,
    PolicyCommands("message-ttl", "-ttl 3600", 3600),
    PolicyCommands("max-unacked-messages-per-consumer", "-c 7", 7),
    PolicyCommands("max-unacked-messages-per-subscription", "-c 9", 9),
    PolicyCommands("max-producers-per-topic", "-p 2", 2, row="max_producers"),
    PolicyCommands("max-consumers-per-topic", "-c 5", 5, row="max_consumers"),
    PolicyCommands("max-topics-per-namespace", "-t 50", 50),
    PolicyCommands(
        "auto-topic-creation", "-e -t partitioned -n 3", {"allowAutoTopicCreation": True, "defaultNumPartitions": 3}
    ),
    PolicyCommands("subscription-expiration-time", "-t 60", 60),
    PolicyCommands("schema-compatibility-strategy", "-c BACKWARD", "BACKWARD", removed=None),
    PolicyCommands("is-allow-auto-update-schema", "-d", False, removed=None),
    PolicyCommands("schema-validation-enforce", "-e", True, removed=None),
]
TOPICS = [
    *BOTH,
    PolicyCommands("message-ttl", "-t 3600", 3600),
    PolicyCommands("max-unacked-messages-per-consumer", "-m 7", 7),
    PolicyCommands("max-unacked-messages-per-subscription", "-m 9", 9),
    PolicyCommands("max-producers", "-p 2", 2),
    PolicyCommands("max-consumers", "-c 5", 5),
    PolicyCommands("max-message-size", "-m 1000", 1000),
    PolicyCommands("schema-compatibility-strategy", "--strategy BACKWARD", "BACKWARD"),
]


def read(text: str) -> Any:
    """Return what a get command shows."""
    lines = [line for line in text.strip().splitlines() if line.strip()]
    found = "\n".join(lines)
    if found in ("", "null"):
        return None
    try:
        return json.loads(found)
    except ValueError:
        return found


def contains(shown: Any, expected: Shown) -> bool:
    """Tell whether what is shown is what was set; members that nobody set may have any value."""
    if isinstance(expected, dict):
        return isinstance(shown, dict) and all(contains(shown.get(name), value) for name, value in expected.items())
    if isinstance(expected, list):
        return isinstance(shown, list) and sorted(shown) == sorted(expected)
    return bool(shown == expected)


def go_through(admin: AdminSession, group: str, name: str, policy: PolicyCommands) -> None:
    """Set, get and remove one policy."""
    before = read(admin(group, f"get-{policy.name}", name))
    assert not contains(before, policy.shown), before
    admin(group, f"set-{policy.name}", *policy.options.split(), name)
    shown = read(admin(group, f"get-{policy.name}", name))
    assert contains(shown, policy.shown), shown
    if policy.removed is not None:
        admin(group, f"remove-{policy.name}", *policy.removed.split(), name)
        assert read(admin(group, f"get-{policy.name}", name)) == before


@pytest.mark.parametrize("policy", NAMESPACES, ids=lambda policy: policy.name)
def test_a_policy_of_a_namespace(
    admin: AdminSession, namespace: str, policy: PolicyCommands, matrix: ClientMatrix
) -> None:
    with matrix.noting(TOOL, VERSION, f"namespace:{policy.feature}"):
        go_through(admin, "namespaces", namespace, policy)


@pytest.mark.parametrize("policy", TOPICS, ids=lambda policy: policy.name)
def test_a_policy_of_a_topic(admin: AdminSession, topic: str, policy: PolicyCommands, matrix: ClientMatrix) -> None:
    with matrix.noting(TOOL, VERSION, f"topic:{policy.feature}"):
        go_through(admin, "topicPolicies", topic, policy)


def test_the_rate_of_one_subscription(admin: AdminSession, topic: str) -> None:
    admin("topicPolicies", "set-subscription-dispatch-rate", "-s", "late", *RATE_OPTIONS.split(), topic)
    shown = read(admin("topicPolicies", "get-subscription-dispatch-rate", "-s", "late", topic))
    assert contains(shown, RATE), shown
    assert contains(read(admin("topicPolicies", "get-subscription-dispatch-rate", "-s", "late", "-ap", topic)), RATE)
    assert read(admin("topicPolicies", "get-subscription-dispatch-rate", topic)) is None
    admin("topicPolicies", "remove-subscription-dispatch-rate", "-s", "late", topic)
    assert read(admin("topicPolicies", "get-subscription-dispatch-rate", "-s", "late", topic)) is None


@pytest.mark.parametrize("level", ["namespace", "topic"])
def test_backlog_quotas(admin: AdminSession, namespace: str, topic: str, level: str, matrix: ClientMatrix) -> None:
    group, get, name = {
        "namespace": ("namespaces", "get-backlog-quotas", namespace),
        "topic": ("topicPolicies", "get-backlog-quota", topic),
    }[level]
    with matrix.noting(TOOL, VERSION, f"{level}:backlog_quota"):
        admin(group, "set-backlog-quota", "-l", "10M", "-p", "producer_exception", name)
        shown = admin(group, get, name)
        assert str(10 << 20) in shown
        assert "producer_exception" in shown
        admin(group, "remove-backlog-quota", name)
        assert str(10 << 20) not in admin(group, get, name)


def test_properties_of_a_namespace(admin: AdminSession, namespace: str, matrix: ClientMatrix) -> None:
    with matrix.noting(TOOL, VERSION, "namespace:properties"):
        admin("namespaces", "set-property", "-k", "team", "-v", "blue", namespace)
        assert "blue" in admin("namespaces", "get-property", "-k", "team", namespace)
        admin("namespaces", "set-properties", "-p", "a=1", "-p", "b=2", namespace)
        assert admin.json("namespaces", "get-properties", namespace) == {"team": "blue", "a": "1", "b": "2"}
        admin("namespaces", "remove-property", "-k", "a", namespace)
        admin("namespaces", "clear-properties", namespace)
        assert read(admin("namespaces", "get-properties", namespace)) in ({}, None)


def test_the_policies_of_a_namespace_as_a_whole(admin: AdminSession, namespace: str, matrix: ClientMatrix) -> None:
    with matrix.noting(TOOL, VERSION, "namespace:whole"):
        admin("namespaces", "set-message-ttl", "-ttl", "77", namespace)
        assert admin.json("namespaces", "policies", namespace)["message_ttl_in_seconds"] == 77
