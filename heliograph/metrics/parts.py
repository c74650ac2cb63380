"""The samples of one part, from its own statistics (pure)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from heliograph.metrics.auditor import AUDITOR_METRICS
from heliograph.metrics.bookie import BOOKIE_METRICS
from heliograph.metrics.broker import BROKER_METRICS
from heliograph.metrics.coordination import METADATA_METRICS, OPERATOR_METRICS
from heliograph.metrics.metric import Sample, read_from

Found = dict[str, list[Sample]]
MINUTE = "of_a_minute"  # in what is found of a broker: no metric, but what Pulsar's buckets are made of


def of_broker(name: str, statistics: Mapping[str, Any]) -> Found:
    found = read_from(BROKER_METRICS, statistics, name)
    adds = statistics.get("add_latency", {})
    found["heliograph_broker_add_latency_seconds"] = [((name, bookie), told) for bookie, told in adds.items()]
    if MINUTE in statistics:
        found[MINUTE] = [((name,), statistics[MINUTE])]
    return found


def of_topics(broker: str, told: Mapping[str, Any]) -> Found:
    """Return the samples of a broker's answer to ``metrics``, with labels that are texts."""
    found: Found = {
        metric: [(tuple(map(str, labels)), value + 0) for labels, value in samples]
        for metric, samples in told["series"].items()
    }
    found["heliograph_broker_topics_hidden"] = [((broker,), told["topics_hidden"])]
    return found


def of_bookie(name: str, statistics: Mapping[str, Any]) -> Found:
    return read_from(BOOKIE_METRICS, statistics, name)


def of_auditor(name: str, statistics: Mapping[str, Any]) -> Found:
    return read_from(AUDITOR_METRICS, {**statistics.get("auditor", {}), **statistics.get("worker", {})}, name)


def of_metadata(name: str, statistics: Mapping[str, Any]) -> Found:
    return read_from(METADATA_METRICS, statistics, name)


def of_operator(name: str, statistics: Mapping[str, Any]) -> Found:
    return read_from(OPERATOR_METRICS, statistics, name)


class LoopSteps(Protocol):
    """The long steps of an event loop."""

    @property
    def longest_seconds(self) -> float:
        """Return the length of the longest one of the last minute."""

    @property
    def long_steps(self) -> int:
        """Return how many there were."""


def of_loop(part: str, steps: LoopSteps | None) -> Found:
    """Return the samples of the event loop of a part's process; none if nothing watches it."""
    if steps is None:
        return {}
    return {
        "heliograph_part_loop_longest_step_seconds": [((part,), steps.longest_seconds)],
        "heliograph_part_loop_long_steps_total": [((part,), steps.long_steps)],
    }


Reader = Callable[[str, Mapping[str, Any]], Found]
# By the name of a part, or by its kind.
_READERS: Mapping[str, Reader] = {
    "broker": of_broker,
    "bookie": of_bookie,
    "auditor": of_auditor,
    "replicator": of_auditor,
    "metadata": of_metadata,
    "operator": of_operator,
}
_ALONE = ("metadata", "operator")  # `metadata-2` is a member of etcd, which has an exporter of its own


def reader_of(part: str) -> Reader | None:
    """Return the reader of a part's statistics; None: it has no metrics."""
    kind, is_numbered, _ = part.partition("-")
    return None if is_numbered and kind in _ALONE else _READERS.get(kind)
