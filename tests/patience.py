"""The product's waits made long, for tests on a machine that may be busy: how slow it is must decide nothing.

A test of one of these limits sets it itself, to something short.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LONG_SECONDS = 60
START_SECONDS = 300  # for Ray, and for each part of a cluster
CLOSE_SECONDS = 15  # for a server to hear that a session ends; a test may have stopped it

LIMITS: dict[str, float] = {
    "actors.broker.leader.ASK_SECONDS_MAX": LONG_SECONDS,
    "actors.wire.client.CONNECT_TIMEOUT_MS": LONG_SECONDS * 1_000,
    "heliograph.cluster.launch.START_TIMEOUT_SECONDS": START_SECONDS,
    "heliograph.cluster.diagnosis.STATE_API_TIMEOUT_SECONDS": LONG_SECONDS,
    "heliograph.cluster.removal.STOP_TIMEOUT_SECONDS": LONG_SECONDS,
    "heliograph.cluster.status.ANSWER_TIMEOUT_SECONDS": LONG_SECONDS,
    "heliograph.discovery.CALL_TIMEOUT_SECONDS": LONG_SECONDS,
    "heliograph.discovery.PROBE_TIMEOUT_SECONDS": LONG_SECONDS,
    "metadata.embedded.link.CALL_WAIT_MS_MAX": LONG_SECONDS * 1_000,
    "metadata.embedded.link.CLOSE_MS_MAX": CLOSE_SECONDS * 1_000,
    "metadata.etcd.feed.CALL_WAIT_SECONDS_MAX": LONG_SECONDS,
    "metadata.etcd.session.CALL_WAIT_SECONDS_MAX": LONG_SECONDS,
    "metadata.etcd.session.CLOSE_SECONDS_MAX": CLOSE_SECONDS,
    "metadata.zookeeper.bridge.CLOSE_MS_MAX": CLOSE_SECONDS * 1_000,
    "metadata.zookeeper.session.CALL_WAIT_MS_MAX": LONG_SECONDS * 1_000,
}


@contextmanager
def patience() -> Iterator[None]:
    """Be patient for the length of the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in LIMITS.items():
            patch.setattr(name, value)
        yield
