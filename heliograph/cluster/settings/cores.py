"""How many bookies and brokers a machine gets when its user names no number: by its cores."""

from __future__ import annotations

from pathlib import Path

from heliograph.base.system.processes import usable_cpus

CORES_PER_PART = 8  # a broker and a bookie are one busy core each at most, and leave the others to what uses them
PARTS_MAX = 16  # of a kind on one machine, unless more are asked for
BROKERS_LEAST = 2  # one can fail
BOOKIES_LEAST = 3  # as many as there are copies

_CGROUP = Path("/sys/fs/cgroup/cpu.max")


def default_brokers(cores: int) -> int:
    return min(PARTS_MAX, max(BROKERS_LEAST, cores // CORES_PER_PART))


def default_bookies(cores: int) -> int:
    """Return the number of bookies for a machine of so many cores, where its disks do not say it."""
    return min(PARTS_MAX, max(BOOKIES_LEAST, cores // CORES_PER_PART))


def usable_cores(quota: Path = _CGROUP) -> int:
    """Return the cores that this process may use: those of its affinity, at most the quota of its container.

    Args:
        quota: file with microseconds and period, or ``max`` in place of the first.
    """
    cores = usable_cpus()
    try:
        allowed, period = quota.read_text().split()
        return cores if allowed == "max" else max(1, min(cores, int(allowed) // int(period)))
    except (OSError, ValueError):
        return cores
