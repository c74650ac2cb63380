"""The commands of pulsar-perf for a few seconds: each ends by itself, and every message is there."""

from __future__ import annotations

import uuid

import pytest

from tests.clients.admin.conftest import VERSION
from tests.clients.support.maven import JavaProject
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix
from tests.clients.support.stack import ClientsStack

TOOL = "pulsar-perf"
MAIN = "heliograph.clients.PerfCommand"
PERF_SECONDS_MAX = 120.0
MESSAGES = 1_000


@pytest.fixture(scope="module")
def topic() -> str:
    return f"persistent://public/default/perf-{uuid.uuid4().hex[:8]}"


def perf(tools: JavaProject, command: str, *options: str) -> ProgramRun:
    program = tools.command(MAIN, command, *options)
    return run_program(f"pulsar-perf {command}", program, seconds=PERF_SECONDS_MAX)


def test_produce(tools: JavaProject, stack: ClientsStack, topic: str, matrix: ClientMatrix) -> None:
    stack.cluster.run(stack.cluster.admin.create_topic(topic))
    stack.cluster.run(stack.cluster.admin.create_subscription(topic, "sub"))
    run = perf(tools, "produce", "-u", stack.service_url, "-r", "1000", "-s", "100", "-m", str(MESSAGES), topic)
    run.check_end()
    assert stack.cluster.run(stack.cluster.admin.topic_stats(topic))["msgInCounter"] >= MESSAGES, run.log
    matrix.note(TOOL, VERSION, "perf_produce")


def test_consume(tools: JavaProject, stack: ClientsStack, topic: str, matrix: ClientMatrix) -> None:
    run = perf(
        tools,
        "consume",
        "-u",
        stack.service_url,
        "-ss",
        "sub",
        "-sp",
        "Earliest",
        "-m",
        str(MESSAGES),
        topic,
    )
    run.check_end()
    matrix.note(TOOL, VERSION, "perf_consume")


def test_read(tools: JavaProject, stack: ClientsStack, topic: str, matrix: ClientMatrix) -> None:
    run = perf(tools, "read", "-u", stack.service_url, "-n", str(MESSAGES), topic)
    run.check_end()
    matrix.note(TOOL, VERSION, "perf_read")
