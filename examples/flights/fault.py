"""The fault: SIGKILL to one bookie process while data flows."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from heliograph.client import discovery


@dataclass(frozen=True, slots=True)
class Killed:
    """A bookie process that was killed."""

    name: str
    pid: int
    statistics: dict[str, Any]  # the bookie's counters shortly before


def busiest_bookie(ensembles: list[list[list[str]]]) -> str:
    """Return the bookie that most ledgers write to now.

    Args:
        ensembles: for each ledger, the bookies of each segment, in order.
    """
    counts = Counter(bookie for segments in ensembles for bookie in segments[-1])
    return max(sorted(counts), key=counts.__getitem__)


def kill_bookie(name: str, namespace: str) -> Killed:
    """Send SIGKILL to the process of a bookie's actor, on any node. Ray starts it again.

    Raises:
        ClusterNotFoundError: there is no such actor.
    """
    actor = discovery.actor(name, namespace)
    statistics = ray.get(actor.statistics.remote())
    pid = ray.get(actor.pid.remote())
    node = ray.get(actor.__ray_call__.remote(_node_of))
    if node == ray.get_runtime_context().get_node_id():
        os.kill(pid, signal.SIGKILL)
    else:
        there = NodeAffinitySchedulingStrategy(node, soft=False)
        ray.get(ray.remote(num_cpus=0)(os.kill).options(scheduling_strategy=there).remote(pid, signal.SIGKILL))
    return Killed(name, pid, statistics)


def _node_of(_: Any) -> str:
    return str(ray.get_runtime_context().get_node_id())
