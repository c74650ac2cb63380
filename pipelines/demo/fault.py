"""The fault: SIGKILL to one bookie process while data flows."""

from __future__ import annotations

import os
import signal
from collections import Counter
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from heliograph import discovery


@dataclass(frozen=True, slots=True)
class Killed:
    """A process that is no more."""

    name: str
    pid: int
    statistics: dict[str, Any]  # what the bookie had counted shortly before


def busiest_bookie(ensembles: list[list[list[str]]]) -> str:
    """The bookie that most ledgers write to now.

    Args:
        ensembles: of each ledger, the bookies of each segment, in order.
    """
    counts = Counter(bookie for segments in ensembles for bookie in segments[-1])
    return max(sorted(counts), key=counts.__getitem__)


def kill_bookie(name: str, namespace: str) -> Killed:
    """SIGKILL the process behind a bookie's actor, on whichever node it runs. Ray will start it again.

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
