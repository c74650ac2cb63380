"""The demonstration from start to exit code: the cluster, the scenario's steps, the report."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ray.exceptions import RayError
from rich.markup import escape

from examples.flights.cluster import BOOKIES, BROKERS, DemoCluster, demo_cluster
from examples.flights.flights import PARTITIONS, TOPIC, Flights, load_flights
from examples.flights.report import MIB, PERCENTILES, Report, others_in, percentiles
from examples.flights.scenario import HTTP_ROWS, PUBLISHERS, SHARED_CONSUMERS, WEBSOCKET_ROWS, Scenario
from heliograph.base.errors import HeliographError

EXIT_CHECK_FAILED = 1
EXIT_NOT_RUN = 2
OTHERS_LOG = "demo.log"  # in the cluster's home: the output of Ray and Spark


def demonstrate(*, keep: bool) -> int:
    """Run the demonstration.

    Args:
        keep: leave the cluster running.

    Returns:
        The exit code: 0 only if every check held.
    """
    report = Report()
    begun = time.monotonic()
    try:
        flights = load_flights()
        report.step(f"Starting Ray, metadata, {BOOKIES} bookies, {BROKERS} brokers, an auditor and a gateway")
        with demo_cluster(report.note, keep=keep) as cluster:
            with others_in(cluster.home / OTHERS_LOG):
                scenario = run(cluster, flights, report)
            _conclude(scenario, cluster, report, begun)
            if keep:
                report.note(f"The cluster keeps running (KEEP=1). Stop it with: {cluster.stop_command}")
    except (HeliographError, RayError) as error:
        report.console.print("\n[bold red]The demonstration could not continue:[/bold red]", escape(str(error)))
        return EXIT_NOT_RUN
    failed = [check.name for check in scenario.outcome.checks if not check.held]
    if failed:
        report.console.print(f"\n[bold red]{len(failed)} checks failed:[/bold red] " + "; ".join(failed))
        return EXIT_CHECK_FAILED
    report.console.print(f"\n[bold green]All {len(scenario.outcome.checks)} checks held.[/bold green]")
    return 0


def run(cluster: DemoCluster, flights: Flights, report: Report) -> Scenario:
    """Run all steps.

    Raises:
        HeliographError: a step failed.
    """
    scenario = Scenario(cluster, flights, report)
    report.step(f"Creating topic '{TOPIC}' with {PARTITIONS} partitions, every message durable on two bookies")
    scenario.create_topic()
    scenario.measure_one_by_one()
    rest = len(flights) - HTTP_ROWS - WEBSOCKET_ROWS
    report.step(
        f"Publishing {len(flights):,} flights as JSON, keyed by tail number: {HTTP_ROWS:,} over HTTP, "
        f"{WEBSOCKET_ROWS:,} over a WebSocket, {rest:,} from {PUBLISHERS} Ray tasks"
    )
    report.note(
        f"At the same time {PARTITIONS} exclusive consumers (one per partition) and {SHARED_CONSUMERS} shared ones, "
        "all of them Ray tasks, receive and acknowledge the messages, and one bookie is killed with SIGKILL."
    )
    scenario.let_flow()
    report.step("Checking the messages that arrived")
    scenario.check_arrivals()
    report.note(f"{len(scenario.outcome.checks)} checks were made, the report lists them at its end")
    report.step("Opening the topic as a Spark DataFrame through RayDP; the executors read directly from the bookies")
    with report.waiting("starting Spark on Ray and reading the topic"):
        carriers = scenario.ask_spark()
    report.carriers(carriers)
    return scenario


def _conclude(scenario: Scenario, cluster: DemoCluster, report: Report, begun: float) -> None:
    outcome = scenario.outcome
    report.step("Measurements")
    report.throughput(list(outcome.published.items()))
    arrivals = [part for parts in outcome.arrivals.values() for part in parts]
    consumed = sum(len(part.rows) for part in arrivals)
    ages = [age for part in arrivals for age in part.latencies_ms]
    report.figures(
        [
            ("published and consumed twice in", f"{outcome.flow_seconds:.1f} s"),
            ("messages consumed", f"{consumed:,}, {consumed / outcome.flow_seconds:,.0f} per second"),
            ("age of messages when received", _percentiles(ages)),
            ("one durable publish at a time", _percentiles(outcome.one_by_one_ms)),
            ("bytes fsynced by bookie journals", f"{scenario.bytes_fsynced() / MIB:,.1f} MiB"),
            ("whole demonstration", f"{time.monotonic() - begun:.0f} s"),
        ]
    )
    report.addresses(cluster)
    report.checks(outcome.checks)


def _percentiles(values: Sequence[float]) -> str:
    return ", ".join(f"p{of} {value} ms" for of, value in zip(PERCENTILES, percentiles(values), strict=True))
