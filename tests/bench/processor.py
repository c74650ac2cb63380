"""The yardstick of the processor: fixed work in Python and in the libraries below it, on one core.

A run prints it beside the yardstick of the disk, so that another machine, or a busy one, does not read as a regression.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

STEPS = 20_000  # of a round in Python, about a millisecond
BLOCK = bytes(range(256)) * 4_096  # 1 MiB
ROUNDS = 5


@dataclass(frozen=True, slots=True)
class ProcessorYardstick:
    """What one core does.

    Attributes:
        steps_per_s: steps of a loop in Python, in a second of processor time; median of the rounds.
        checksum_mb_per_s: CRC-32 of a block of 1 MiB, in a second of processor time.
        share: of the time that passed, how much the processor gave to this process, which asked for all of it.
    """

    steps_per_s: float
    checksum_mb_per_s: float
    share: float

    def __str__(self) -> str:
        return (
            f"{self.steps_per_s / 1e6:.1f} million steps of Python and {self.checksum_mb_per_s:,.0f} MB of "
            f"CRC-32 a second and core; it gave {self.share:.0%} of the time that was asked for"
        )


def measure(seconds: float) -> ProcessorYardstick:
    """Measure this core for about that time.

    Args:
        seconds: of processor time.
    """
    begun, used = time.perf_counter(), time.process_time()
    each = seconds / 2 / ROUNDS
    steps = [_rate(_python, each) * STEPS for _ in range(ROUNDS)]
    checksums = [_rate(_checksum, each) * len(BLOCK) / 1e6 for _ in range(ROUNDS)]
    share = (time.process_time() - used) / (time.perf_counter() - begun)
    return ProcessorYardstick(median(steps), median(checksums), min(1.0, share))


def _rate(work: Callable[[], object], seconds: float) -> float:
    """Return how often the work was done in a second of processor time."""
    begun = now = time.process_time()
    rounds = 0
    while now - begun < seconds:
        work()
        rounds += 1
        now = time.process_time()
    return rounds / (now - begun)


def _python() -> int:
    """Do what brokers and bookies do most: look up, compare, append, add."""
    table: dict[int, int] = {}
    found: list[int] = []
    total = 0
    for number in range(STEPS):
        key = number & 1_023
        total += table.get(key, number)
        table[key] = total & 0xFFFF
        if not key:
            found.append(total)
    return len(found)


def _checksum() -> int:
    return zlib.crc32(BLOCK)
