"""The sections of a run, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.bench.bench import Bench
from tests.bench.bookie import bookie, disk
from tests.bench.broker import (
    auth,
    consume,
    cursor_core,
    failover,
    many_topics,
    publish,
    repair,
    subscriptions,
    writer_core,
)
from tests.bench.foreign import foreign
from tests.bench.metadata import store as metadata_store
from tests.bench.minutes import minutes
from tests.bench.peers import peer
from tests.bench.rest import rest
from tests.bench.tables import streaming, tables

SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "disk": disk.report,
    "peer": peer.report,
    "writer": writer_core.report,
    "cursor": cursor_core.report,
    "bookie": bookie.report,
    "metadata": metadata_store.report,
    "publish": publish.report,
    "auth": auth.report,
    "consume": consume.report,
    "subscriptions": subscriptions.report,
    "topics": many_topics.report,
    "failover": failover.report,
    "repair": repair.report,
    "tables": tables.report,
    "streaming": streaming.report,
    "minutes": minutes.report,
    "rest": rest.report,
    "foreign": foreign.report,
}

BY_NAME_ONLY = ("foreign",)  # they need servers that are not ours: `make bench-peers`
USUAL = tuple(name for name in SECTIONS if name not in BY_NAME_ONLY)
