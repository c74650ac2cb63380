"""Pulsar's Go client and administration library, as a Go user uses them: each scenario of one program is a test."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from tests.clients.support.features import ADMINISTRATION, NAMESPACE_POLICIES, PULSAR, TOPIC_POLICIES
from tests.clients.support.golang import build_module, required_version
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix, Outcome
from tests.clients.support.secured import SecuredStack
from tests.clients.support.stack import ClientsStack

FOLDER = Path(__file__).parent / "scenarios"
MODULE = "github.com/apache/pulsar-client-go"
PROGRAM_SECONDS_MAX = 480.0
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
# What the program does not try: the Java and Python clients do.
UNTRIED = {
    "key_ranges", "batch_receive", "listener", "no_receiver_queue", "several_topics", "subscription_properties",
    "backoff", "end_of_topic", "non_persistent", "encryption",
}  # fmt: skip
SCENARIOS = {
    "Go client": [name for name in PULSAR.features if name not in ABSENT | UNTRIED],
    "Go admin library": [
        name
        for table in (ADMINISTRATION, NAMESPACE_POLICIES, TOPIC_POLICIES)
        for name in table.features
        if name not in ABSENT
    ],
}
SECURITY = {"token", "token_refused", "token_renewed", "rights", "tls", "tls_role", "identity"}
PARTLY = {
    "token_refused": "nothing is let in, but the client takes the refusal for a lost connection until its time-out"
}
CASES = [(client, scenario) for client, scenarios in SCENARIOS.items() for scenario in scenarios]


@cache
def _run(stack: ClientsStack) -> ProgramRun:
    """Run all scenarios of a stack, in the first of its tests."""
    command = [str(build_module(FOLDER)), "-service", stack.service_url, "-web", stack.web_url]
    if isinstance(stack, SecuredStack):
        command += ["-folder", str(stack.folder), "-tls", stack.service_url_tls]
        command += ["-other-host", stack.service_url_of_another_name]
    return run_program("the Go program", command, seconds=PROGRAM_SECONDS_MAX, answer=stack.answer)


@pytest.mark.timeout(1_200)
@pytest.mark.parametrize(("client", "scenario"), CASES, ids=[scenario for _, scenario in CASES])
def test_scenario(client: str, scenario: str, request: pytest.FixtureRequest, matrix: ClientMatrix) -> None:
    stack = request.getfixturevalue("secured" if scenario in SECURITY else "stack")
    version = required_version(FOLDER, MODULE)
    if scenario in PARTLY:
        _run(stack).check(scenario)
        matrix.note(client, version, scenario, Outcome.PARTLY, PARTLY[scenario])
    else:
        matrix.check(_run(stack), scenario, client, version)


def test_programs_end(stack: ClientsStack, secured: SecuredStack) -> None:
    runs = [_run(stack), _run(secured)]
    for run in runs:
        run.check_end()
    # Two scenarios are the policies together, each of which is a test.
    alone = {name for run in runs for name in run.results} - {"namespace_policies", "topic_policies"}
    assert alone == {scenario for _, scenario in CASES}, "each scenario is a test"
