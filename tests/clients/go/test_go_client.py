"""Pulsar's Go client and administration library, as a Go user uses them: each scenario of one program is a test."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.clients.support.features import ADMINISTRATION, NAMESPACE_POLICIES, PULSAR, TOPIC_POLICIES
from tests.clients.support.golang import build_module, required_version
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix
from tests.clients.support.stack import ClientsStack

FOLDER = Path(__file__).parent / "scenarios"
MODULE = "github.com/apache/pulsar-client-go"
PROGRAM_SECONDS_MAX = 240.0
# What the Go libraries do not have.
ABSENT = {
    "ack_timeout", "schema_key_value", "schema_auto",
    "bookies", "perf_produce", "perf_consume", "perf_read",
    *(f"namespace:{name}" for name in (
        "max_unacked_messages_per_consumer", "max_unacked_messages_per_subscription", "max_subscriptions_per_topic",
        "delayed_delivery", "subscription_types_enabled", "auto_subscription_creation",
    )),
    "topic:subscription_types_enabled",
}  # fmt: skip
SCENARIOS = {
    "Go client": [name for name in PULSAR.features if name not in ABSENT],
    "Go admin library": [
        name
        for table in (ADMINISTRATION, NAMESPACE_POLICIES, TOPIC_POLICIES)
        for name in table.features
        if name not in ABSENT
    ],
}
CASES = [(client, scenario) for client, scenarios in SCENARIOS.items() for scenario in scenarios]


@cache
def _run(stack: ClientsStack) -> ProgramRun:
    """Run all scenarios, in the first of the tests."""
    command = [str(build_module(FOLDER)), "-service", stack.service_url, "-web", stack.web_url]
    return run_program("the Go program", command, seconds=PROGRAM_SECONDS_MAX, answer=stack.answer)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("client", "scenario"), CASES, ids=[scenario for _, scenario in CASES])
def test_scenario(client: str, scenario: str, stack: ClientsStack, matrix: ClientMatrix) -> None:
    matrix.check(_run(stack), scenario, client, required_version(FOLDER, MODULE))


def test_program_ends(stack: ClientsStack) -> None:
    run = _run(stack)
    run.check_end()
    # Two scenarios are the policies together, each of which is a test.
    alone = run.results.keys() - {"namespace_policies", "topic_policies"}
    assert alone == {scenario for _, scenario in CASES}, "each scenario is a test"
