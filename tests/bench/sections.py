"""The sections of a run, in their order."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.bench import (
    bookie,
    consume,
    cursor_core,
    disk,
    failover,
    many_topics,
    metadata_store,
    peer,
    publish,
    subscriptions,
    writer_core,
)
from tests.bench.bench import Bench

SECTIONS: Mapping[str, Callable[[Bench], None]] = {
    "disk": disk.report,
    "peer": peer.report,
    "writer": writer_core.report,
    "cursor": cursor_core.report,
    "bookie": bookie.report,
    "metadata": metadata_store.report,
    "publish": publish.report,
    "consume": consume.report,
    "subscriptions": subscriptions.report,
    "topics": many_topics.report,
    "failover": failover.report,
}
