"""The product's waits made long, for tests on a machine that may be busy: how slow it is must decide nothing.

A test of one of these limits sets it itself, to something short.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

LONG_SECONDS = 60
START_SECONDS = 300  # for Ray, and for each part of a cluster
CLOSE_SECONDS = 15  # for a server to hear that a session ends; a test may have stopped it

# By package: a limit is made long in each of its modules that has it, the one that sets it and those that import it.
LIMITS: dict[str, dict[str, float]] = {
    "heliograph.actors.broker.balance.leader": {"ASK_SECONDS_MAX": LONG_SECONDS},
    "heliograph.actors.wire": {"CONNECT_TIMEOUT_MS": LONG_SECONDS * 1_000},
    "heliograph.cluster": {
        "ANSWER_TIMEOUT_SECONDS": LONG_SECONDS,
        "ELECTED_SECONDS": LONG_SECONDS,
        "START_TIMEOUT_SECONDS": START_SECONDS,
        "STOP_TIMEOUT_SECONDS": LONG_SECONDS,
    },
    "heliograph.client.discovery": {"CALL_TIMEOUT_SECONDS": LONG_SECONDS, "PROBE_TIMEOUT_SECONDS": LONG_SECONDS},
    "heliograph.metadata": {"CALL_WAIT_SECONDS_MAX": LONG_SECONDS, "CLOSE_SECONDS_MAX": CLOSE_SECONDS},
}


@contextmanager
def patience() -> Iterator[None]:
    """Be patient for the length of the block."""
    with pytest.MonkeyPatch.context() as patch:
        for package, limits in LIMITS.items():
            within = [module for name, module in sys.modules.items() if f"{name}.".startswith(f"{package}.")]
            for name, value in limits.items():
                for module in within:
                    if name in vars(module):
                        patch.setattr(module, name, value)
        yield
