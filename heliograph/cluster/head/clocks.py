"""How often the processes of a Ray that ``helio up`` starts look around while nothing happens. Pure.

Most of what a cluster at rest takes of a processor is Ray's polling. The periods here are longer than Ray's own where
nothing that a user waits for depends on them. Those by which Ray notices that a node, a process or an actor has ended
are left as they are. A variable of the environment of ``helio up`` goes before the one here, and a release of Ray that
does not know one ignores it.
"""

from __future__ import annotations

from collections.abc import Mapping

# docs/operations/capacity.md has what each of them delays.
EVERY_NODE: Mapping[str, str] = {
    "RAY_raylet_check_gc_period_milliseconds": "1000",  # Ray's: 100
    "RAY_kill_idle_workers_interval_ms": "1000",  # 200
    "RAY_local_fs_monitor_interval_ms": "1000",  # 100
    "RAY_memory_monitor_refresh_ms": "1000",  # 250
    "REPORTER_UPDATE_INTERVAL_MS": "10000",  # 5000
    "METRICS_RECORD_INTERVAL_S": "30",  # 5; each reads the memory maps of all processes of the dashboard
}
# Intervals that other nodes wait for; an only node decides by itself.
ONLY_NODE: Mapping[str, str] = {
    "RAY_raylet_report_resources_period_milliseconds": "1000",  # 100
    "RAY_object_manager_timer_freq_ms": "1000",  # 100
    "RAY_gcs_pull_resource_loads_period_milliseconds": "5000",  # 1000; for the autoscaler, which looks as often
}
LEAN: Mapping[str, str] = {
    "RAY_gcs_pull_resource_loads_period_milliseconds": "10000",  # for the autoscaler, which a lean head lacks
    "RAY_event_stats": "0",  # 1; times of handlers in Ray's debug dumps
}


def resting_clocks(*, is_only_node: bool, is_lean: bool) -> dict[str, str]:
    """Return the variables of the environment that give Ray longer periods.

    Args:
        is_only_node: no other machine can join.
        is_lean: the head has neither a dashboard nor an autoscaler.
    """
    return {**EVERY_NODE, **(ONLY_NODE if is_only_node else {}), **(LEAN if is_lean else {})}
