"""What a call costs: processor time of its thread, and memory at its peak. Other processes do not count."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable, Iterator

from heliograph.base.errors import HeliographError
from heliograph.gateway.websocket.frames import RefusedFrame

SECONDS_MAX = 0.05
YARDSTICKS_MAX = 5  # that a call which takes longer may take; a yardstick is near 50 ms on an idle machine
ATTEMPTS_MAX = 5  # of a measurement: what other processes add to one of them, they do not add to all
BYTES_MAX = 64 << 20


def check_cost(name: str, call: Callable[[], object]) -> None:
    """Assert that a call, which may fail, is within the limits of processor time and memory."""
    call_once(call)  # imports and caches
    costs = Costs()
    for _ in costs.attempts():
        with costs.measured():
            call_once(call)
    costs.check(name)
    tracemalloc.start()
    try:
        call_once(call)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BYTES_MAX, f"{name} takes {peak >> 20} MiB"


def yardstick() -> float:
    """Return the processor seconds that a fixed piece of work takes now: how slow this machine is decides nothing."""
    began = time.thread_time()
    for _ in range(4):
        found = {f"k{number}": (number, [number]) for number in range(20_000)}
        assert sum(number for number, _ in found.values()) > 0
    return time.thread_time() - began


class Costs:
    """Measurements of a piece of work, each in yardsticks taken at the same time; 0 if it is within SECONDS_MAX."""

    def __init__(self) -> None:
        self._found: list[float] = []

    def attempts(self) -> Iterator[None]:
        """Yield until a measurement is within the limit, ATTEMPTS_MAX times at most."""
        for _ in range(ATTEMPTS_MAX):
            yield
            if self._found[-1] < YARDSTICKS_MAX:
                return

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        began = time.thread_time()
        yield
        seconds = time.thread_time() - began
        self._found.append(0 if seconds < SECONDS_MAX else seconds / yardstick())

    def check(self, name: str) -> None:
        assert min(self._found) < YARDSTICKS_MAX, f"{name} takes {min(self._found):.1f} yardsticks of processor time"


def call_once(call: Callable[[], object]) -> None:
    """Make a call, and take an error with a name as its end."""
    with contextlib.suppress(HeliographError, RefusedFrame):
        call()
