"""The memory of this process, and the budget of the parts that it hosts (I15).

The budget of a part is the sum of its named bounds: what each of its queues, caches and windows may hold under any
load. A process above its budget raises an alarm: one log line, a sentence for ``helio status``, and metrics.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import NamedTuple

from heliograph.base.system.processes import own_bytes

PROCESS_BYTES = 192 << 20  # Python, our modules and Ray's driver: 74 to 113 MB, and what their threads allocate
ALLOCATOR_SHARE = 0.25  # of what was in use, which the allocator may keep for later
CALM_SHARE = 0.9  # of the budget, below which an alarm ends
OTHERS_BYTES = 256 << 20  # metadata store, auditor and operator, in a process that parts share

log = logging.getLogger(__name__)

_bounds: dict[str, Mapping[str, int]] = {}  # of the parts in this process, each by what holds the bytes
_is_above = False  # whether the alarm was raised


class ProcessMemory(NamedTuple):
    """The memory that this process uses and may use, in bytes."""

    used: int
    budget: int


def budget_of(bounds: Mapping[str, int]) -> int:
    """Return the budget of one part without its process, in bytes.

    Args:
        bounds: bytes at most, by what holds them.
    """
    assert all(size >= 0 for size in bounds.values()), "a bound is a number of bytes"
    return int(sum(bounds.values()) * (1 + ALLOCATOR_SHARE))


def host(part: str, bounds: Mapping[str, int]) -> None:
    """Note that this process hosts a part, with the bounds that hold from now on."""
    _bounds[part] = bounds


def leave(part: str) -> None:
    """Note that a part was stopped. Idempotent."""
    _bounds.pop(part, None)


def budget() -> int:
    others = OTHERS_BYTES if len(_bounds) > 1 else 0
    return PROCESS_BYTES + others + sum(map(budget_of, _bounds.values()))


def memory() -> ProcessMemory:
    """Return the memory of this process and its budget, and raise or end the alarm."""
    global _is_above
    found = ProcessMemory(used_bytes(), budget())
    if found.used > found.budget and not _is_above:
        _is_above = True
        log.warning("%s: it hosts %s", _sentence(found), ", ".join(sorted(_bounds)) or "no part")
    elif found.used < CALM_SHARE * found.budget:
        _is_above = False
    return found


def alarm() -> str:
    """Return the problem with the memory of this process; empty if there is none."""
    found = memory()
    return _sentence(found) if _is_above else ""


def used_bytes() -> int:
    """Return the bytes that this process alone uses."""
    return own_bytes()


def _sentence(found: ProcessMemory) -> str:
    return f"its process uses {found.used >> 20} MiB of memory, more than its budget of {found.budget >> 20} MiB"
