"""The sections of a run, in their order.

The module of a section is imported when the section runs, so that one which needs what an older revision does not have
leaves the others of that revision measurable.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module

from tests.bench.bench import Bench

SECTIONS: Mapping[str, str] = {
    "disk": "bookie.disk",
    "peer": "peers.peer",
    "writer": "broker.writer_core",
    "cursor": "broker.cursor_core",
    "chain": "broker.chain_core",
    "bookie": "bookie.bookie",
    "metadata": "metadata.store",
    "publish": "broker.publish",
    "auth": "broker.auth",
    "consume": "broker.consume",
    "subscriptions": "broker.subscriptions",
    "topics": "broker.many_topics",
    "failover": "broker.failover",
    "repair": "broker.repair",
    "tables": "tables.tables",
    "streaming": "tables.streaming",
    "minutes": "minutes.minutes",
    "rest": "rest.rest",
    "foreign": "foreign.foreign",
}

BY_NAME_ONLY = ("foreign",)  # they need servers that are not ours: `make bench-peers`
USUAL = tuple(name for name in SECTIONS if name not in BY_NAME_ONLY)


def measure(bench: Bench, name: str) -> None:
    """Measure the rows of a section."""
    import_module(f"tests.bench.{SECTIONS[name]}").report(bench)
