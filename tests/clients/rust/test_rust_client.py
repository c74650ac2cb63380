"""Pulsar's Rust client, which knows entries only: what it does with batches that are divided or partly acknowledged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import heliograph
from tests.clients.support.program import run_program
from tests.clients.support.report import ClientMatrix, Outcome
from tests.clients.support.rust import build_crate
from tests.clients.support.stack import ClientsStack

CLIENT, FOLDER = "Rust client", Path(__file__).parent
PARTLY = "rust-partly"
RUN_SECONDS_MAX = 240.0
MISSING = {
    "divided_batches": "gets whole batches, since it does not say that it takes parts, and acknowledges only those",
    "batch_index_ack": "an acknowledgement of a message is one of its batch, and what others acknowledged comes, too",
}


@pytest.mark.full  # its crates take minutes to compile
@pytest.mark.timeout(2_400)
def test_rust_client(stack: ClientsStack, matrix: ClientMatrix) -> None:
    program = build_crate(FOLDER)
    locked = re.search(r'name = "pulsar"\nversion = "(.+)"', (FOLDER / "Cargo.lock").read_text())
    assert locked is not None, "Cargo.lock names the client's version"
    with heliograph.connect(stack.service_url) as client:
        with client.consumer(PARTLY, "s", type="shared", initial_position="earliest") as consumer:
            with client.producer(PARTLY) as producer:
                producer.send_many([f"m{number}" for number in range(60)])
            consumer.ack_many(consumer.receive_many(30, 60))
        run = run_program(
            "the Rust program",
            [str(program), stack.service_url.split(",")[0], PARTLY.removeprefix("rust-")],
            seconds=RUN_SECONDS_MAX,
        )
        run.check_end()
        for scenario in ("produce_consume", "batching"):
            matrix.check(run, scenario, CLIENT, locked[1])
        for scenario, detail in MISSING.items():
            run.check(scenario)
            matrix.note(CLIENT, locked[1], scenario, Outcome.MISSING, detail)
        stats = client.admin.topic_stats(PARTLY)["subscriptions"]["s"]
        assert stats["backlogMessages"] == 0, "it acknowledged all of them"
