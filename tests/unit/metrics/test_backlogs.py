"""One backlog of batches, asked for at every door: messages everywhere, and entries where Pulsar's tools look."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import heliograph
from heliograph.cli.app import app
from heliograph.metrics.exposition import samples_in

PREFIX = "persistent://public/default/"
Counts = dict[str, float]  # by the topic's name


def fetched(url: str) -> Any:
    with urllib.request.urlopen(url) as answer:
        return answer.read().decode()


def helio(home: Path, *arguments: str) -> Any:
    return json.loads(
        CliRunner().invoke(app, [*arguments, "--json", "--home", str(home)], catch_exceptions=False).stdout
    )


def sampled(text: str, metric: str) -> Counts:
    """Return a metric's samples of the subscription ``jobs``."""
    return {
        labels["topic"].removeprefix(PREFIX): value
        for name, labels, value in samples_in(text)
        if name == metric and labels["subscription"] == "jobs"
    }


def doors(home: Path, url: str, client: heliograph.Client, topics: list[str]) -> Iterator[tuple[str, Counts]]:
    """Yield what each door says of the messages of each topic's backlog."""
    yield "client.admin", {t: client.admin.topic_stats(t)["subscriptions"]["jobs"]["backlogMessages"] for t in topics}
    http = {t: json.loads(fetched(f"{url}/admin/v2/persistent/public/default/{t}/stats")) for t in topics}
    yield "the admin API", {t: http[t]["subscriptions"]["jobs"]["backlogMessages"] for t in topics}
    yield (
        "helio subscriptions list",
        {t: helio(home, "subscriptions", "list", t)["subscriptions"]["jobs"]["backlogMessages"] for t in topics},
    )
    yield (
        "helio topics stats",
        {t: helio(home, "topics", "stats", t)["subscriptions"]["jobs"]["backlogMessages"] for t in topics},
    )
    rows = helio(home, "top", "subscriptions")["subscriptions"]
    yield "helio top", {row["topic"].removeprefix(PREFIX): row["backlog"] for row in rows}
    console = json.loads(fetched(f"{url}/status"))["topics"]
    named = {row["name"].removeprefix(PREFIX) + "-partition-0" * bool(row["partitions"]): row for row in console}
    yield "the console", {name: row["backlog"]["jobs"] for name, row in named.items()}  # the sum of all partitions
    yield "/metrics", sampled(fetched(f"{url}/metrics"), "heliograph_subscription_backlog_messages")


def test_every_door_counts_the_same_messages(tmp_path: Path) -> None:
    expected: Counts = {"singles": 7, "batch": 1_000, "part": 900, "partitioned-partition-0": 60}
    entries: Counts = {"singles": 7, "batch": 1, "part": 1, "partitioned-partition-0": 1}
    topics = list(expected)
    with heliograph.local(tmp_path, bookies=1) as cluster, cluster.connect() as client:
        client.admin.create_topic("partitioned", partitions=1)
        for topic in topics:
            client.admin.create_subscription(topic, "jobs", "earliest")
            with client.producer(topic) as producer:
                if topic == "singles":
                    for number in range(7):
                        producer.send(b"%d" % number)
                else:
                    producer.send_many([b"%d" % number for number in range(60 if "partition" in topic else 1_000)])
        with client.consumer("part", "jobs", type="shared") as consumer:
            consumer.ack_many(consumer.receive_many(1_000, 30)[:100])
        for door, found in doors(tmp_path, cluster.http_url, client, topics):
            assert {topic: found.get(topic) for topic in topics} == expected, door
        for topic in topics:
            stats = client.admin.topic_stats(topic)["subscriptions"]["jobs"]
            assert (stats["msgBacklog"], stats["backlogEntriesUncounted"]) == (entries[topic], 0), topic
        text = fetched(f"{cluster.http_url}/metrics")
        assert sampled(text, "heliograph_subscription_backlog_entries") == entries
        (whole,) = [
            value
            for name, labels, value in samples_in(text)
            if name == "heliograph_namespace_backlog_messages" and labels["namespace"] == "public/default"
        ]
        assert whole == sum(expected.values())
