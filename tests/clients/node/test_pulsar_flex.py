"""A client that is not of the C++ family: npm's pulsar-flex, which waits for every acknowledgement."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.support.npm import install_package
from tests.clients.support.program import run_program
from tests.clients.support.report import ClientMatrix, Outcome
from tests.clients.support.stack import ClientsStack, running_stack
from tests.clients.support.tools import need

CLIENT, PACKAGE, VERSION = "JavaScript, pulsar-flex", "pulsar-flex", "1.1.1"
RUN_SECONDS_MAX = 120.0
SCRIPT = Path(__file__).with_name("pulsar_flex.js")
SHOWN = (
    "produce_consume", "batching", "exclusive", "failover", "shared", "key_shared", "cumulative_ack", "negative_ack",
)  # fmt: skip
SURVIVED = {"unload": "unload", "broker_death": "crash_owner"}
NO_REDIRECTS = (
    "the client goes where its first lookup points and never asks that broker in turn: use it with one broker"
)
WHOLE = "gets whole batches, since it does not say that it takes parts, and acknowledges only those"


@pytest.mark.timeout(400)
def test_pulsar_flex_publishes_consumes_and_acknowledges(tmp_path: Path, matrix: ClientMatrix) -> None:
    modules = install_package(PACKAGE, VERSION)
    # Of several brokers it asks one and stays with it, even if another one serves the topic.
    with running_stack(tmp_path, brokers=1) as stack:
        server = stack.service_url.removeprefix("pulsar://")
        run = run_program(
            PACKAGE,
            [need("node"), str(SCRIPT), server],
            seconds=RUN_SECONDS_MAX,
            environment={"NODE_PATH": str(modules)},
        )
        run.check_end()
        found = json.loads(run.lines[-1])
        check(stack, found)
    for feature in SHOWN:
        matrix.note(CLIENT, VERSION, feature)
    matrix.note(CLIENT, VERSION, "divided_batches", Outcome.MISSING, WHOLE)


@pytest.mark.full  # the client waits for 5 s before it connects again
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("feature", "asked"), SURVIVED.items(), ids=list(SURVIVED))
def test_pulsar_flex_goes_on(feature: str, asked: str, tmp_path: Path, matrix: ClientMatrix) -> None:
    modules = install_package(PACKAGE, VERSION)
    with running_stack(tmp_path, brokers=1) as stack:
        run = run_program(
            PACKAGE,
            [need("node"), str(SCRIPT), stack.service_url.removeprefix("pulsar://"), asked],
            seconds=RUN_SECONDS_MAX,
            environment={"NODE_PATH": str(modules)},
            answer=stack.answer,
        )
    matrix.check(run, asked, CLIENT, VERSION, feature)
    matrix.note(CLIENT, VERSION, "redirect", Outcome.MISSING, NO_REDIRECTS)


def check(stack: ClientsStack, found: dict[str, Any]) -> None:
    """Compare what the program received by the type of its subscription: text, property and redelivery count."""
    whole = [[f"m{n}", str(n), 0] for n in range(33)]
    assert found["exclusive"] == whole
    assert found["failover"] == whole
    assert sorted(found["keyshared"]) == sorted(whole)
    again = [["m7", "7", 1]]
    assert sorted(found["shared"]) == sorted([one for one in whole if one[0] != "m7"] + again)
    assert found.pop("shares") == [0, 20], "an entry is not divided for it"
    for name in found:
        assert backlog(stack, f"flex-{name}") == 0, "an acknowledgement was answered when it was durable"


def backlog(stack: ClientsStack, topic: str) -> int:
    stats = stack.cluster.run(stack.cluster.admin.topic_stats(topic))
    found: int = stats["subscriptions"]["sub"]["msgBacklog"]
    return found
