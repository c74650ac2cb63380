"""The steps of the demonstration: publish in three ways, consume twice, kill a bookie, check, query by Spark."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import crc32c
import numpy as np
import pandas as pd
import ray

from examples.flights import check, fault, table
from examples.flights.cluster import DemoCluster
from examples.flights.conductor import Conductor
from examples.flights.consume import EXCLUSIVE, SHARED, Arrivals, consume_partition, consume_shared
from examples.flights.fault import Killed
from examples.flights.flights import PARTITIONS, TOPIC, Flights
from examples.flights.publish import Published, publish_handles, run_http, run_one_by_one, run_websocket
from examples.flights.report import Bars, Report
from examples.flights.spark_step import demo_spark
from examples.flights.topic_view import TopicView
from heliograph import connect

HTTP_ROWS = 20_000
WEBSOCKET_ROWS = 20_000
PUBLISHERS = 2  # Ray tasks
SHARED_CONSUMERS = 3
# Two of three bookies hold each entry, so that the third can replace a lost one immediately.
PERSISTENCE = {"ensemble_size": 2, "write_quorum": 2, "ack_quorum": 2}
KILL_AFTER_SHARE = 0.3  # of the rows that go through Python handles
POLL_SECONDS = 0.2
ONE_BY_ONE_TOPIC = "flights-one-by-one"
ONE_BY_ONE_ROWS = 500
HTTP, WEBSOCKET, HANDLES = "HTTP", "WebSocket", "Python handles"

_TASK_CPUS = 0.1  # consumers mostly wait
_ENVIRONMENT = {"env_vars": {"RAY_worker_niceness": "0"}}


@dataclass
class Outcome:
    """The results of the steps, for the report."""

    checks: list[check.Check] = field(default_factory=list)
    published: dict[str, list[Published]] = field(default_factory=dict)
    arrivals: dict[str, list[Arrivals]] = field(default_factory=dict)
    killed: Killed | None = None
    flow_seconds: float = 0.0
    one_by_one_ms: list[float] = field(default_factory=list)  # each row durable before the next is sent


class Scenario:
    """One run. The caller runs the steps in order."""

    def __init__(self, cluster: DemoCluster, flights: Flights, report: Report) -> None:
        self._cluster = cluster
        self._flights = flights
        self._report = report
        self._view = TopicView(TOPIC, PARTITIONS, cluster.namespace)
        self._client = connect(namespace=cluster.namespace)
        self._topic = self._client.topic(TOPIC)
        self._conductor = _task(Conductor).remote()
        self._segments_before: dict[int, int] = {}
        self._rows_at_kill = 0
        self.outcome = Outcome()

    def create_topic(self) -> None:
        """Create the partitioned topic."""
        self._view.create(PERSISTENCE)

    def let_flow(self) -> None:
        """Publish and consume at the same time, and kill a bookie meanwhile."""
        begun = time.monotonic()
        consumers = self._start_consumers()
        with Bars(self._report.console) as bars:
            self._add_bars(bars)
            self._publish_over_http_and_websocket(bars)
            publishers = self._start_publishers()
            self._watch(bars, publishers, self._kill_when_due)
            self.outcome.published[HANDLES] = ray.get(publishers)
            ray.get(self._conductor.finish_publishing.remote(dict(self._rows_by_partition())))
            self._watch(bars, [*consumers[EXCLUSIVE], *consumers[SHARED]])
        self.outcome.arrivals = {name: ray.get(tasks) for name, tasks in consumers.items()}
        self.outcome.flow_seconds = time.monotonic() - begun
        ray.kill(self._conductor)

    def measure_one_by_one(self) -> None:
        """Measure one durable publish at a time on an idle cluster, with the cluster's default of three copies."""
        self._view.create_side_topic(ONE_BY_ONE_TOPIC)
        rows = self._flights.between(0, ONE_BY_ONE_ROWS)
        self.outcome.one_by_one_ms = run_one_by_one(self._cluster.namespace, ONE_BY_ONE_TOPIC, rows)

    def check_arrivals(self) -> None:
        """Check the messages that arrived, and that publishing continued after the kill."""
        exclusive, shared = self.outcome.arrivals[EXCLUSIVE], self.outcome.arrivals[SHARED]
        checksums = np.array([crc32c.crc32c(payload) for payload in self._flights.payloads()], dtype=np.uint32)
        after_kill = sum(part.rows for part in self.outcome.published[HANDLES]) - self._rows_at_kill
        name = self.outcome.killed.name if self.outcome.killed else "a bookie"
        self.outcome.checks += [
            check.exactly_once(exclusive, self._flights),
            check.same_bytes(exclusive, checksums),
            check.in_order(exclusive, self._flights),
            check.nothing_missing(shared, self._flights),
            check.ensembles_changed(self._segments_before, self._view.segments(), name, after_kill),
        ]

    def ask_spark(self) -> pd.DataFrame:
        """Compute the table per carrier from the topic, and check it."""
        with demo_spark(self._report.note) as spark:
            computed = table.by_spark(spark, TOPIC, self._cluster.namespace)
        self.outcome.checks.append(check.same_table(computed, table.by_pandas(self._flights)))
        return computed

    def bytes_fsynced(self) -> int:
        """Return the bytes that all bookies' journals fsynced, those of the killed process included."""
        before = self.outcome.killed.statistics if self.outcome.killed else {}
        total: int = self._view.journal_bytes_fsynced() + int(before.get("journal_bytes_fsynced", 0))
        return total

    def _start_consumers(self) -> dict[str, list[Any]]:
        alone, together = _task(consume_partition), _task(consume_shared)
        partitions = [self._client.topic(f"{TOPIC}-partition-{index}") for index in range(PARTITIONS)]
        return {
            EXCLUSIVE: [alone.remote(part, index, self._conductor) for index, part in enumerate(partitions)],
            SHARED: [together.remote(self._topic, self._conductor) for _ in range(SHARED_CONSUMERS)],
        }

    def _add_bars(self, bars: Bars) -> None:
        total = len(self._flights)
        bars.add(HTTP, "published over HTTP", HTTP_ROWS)
        bars.add(WEBSOCKET, "published over a WebSocket", WEBSOCKET_ROWS)
        bars.add(HANDLES, f"published by {PUBLISHERS} Ray tasks", total - HTTP_ROWS - WEBSOCKET_ROWS)
        bars.add(EXCLUSIVE, f"consumed, {PARTITIONS} exclusive consumers", total)
        bars.add(SHARED, f"consumed, {SHARED_CONSUMERS} shared consumers", total)

    def _publish_over_http_and_websocket(self, bars: Bars) -> None:
        url = self._cluster.gateway_url
        first = self._flights.between(0, HTTP_ROWS)
        second = self._flights.between(HTTP_ROWS, HTTP_ROWS + WEBSOCKET_ROWS)

        def progress(name: str) -> Callable[[int], None]:
            def advance(rows: int) -> None:
                bars.advance(name, rows)
                self._show_consumed(bars)

            return advance

        self.outcome.published[HTTP] = [run_http(url, TOPIC, first, progress(HTTP))]
        self.outcome.published[WEBSOCKET] = [run_websocket(url, TOPIC, second, progress(WEBSOCKET))]

    def _start_publishers(self) -> list[Any]:
        rest = self._flights.between(HTTP_ROWS + WEBSOCKET_ROWS, len(self._flights))
        publish = _task(publish_handles)
        shards = [rest.shard(index, PUBLISHERS) for index in range(PUBLISHERS)]
        return [publish.remote(self._topic, shard, HANDLES, self._conductor) for shard in shards]

    def _watch(self, bars: Bars, tasks: Sequence[Any], each: Callable[[Bars, int], None] | None = None) -> None:
        """Update the bars until all tasks have ended. The error of a failed task is raised here."""
        waiting = list(tasks)
        while waiting:
            done, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=POLL_SECONDS)
            ray.get(done)
            published = self._show_consumed(bars)[HANDLES]
            bars.set(HANDLES, published)
            if each is not None:
                each(bars, published)

    def _show_consumed(self, bars: Bars) -> Counter[str]:
        rows: Counter[str] = Counter(ray.get(self._conductor.rows.remote()))
        bars.set(EXCLUSIVE, rows[EXCLUSIVE])
        bars.set(SHARED, rows[SHARED])
        return rows

    def _kill_when_due(self, bars: Bars, published: int) -> None:
        """Kill the bookie that most partitions write to, once enough rows are published."""
        due = KILL_AFTER_SHARE * (len(self._flights) - HTTP_ROWS - WEBSOCKET_ROWS)
        if self.outcome.killed is not None or published < due:
            return
        self._segments_before = self._view.segments()
        victim = fault.busiest_bookie(self._view.ensembles())
        self.outcome.killed = fault.kill_bookie(victim, self._cluster.namespace)
        self._rows_at_kill = published
        self._conductor.note_fault.remote()
        bars.say(f"   [red]SIGKILL[/red] to {victim} (process {self.outcome.killed.pid}) while data flows")

    def _rows_by_partition(self) -> Counter[int]:
        total: Counter[int] = Counter()
        for parts in self.outcome.published.values():
            for part in parts:
                total.update(part.rows_by_partition)
        return total


def _task(target: Any) -> Any:
    return ray.remote(num_cpus=_TASK_CPUS, runtime_env=_ENVIRONMENT)(target)
