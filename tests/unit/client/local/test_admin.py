"""``client.admin`` of a running cluster: what a program of the first week needs, sync and async."""

from __future__ import annotations

import asyncio
import json
import urllib.request

import pytest

import heliograph
from heliograph.base.errors import BadRequestError, NotFoundError, RunningLoopError, TopicNotFoundError


def test_a_program_administers_by_an_address_alone(client: heliograph.Client) -> None:
    admin = client.admin
    admin.create_topic("administered", 4)
    assert admin.partitions("administered") == client.partitions("administered") == 4
    admin.namespaces.set_policies("public/default", {"message_ttl_seconds": 3600})
    assert admin.namespaces.policies("public/default")["message_ttl_seconds"] == 3600
    admin.namespaces.remove_policies("public/default", ["message_ttl_seconds"])
    admin.schemas.put("administered", {"type": "STRING"})
    assert admin.schemas.get("administered")["type"] == "STRING"
    admin.create_topic("single")
    admin.create_subscription("single", "jobs")
    with client.producer("single") as producer:
        ids = producer.send_many([b"1", b"2", b"3"])
    assert admin.topic_stats("single")["subscriptions"]["jobs"]["backlogMessages"] == 3
    admin.cursors.skip_all("single", "jobs")
    assert admin.topic_stats("single")["subscriptions"]["jobs"]["msgBacklog"] == 0
    admin.cursors.reset("single", "jobs", str(ids[0]))
    with client.consumer("single", "jobs") as consumer:
        assert consumer.receive(30).value == b"1"
    admin.delete_topic("administered")
    with pytest.raises(NotFoundError):
        admin.delete_topic("administered")


def test_the_async_form_is_awaited(cluster: heliograph.LocalCluster) -> None:
    async def run() -> None:
        async with await heliograph.connect_async(cluster.service_url) as client:
            await client.admin.create_topic("awaited", 2)
            assert await client.admin.partitions("awaited") == 2
            with pytest.raises(TopicNotFoundError):
                await client.admin.topic_stats("never made")

    asyncio.run(run())


def test_the_blocking_form_is_refused_on_a_running_loop(client: heliograph.Client) -> None:
    async def run() -> None:
        with pytest.raises(RunningLoopError, match="AsyncClient"):
            client.admin.list_topics()

    asyncio.run(run())


def test_topics_are_listed_in_pages(client: heliograph.Client) -> None:
    admin = client.admin
    admin.namespaces.create("public/listed")
    for number in range(5):
        admin.create_topic(f"persistent://public/listed/t{number}", 2 if number == 3 else 0)
    admin.create_topic("persistent://public/listed/other")
    pages, after = list[list[str]](), ""
    while page := [str(each["name"]) for each in admin.list_topics("public/listed", after, 2)]:
        pages.append(page)
        after = page[-1]
    assert [len(page) for page in pages] == [2, 2, 2]
    listed = [name for page in pages for name in page]
    assert listed == [str(each["name"]) for each in admin.list_topics("public/listed")]
    assert listed == [str(each["name"]) for page in admin.topic_pages("public/listed", limit=2) for each in page]
    assert [page[0]["name"] for page in admin.topic_pages("public/listed", after=listed[-2])] == listed[-1:]
    with pytest.raises(BadRequestError, match="no domain"):
        admin.list_topics("public/listed", domain="persistant")
    found = admin.list_topics("public/listed", prefix="t", after="persistent://public/listed/t2")
    assert [(each["name"].rpartition("/")[2], each["partitions"]) for each in found] == [("t3", 2), ("t4", 0)]


def test_a_batch_of_1000_is_a_backlog_of_1000(cluster: heliograph.LocalCluster, client: heliograph.Client) -> None:
    """The statistics and the console count messages, also of a batch that is acknowledged in part."""
    client.admin.create_subscription("counted", "jobs", "earliest")
    with client.producer("counted") as producer:
        producer.send_many([b"%d" % number for number in range(1000)])
    stats = client.admin.topic_stats("counted")["subscriptions"]["jobs"]
    assert (stats["msgBacklog"], stats["backlogMessages"], stats["backlogEntriesUncounted"]) == (1, 1000, 0)
    with urllib.request.urlopen(f"{cluster.http_url}/status") as answer:
        rows = {row["name"]: row["backlog"] for row in json.load(answer)["topics"]}
    assert rows["persistent://public/default/counted"] == {"jobs": 1000}
    with client.consumer("counted", "jobs") as consumer:
        for message in consumer.receive_many(100, 30):
            consumer.ack(message)
        stats = client.admin.topic_stats("counted")["subscriptions"]["jobs"]
    assert (stats["msgBacklog"], stats["backlogMessages"], stats["backlogEntriesUncounted"]) == (1, 900, 0)


@pytest.mark.parametrize(("batching", "entries"), [("", 1), ("by_key", 10), ("none", 100)])
def test_a_policy_says_how_producers_batch(client: heliograph.Client, batching: str, entries: int) -> None:
    """It holds for producers that open then, and has no effect on the order of the ids."""
    topic = f"batched-{batching}"
    client.admin.create_topic(topic)
    client.admin.namespaces.set_topic_policies(topic, {"batching": batching})
    with client.producer(topic) as producer:
        ids = producer.send_many([b"%d" % number for number in range(100)], keys=[f"k{n % 10}" for n in range(100)])
        assert len({(one.ledger_id, one.entry_id) for one in ids}) == entries
        with pytest.raises(BadRequestError, match="batching"):
            client.admin.namespaces.set_topic_policies(topic, {"batching": "often"})
    with client.reader(topic, "earliest") as reader:
        found = [reader.receive(30) for _ in range(100)]
    for key in range(10):
        assert [int(one.value) for one in found if one.key == f"k{key}"] == list(range(key, 100, 10))
