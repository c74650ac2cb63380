"""Streams of a topic that a stock client writes: planned by the gateway, without Ray, each row in exactly one batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from heliograph.base.errors import DataLostError
from heliograph.client.identity import Identity
from heliograph.pipelines.planning.access import ClusterAccess
from heliograph.pipelines.planning.plan import plan_topic, refresh_addresses
from heliograph.pipelines.reading.options import ReadOptions
from heliograph.pipelines.reading.range_reader import count_ranges, read_ranges
from heliograph.pipelines.streaming.source import StreamSource
from tests.clients.support.stack import ClientsStack, running_stack

ROWS = 90

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClientsStack]:
    folder = tmp_path_factory.mktemp("streams")
    with running_stack(folder, brokers=1, retention_seconds=0, retention_bytes=0) as running:
        yield running


def publish(stack: ClientsStack, topic: str, rows: range) -> None:
    with stack.cluster.client() as client:
        producer: pulsar.Producer = client.create_producer(topic)
        for row in rows:
            producer.send(b"%d" % row)


def source_of(stack: ClientsStack, topic: str, checkpoint: Path, entries: int = 20) -> StreamSource:
    options = ReadOptions(ClusterAccess(None, Identity(), stack.web_url))
    return StreamSource(topic, checkpoint, options, {"entries_per_batch": entries, "until_caught_up": True})


def batches(source: StreamSource) -> Iterator[tuple[int, list[int]]]:
    for batch in source.batches():
        values = [int(value) for rows in read_ranges(batch.ranges, ("value",)) for value in rows.column(0).to_pylist()]
        assert count_ranges(batch.ranges) == len(values)
        yield batch.batch_id, values


def test_a_batch_that_was_not_committed_comes_again(stack: ClientsStack, tmp_path: Path) -> None:
    run, admin = stack.cluster.run, stack.cluster.admin
    topic = "persistent://public/default/streamed"
    run(admin.create_topic(topic, 2))
    publish(stack, topic, range(ROWS))
    begun = batches(source_of(stack, topic, tmp_path))
    first, interrupted = next(begun), next(begun)
    begun.close()  # type: ignore[attr-defined]
    rest = list(batches(source_of(stack, topic, tmp_path)))
    assert rest[0] == interrupted
    assert [batch_id for batch_id, _ in [first, *rest]] == list(range(len(rest) + 1))
    assert sorted(row for _, rows in [first, *rest] for row in rows) == list(range(ROWS))
    (name,) = run(admin.subscriptions(topic))
    assert run(admin.topic_stats(topic))["subscriptions"][name]["msgBacklog"] == 0
    publish(stack, topic, range(ROWS, ROWS + 5))
    assert sorted(row for _, rows in batches(source_of(stack, topic, tmp_path)) for row in rows) == [90, 91, 92, 93, 94]


def test_the_subscription_keeps_what_was_not_handled_and_a_new_topic_is_noticed(
    stack: ClientsStack, tmp_path: Path
) -> None:
    run, admin = stack.cluster.run, stack.cluster.admin
    topic = "persistent://public/default/held"
    run(admin.create_topic(topic, 0))
    publish(stack, topic, range(10))
    stream = batches(source_of(stack, topic, tmp_path, 4))
    assert [next(stream)[1], next(stream)[1]] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    stream.close()  # type: ignore[attr-defined]
    run(admin.unload_topic(topic))
    publish(stack, topic, range(10, 12))
    run(admin.trim_topic(topic))
    access = ClusterAccess(None, Identity(), stack.web_url)
    first, second = refresh_addresses(plan_topic(topic, access=access), access=access)
    assert (first.before, second.before) == (None, first), "where a message in chunks may begin"
    rest = [row for _, rows in batches(source_of(stack, topic, tmp_path, 4)) for row in rows]
    assert rest == list(range(4, 12))
    run(admin.delete_topic(topic, force=True))
    run(admin.create_topic(topic, 0))
    publish(stack, topic, range(3))
    with pytest.raises(DataLostError, match="created again"):
        next(batches(source_of(stack, topic, tmp_path)))
