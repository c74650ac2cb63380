"""The metrics of a part of this process, as its door gives them, and the part's door itself."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from functools import partial
from typing import Any

from heliograph.base.errors import HeliographError
from heliograph.base.guard.watchdog import running_loop_watch
from heliograph.base.peer import ListenAddress
from heliograph.base.version import heliograph_version
from heliograph.client.discovery import METADATA
from heliograph.cluster.naming import kind_of
from heliograph.cluster.watch.config import WatchConfig
from heliograph.cluster.watch.door import MetricsDoor, opened
from heliograph.metadata.connect import embedded_url
from heliograph.metadata.credentials import with_secrets
from heliograph.metrics.exposition import exposition
from heliograph.metrics.parts import Found, of_loop, of_topics, reader_of
from heliograph.metrics.pulsar import pulsar_lines, pulsar_text
from heliograph.metrics.table import METRICS


async def part_text(part: str, actor: Any, cluster: str, names: str = "") -> str:
    """Return the metrics of a part in Prometheus' text format.

    Args:
        cluster: its name, a label of Pulsar's metrics.
        actor: of the part; it has ``statistics``, and a broker ``asked``.
        names: ``pulsar`` for the names of Pulsar and BookKeeper, empty for ours.

    Raises:
        HeliographError: the part is not started.
    """
    reader = reader_of(part)
    assert reader is not None, "it has a door"
    found: Found = dict(reader(part, await actor.statistics()))
    if kind_of(part) == "broker":
        with contextlib.suppress(HeliographError):
            found |= of_topics(part, await actor.asked("metrics", {}))
    if names:
        return await asyncio.to_thread(lambda: pulsar_text([pulsar_lines(part, kind_of(part), cluster, found)]))
    found |= of_loop(part, running_loop_watch())
    found["heliograph_build_info"] = [((part, heliograph_version()), 1)]
    return await asyncio.to_thread(exposition, METRICS.values(), found)


async def open_door(part: str, actor: Any, config: WatchConfig, at: ListenAddress) -> MetricsDoor | None:
    """Open the door of a part that has metrics; return it, None if it has none or cannot be opened.

    Args:
        at: the address of this node's listeners.
    """
    if not config.port_of(part):
        return None
    if part == METADATA:  # at the first start of a cluster, nobody else knows where it serves
        url = embedded_url(await actor.address(), actor.access.tls)
        config = replace(config, metadata_url=with_secrets(url, actor.access.secret))
    return await opened(
        part, at.host, at.advertised_host or at.host, config, partial(part_text, part, actor, config.cluster)
    )
