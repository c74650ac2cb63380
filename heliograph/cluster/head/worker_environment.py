"""The environment variables of the workers that run parts."""

from __future__ import annotations

import os

from heliograph.base.guard.watchdog import STUCK_SECONDS_VARIABLE
from heliograph.base.home import ClusterHome
from heliograph.base.peer import is_loopback
from heliograph.cluster.config import ClusterConfig

REPAIR_NICENESS = "10"  # of the processes of auditor and replication workers, for the machine's scheduler
_REPAIRING = ("auditor", "replicator")


def worker_environment(kind: str, config: ClusterConfig) -> dict[str, str]:
    """Return the variables that the worker of a part needs besides those of all workers of its node.

    Where Ray is given any, it starts the worker by way of another Python, after an agent that has to have started. On
    the only node, in a Ray that ``helio up`` started, all workers have what most parts need.

    Args:
        kind: of the part; empty: several in one process.
    """
    is_all_there = is_loopback(config.host) and not os.environ.get(STUCK_SECONDS_VARIABLE) and _is_own_ray(config)
    if is_all_there and kind not in _REPAIRING:
        return {}
    # With Ray's default of 15, other programs starve a broker; audits and repair are to leave processor time to it.
    environment = {"RAY_worker_niceness": REPAIR_NICENESS if kind in _REPAIRING else "0"}
    for name in ("RAY_AUTH_MODE", STUCK_SECONDS_VARIABLE):
        if value := os.environ.get(name):
            environment[name] = value
    return environment


def _is_own_ray(config: ClusterConfig) -> bool:
    state = ClusterHome(config.home_directory).load()
    return state is not None and bool(state.ray_pid)
