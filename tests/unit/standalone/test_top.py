"""`helio top` of a cluster in one process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import heliograph
from heliograph.base.errors import BadRequestError, ClusterNotFoundError
from heliograph.cli.app import app
from heliograph.cli.top import TopKind, _rows
from heliograph.metrics.exposition import exposition, samples_in
from heliograph.metrics.metric import Metric, MetricKind


def top(home: Path, *arguments: str) -> str:
    return CliRunner().invoke(app, ["top", *arguments, "--home", str(home)], catch_exceptions=False).stdout


def test_the_largest_come_first(tmp_path: Path) -> None:
    with heliograph.local(tmp_path, bookies=1) as cluster, cluster.connect() as client:
        for name, count in (("few", 2), ("many", 30)):
            client.consumer(name, "audit").close()
            producer = client.producer(name)
            for _ in range(count):
                producer.send(b"x")
        found = json.loads(top(tmp_path, "subscriptions", "--json"))["subscriptions"]
        assert [(row["topic"].rpartition("/")[2], row["backlog"]) for row in found] == [("many", 30), ("few", 2)]
        assert all(row["subscription"] == "audit" and row["consumers"] == 0 for row in found)
        text = top(tmp_path, "topics", "--sort", "stored bytes", "--once")
        assert text.index("many") < text.index("few")
        (bookie,) = json.loads(top(tmp_path, "bookies", "--json"))["bookies"]
        assert bookie["bookie"] == "bookie-1"
        assert bookie["free bytes"] > 0
        with pytest.raises(BadRequestError, match="there is no column"):
            top(tmp_path, "brokers", "--sort", "colour", "--once")
        topic = "2 of 2 topics"
        assert topic in text


def test_without_a_cluster_it_says_where_it_looked(tmp_path: Path) -> None:
    with pytest.raises(ClusterNotFoundError, match="no gateway is noted"):
        top(tmp_path / "nothing", "--once")


def test_a_sample_without_the_labels_of_its_view_is_left_out() -> None:
    name = "heliograph_topic_in_messages_rate"
    (row,) = _rows(TopKind.TOPICS, samples_in(f'{name} 99\n{name}{{topic="t"}} 1\n'))
    assert (row["topic"], row["in/s"]) == ("t", 1.0)


def test_what_is_written_is_read_again() -> None:
    strange = 'a "b" \\ c\nd'
    metric = Metric("heliograph_x", MetricKind.GAUGE, "x", ("topic", "other"))
    text = exposition((metric,), {"heliograph_x": [((strange, "{y} 1"), 2.5)]})
    assert list(samples_in(text)) == [("heliograph_x", {"topic": strange, "other": "{y} 1"}, 2.5)]
