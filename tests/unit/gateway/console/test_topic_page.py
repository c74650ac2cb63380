"""The page of a topic: why a subscription does not move, and plots of partitions together."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.gateway.console.topic_page import plots_of, policies_of, stall_reason

CONSUMER = {"availablePermits": 100, "blockedConsumerOnUnackedMsgs": False}


def subscription(consumers: list[dict[str, Any]], **changes: Any) -> dict[str, Any]:
    return {
        "consumers": [CONSUMER | one for one in consumers],
        "unackedMessages": 0, "msgBacklog": 10, "backlogMessages": 20, "msgDelayed": 0,
        "blockedSubscriptionOnUnackedMsgs": False,
    } | changes  # fmt: skip


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (subscription([{}]), ""),
        (subscription([], msgBacklog=0, backlogMessages=0), ""),
        (subscription([]), "no consumer"),
        (subscription([{}], unackedMessages=5, blockedSubscriptionOnUnackedMsgs=True), "blocked: 5 messages"),
        (subscription([{"blockedConsumerOnUnackedMsgs": True}], unackedMessages=5), "blocked: every consumer"),
        (subscription([{"blockedConsumerOnUnackedMsgs": True}, {}], unackedMessages=5), ""),
        (subscription([{}], msgDelayed=10), "delayed: 10"),
        (subscription([{"availablePermits": 0}], unackedMessages=5), "full window"),
        (subscription([{"availablePermits": -3}]), "no permits"),
        (subscription([{"availablePermits": 0}, {}], unackedMessages=5), ""),
        (subscription([{}], unackedMessages=20), "waits for acknowledgements"),
    ],
)
def test_why_a_subscription_does_not_move(given: dict[str, Any], why: str) -> None:
    found = stall_reason(given)
    assert why in found
    assert bool(found) == bool(why)


def test_partitions_are_added_up_where_they_end_together() -> None:
    found = plots_of(
        [
            (["in_messages_rate", "p-0"], [1.0, 2.0, 3.0]),
            (["in_messages_rate", "p-1"], [10.0, None]),
            (["publish_seconds", "p-0"], [0.1, None]),
            (["publish_seconds", "p-1"], [0.3, None]),
            (["backlog_messages", "p-0", "b"], [4]),
            (["backlog_messages", "p-1", "b"], [5]),
            (["backlog_messages", "p-1", "a"], [6]),
        ]
    )
    assert [plot["form"] for plot in found] == ["n", "s", "n"]
    assert found[0]["lines"] == [["in", [1.0, 12.0, 3.0]]]
    assert found[1]["lines"] == [["publish", [None, 0.2, None]]]
    assert found[2]["lines"] == [["a", [None, None, 6]], ["b", [None, None, 9]]]
    assert plots_of([]) == []


def test_a_policy_says_whether_it_is_of_the_topic_the_namespace_or_the_cluster() -> None:
    applied = {"ack_quorum": 2, "retention_seconds": 60, "write_quorum": 3}
    found = policies_of({"ack_quorum": 2}, {"ack_quorum": 1, "retention_seconds": 60}, applied)
    assert [(row["policy"], row["from"]) for row in found] == [
        ("ack_quorum", "this topic"),
        ("retention_seconds", "namespace"),
        ("write_quorum", "cluster"),
    ]
    assert policies_of({}, None, applied)[0]["from"] == "namespace or cluster", "the caller may not see those"
