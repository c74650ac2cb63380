"""Prometheus' text format, as its own library reads it."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from heliograph.metrics.exposition import exposition, samples_in
from heliograph.metrics.metric import LATENCY_BOUNDS, Histogram, Metric, MetricKind, Sample, merged, read_from

STRANGE = 'a "topic" with \\ and\na new line'
GAUGE = Metric("heliograph_x_bytes", MetricKind.GAUGE, "bytes \\ of\nx", ("topic",))
COUNTER = Metric("heliograph_y_total", MetricKind.COUNTER, "ys")
LATENCY = Metric("heliograph_z_seconds", MetricKind.HISTOGRAM, "time of z", ("broker",))


def test_what_is_written_is_what_prometheus_reads() -> None:
    histogram = Histogram()
    for seconds in (0.0001, 0.0005, 0.0006, 0.2, 11):
        histogram.observe(seconds)
    series: dict[str, list[Sample]] = {
        GAUGE.name: [((STRANGE,), 7), (("other",), 0.5)],
        COUNTER.name: [((), True)],
        LATENCY.name: [(("b",), histogram.told())],
        "heliograph_of_a_newer_part": [((), 1)],
    }
    text = exposition((GAUGE, COUNTER, LATENCY), series)
    gauge, counter, latency = text_string_to_metric_families(text)
    assert (gauge.name, gauge.type, gauge.documentation) == (GAUGE.name, "gauge", GAUGE.meaning)
    assert [(s.labels, s.value) for s in gauge.samples] == [({"topic": STRANGE}, 7), ({"topic": "other"}, 0.5)]
    assert [(s.name, s.value) for s in counter.samples] == [(COUNTER.name, 1)]
    buckets = {s.labels["le"]: s.value for s in latency.samples if s.name.endswith("_bucket")}
    assert len(buckets) == len(LATENCY_BOUNDS) + 1
    assert (buckets["0.0005"], buckets["0.001"], buckets["0.25"], buckets["10.0"], buckets["+Inf"]) == (2, 3, 4, 4, 5)
    rest = {s.name: s.value for s in latency.samples if not s.name.endswith("_bucket")}
    assert rest == {"heliograph_z_seconds_sum": 11.2012, "heliograph_z_seconds_count": 5}


@pytest.mark.parametrize(
    "separator", ["\n", "\r", "\r\n", "\v", "\f", "\x1c", "\x85", "\u2028", "\u2029", '"', "\\", "\\n", '"} 1\n']
)
def test_a_name_of_a_stranger_makes_no_samples_of_its_own(separator: str) -> None:
    hostile = f"a{separator}{GAUGE.name} 99"
    text = exposition((GAUGE,), {GAUGE.name: [((hostile,), 7)]})
    (gauge,) = text_string_to_metric_families(text)
    assert [(sample.labels, sample.value) for sample in gauge.samples] == [({"topic": hostile}, 7)]
    assert list(samples_in(text)) == [(GAUGE.name, {"topic": hostile}, 7)]


def test_values_of_another_shape_are_left_out_alone() -> None:
    whole = Histogram().told()
    odd = ({**whole, "counts": whole["counts"][1:]}, {**whole, "counts": None}, {"counts": whole["counts"]}, None)
    latencies: list[Sample] = [((f"odd-{at}",), value) for at, value in enumerate(odd)]
    series: dict[str, Any] = {
        LATENCY.name: [*latencies, (("b",), whole)],
        GAUGE.name: [(("none",), None), (("text",), "1"), ((5,), 1), (("t",), 2)],
    }
    gauge, latency = text_string_to_metric_families(exposition((GAUGE, LATENCY), series))
    assert [sample.labels for sample in gauge.samples] == [{"topic": "t"}]
    assert {sample.labels["broker"] for sample in latency.samples} == {"b"}


def test_samples_of_another_release_with_other_labels_are_left_out() -> None:
    assert exposition((GAUGE,), {GAUGE.name: [(("a", "b"), 1)]}) == ""


def test_statistics_of_an_older_part_may_lack_some() -> None:
    times = Metric("heliograph_t_seconds", MetricKind.GAUGE, "when", ("part",), "t_ms")
    known = Metric("heliograph_k", MetricKind.GAUGE, "k", ("part",), "k")
    assert read_from((times, known), {"t_ms": 1_500}, "p") == {times.name: [(("p",), 1.5)]}


def test_histograms_of_journals_are_added_up() -> None:
    one, other = Histogram(), Histogram()
    one.observe(0.0001)
    other.observe(20)
    told = merged((one, other))
    assert (told["counts"][0], told["counts"][-1], told["sum"]) == (1, 1, 20.0001)
