"""The figures that `helio perf` prints."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.cli.messages.measure import (
    MESSAGES_MAX,
    PAYLOAD_BYTES_MIN,
    RUNS_MAX,
    Arrivals,
    Latencies,
    MeasuredRun,
    MessageStamp,
    make_payload,
    read_payload,
)


@given(st.lists(st.floats(min_value=0.001, max_value=60_000), min_size=1, max_size=300), st.floats(0, 1))
def test_a_percentile_is_within_one_percent_of_the_exact_one(times: list[float], share: float) -> None:
    latencies = Latencies()
    for time in times:
        latencies.add(time)
    ordered = sorted(times)
    exact = ordered[max(1, -(-int(share * len(times) * 1e9) // int(1e9))) - 1]
    neighbours = [
        ordered[max(0, ordered.index(exact) - 1)],
        exact,
        ordered[min(len(times) - 1, ordered.index(exact) + 1)],
    ]
    found = latencies.percentile(share)
    assert min(neighbours) * 0.99 <= found <= max(neighbours) * 1.01


def test_times_out_of_range_count_at_the_edges() -> None:
    latencies = Latencies()
    for time in (0.0, -1.0, 1e12):
        latencies.add(time)
    assert latencies.count == 3
    assert latencies.percentile(0) < 0.002
    assert latencies.longest_ms == 1e12


def test_nothing_measured_reports_zero() -> None:
    report = MeasuredRun().report()
    assert report["p50_ms"] == report["p99_ms"] == report["max_ms"] == 0
    assert report["msgs_per_s"] == 0
    assert report["last_error"] is None


def test_a_report_has_the_promised_names() -> None:
    run = MeasuredRun(messages=1000, bytes=1_024_000, seconds=2.0, errors=1)
    for _ in range(1000):
        run.latencies.add(random.uniform(1, 2))
    report = run.report()
    assert report["msgs_per_s"] == 500
    assert report["mb_per_s"] == 0.512
    assert 0.9 < report["p50_ms"] <= report["p99_ms"] <= report["max_ms"]
    assert report["errors"] == 1


@given(st.integers(0, 2**63), st.integers(0, 2**63), st.integers(0, 2**63), st.binary(max_size=50))
def test_payloads_carry_their_run_index_and_time(run: int, index: int, sent_ns: int, filler: bytes) -> None:
    payload = make_payload(MessageStamp(run, index, sent_ns), filler)
    assert len(payload) == PAYLOAD_BYTES_MIN + len(filler)
    assert read_payload(payload) == MessageStamp(run, index, sent_ns)


@pytest.mark.parametrize("payload", [b"", b"helioprf", b"x" * 100])
def test_other_payloads_are_told_apart(payload: bytes) -> None:
    assert read_payload(payload) is None


def test_arrivals_count_repetitions_gaps_and_foreign_messages_of_each_run() -> None:
    arrivals = Arrivals()
    for run, index in ((1, 0), (1, 1), (1, 1), (1, 4), (2, 0), (2, MESSAGES_MAX)):
        arrivals.take(MessageStamp(run, index, 0))
    arrivals.take(None)
    assert (arrivals.distinct, arrivals.duplicates, arrivals.foreign, arrivals.missing) == (4, 1, 2, 2)


def test_arrivals_bound_the_runs_that_they_tell_apart() -> None:
    arrivals = Arrivals()
    for run in range(RUNS_MAX + 2):
        arrivals.take(MessageStamp(run, 0, 0))
    assert (arrivals.distinct, arrivals.foreign) == (RUNS_MAX, 2)
