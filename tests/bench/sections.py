"""The sections of a run, in their order.

The module of a section is imported when the section runs, so that one which needs what an older revision does not have
leaves the others of that revision measurable.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from tests.bench.bench import Bench

SECTIONS: Mapping[str, str] = {
    "disk": "tests.bench.bookie.disk",
    "peer": "tests.bench.peers.peer",
    "writer": "tests.bench.broker.writer_core",
    "cursor": "tests.bench.broker.cursor_core",
    "chain": "tests.bench.broker.chain_core",
    "bookie": "tests.bench.bookie.bookie",
    "reads": "tests.bench.bookie.reads",
    "metadata": "tests.bench.metadata.store",
    "publish": "tests.bench.broker.publish",
    "auth": "tests.bench.broker.auth",
    "consume": "tests.bench.broker.consume",
    "cold": "tests.bench.cold",
    "subscriptions": "tests.bench.broker.subscriptions",
    "topics": "tests.bench.broker.many_topics",
    "metrics": "tests.bench.metrics_cost",
    "failover": "tests.bench.broker.failover",
    "repair": "tests.bench.broker.repair",
    "tables": "tests.bench.tables.tables",
    "streaming": "tests.bench.tables.streaming",
    "minutes": "tests.bench.minutes.minutes",
    "rest": "tests.bench.rest.rest",
    "brokers": "tests.bench.broker_processes",
    "queue": "tests.bench.peers.queues",
    "foreign": "tools.laboratory.foreign.foreign",
    "tasks": "tools.laboratory.beside.tasks",
    "processors": "tools.laboratory.beside.processors",
}

BY_NAME_ONLY = (
    "queue",
    "foreign",
    "tasks",
    "processors",
)  # beside peers: a Ray of its own, and other servers (`make bench-peers`)
USUAL = tuple(name for name in SECTIONS if name not in BY_NAME_ONLY)


def measure(bench: Bench, name: str) -> None:
    """Measure the rows of a section."""
    import_module(SECTIONS[name]).report(bench)
