"""The pages of all topics, of one topic and of the queues of tasks, of which some answer too late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from heliograph.base.errors import NotFoundError, NotPermittedError, ServiceNotReadyError
from heliograph.gateway.console import topics as pages
from heliograph.gateway.console.topic_page import plots_of, policies_of, stall_reason
from heliograph.tasks.options import SUBSCRIPTION
from tests.unit.gateway.world import Gateway

NAMESPACES = [f"{tenant}/n{number}" for tenant in ("-a", "a", "b") for number in range(4)]
TOPICS = {"a/n1": ["x", "y"], "b/n0": ["x"]}


async def test_a_page_ends_in_time_in_many_small_namespaces_and_the_next_goes_on_after_the_last_one(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []
    asked: list[str] = []

    async def tenants() -> list[str]:
        return ["-a", "a", "b"]

    async def listed(tenant: str) -> list[str]:
        asked.append(tenant)
        return [name for name in NAMESPACES if name.startswith(f"{tenant}/")]

    async def list_topics(namespace: str, after: str = "", **_: Any) -> list[Mapping[str, Any]]:
        looked.append(namespace)
        names = [f"persistent://{namespace}/{name}" for name in TOPICS.get(namespace, ())]
        return [{"name": name, "partitions": 0} for name in names if name > after]

    monkeypatch.setattr(gateway.world.namespaces, "tenants", tenants)
    monkeypatch.setattr(gateway.world.namespaces, "list", listed)
    monkeypatch.setattr(gateway.world, "list_topics", list_topics)
    assert (await _all(gateway))[0] == 1
    assert asked == ["-a", "a", "b"]
    seconds, looked[:], asked[:] = pages.SECONDS_MAX, [], []
    monkeypatch.setattr(pages, "SECONDS_MAX", 0.0)
    count, found = await _all(gateway)
    # A page is a namespace, or finds that a tenant has no more, or that there are no more tenants.
    assert (seconds, count, looked) == (2.0, len(NAMESPACES) + 3 + 1, NAMESPACES)
    assert len(asked) == count - 1, "a page lists the namespaces of one tenant"
    assert found == [f"persistent://{name}" for name in ("a/n1/x", "a/n1/y", "b/n0/x")]


async def _all(gateway: Gateway) -> tuple[int, list[str]]:
    """Return how many pages there are, and the topics on them."""
    found, after, count = list[str](), "", 0
    while True:
        answer = (await gateway.http.get("/admin/heliograph/topics", params={"after": after})).json()
        found, count = [*found, *(row["name"] for row in answer["topics"])], count + 1
        if not (after := answer["next"]):
            return count, found
        assert count < 50, "the pages do not end"


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


PLACE = "persistent://public/default"


async def test_a_queue_that_does_not_answer_hides_no_other(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = {"moves": ServiceNotReadyError("it moves"), "hidden": NotPermittedError("not for you")}

    async def list_topics(namespace: str, **_: Any) -> list[Mapping[str, Any]]:
        names = [f"persistent://{namespace}/{name}-letters" for name in ("hidden", "mail", "moves")]
        return [{"name": name, "partitions": 0} for name in names]

    async def topic_stats(topic: str) -> Mapping[str, Any]:
        name = topic.rpartition("/")[2].removesuffix("-letters")
        if name in failures:
            raise failures[name]
        if "-priority-" in name:
            raise NotFoundError("there is no more")
        return {"subscriptions": {SUBSCRIPTION: {"msgBacklog": 3, "consumers": [{}]}}}

    monkeypatch.setattr(gateway.world, "list_topics", list_topics)
    monkeypatch.setattr(gateway.world, "topic_stats", topic_stats)
    answer = await gateway.http.get("/admin/heliograph/tasks")
    assert answer.status_code == 200, answer.text
    unknown = {"backlog": None, "workers": None, "letters": None}
    assert answer.json()["queues"] == [
        {"name": f"{PLACE}/hidden", **unknown},
        {"name": f"{PLACE}/mail", "backlog": 3, "workers": 1, "letters": 3},
        {"name": f"{PLACE}/moves", **unknown},
    ]
