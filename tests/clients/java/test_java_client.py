"""Pulsar's Java client, as a Java user writes it. One program runs a group of scenarios; each of them is a test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.support.maven import JavaProject, build
from tests.clients.support.program import ProgramRun, run_program
from tests.clients.support.report import ClientMatrix, Outcome
from tests.clients.support.secured import SecuredStack
from tests.clients.support.stack import ClientsStack

CLIENT = "Java client"
# The client's releases that are in wide use: the present one, and two lines that brokers of the same numbers had.
VERSIONS = ["4.2.4", *(pytest.param(version, marks=pytest.mark.full) for version in ("3.3.7", "3.0.7"))]
GROUPS = {
    "Delivery": (
        "produce_consume", "batching", "exclusive", "shared", "failover", "key_shared", "cumulative_ack",
        "batch_index_ack", "negative_ack", "ack_timeout", "dead_letters", "retry_topics", "delayed",
    ),
    "Batches": ("divided_batches", "refused_alone", "buried_alone", "keys_together"),
    "Topics": (
        "partition_growth", "regex", "compaction", "table_view", "chunking", "codec_lz4", "codec_zlib", "codec_zstd",
        "codec_snappy", "reader", "seek_id", "seek_time", "partitions", "access_modes", "deduplication",
    ),
    "Frameworks": (
        "batch_receive", "listener", "backoff", "key_ranges", "subscription_properties", "several_topics",
        "end_of_topic", "no_receiver_queue", "non_persistent", "encryption",
    ),
    "Schemas": (
        "schema_bytes", "schema_string", "schema_primitives", "schema_json", "schema_avro", "schema_protobuf",
        "schema_key_value", "schema_auto", "schema_evolution", "schema_incompatible",
    ),
    "Security": ("token", "token_refused", "token_renewed", "rights", "tls", "tls_role", "identity"),
    "Failures": ("transactions", "redirect", "entry_metadata", "unload", "broker_death"),
}  # fmt: skip
# Of the client from 4 on: a broker does not divide batches for it, whatever it says of itself.
WHOLE = {
    "divided_batches": "gets whole batches: it takes the messages that a delivery leaves out for acknowledged",
    "keys_together": "of producers that batch by key: it gets whole batches",
}
UNLISTED = {"identity"}  # of the administration library, which docs/clients.md shows through pulsar-admin
GROUP_SECONDS_MAX = 480.0
CASES = [(group, scenario) for group, scenarios in GROUPS.items() for scenario in scenarios]


class JavaClient:
    """One version of the client. The first test of a group runs its program."""

    def __init__(self, version: str, project: JavaProject, stack: Callable[[str], ClientsStack]) -> None:
        self.version = version
        self._project = project
        self._stack = stack  # for a group
        self._runs: dict[str, ProgramRun] = {}

    def run(self, group: str) -> ProgramRun:
        """Return the run of a group's program."""
        if group not in self._runs:
            stack = self._stack(group)
            options = _properties(stack) if isinstance(stack, SecuredStack) else ()
            command = self._project.command(
                f"heliograph.clients.{group}", stack.service_url, stack.web_url, *GROUPS[group], options=options
            )
            self._runs[group] = run_program(group, command, seconds=GROUP_SECONDS_MAX, answer=stack.answer)
        return self._runs[group]


def _properties(stack: SecuredStack) -> tuple[str, ...]:
    return (
        f"-Dtls={stack.service_url_tls}",
        f"-DotherHostTls={stack.service_url_of_another_name}",
        f"-Dfolder={stack.folder}",
    )


@pytest.fixture(scope="module", params=VERSIONS)
def java(request: pytest.FixtureRequest) -> JavaClient:
    def stack(group: str) -> ClientsStack:
        found = request.getfixturevalue("secured" if group == "Security" else "stack")
        assert isinstance(found, ClientsStack)
        return found

    return JavaClient(request.param, build(Path(__file__).parent, pulsar_version=request.param), stack)


@pytest.mark.parametrize(("group", "scenario"), CASES, ids=[scenario for _, scenario in CASES])
def test_scenario(group: str, scenario: str, java: JavaClient, matrix: ClientMatrix) -> None:
    if scenario in UNLISTED:
        java.run(group).check(scenario)
    elif scenario in WHOLE and not java.version.startswith("3."):
        java.run(group).check(scenario)
        matrix.note(CLIENT, java.version, scenario, Outcome.PARTLY, WHOLE[scenario])
    else:
        matrix.check(java.run(group), scenario, CLIENT, java.version)


@pytest.mark.parametrize("group", GROUPS)
def test_program_ends(group: str, java: JavaClient) -> None:
    java.run(group).check_end()
