"""What a call costs: processor time of its thread, and memory at its peak. Other processes do not count."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable, Iterator

from heliograph.base.errors import HeliographError
from heliograph.gateway.websocket.frames import RefusedFrame

SECONDS_MAX = 0.05
SLOWER = 5  # a shared machine with a cold cache, and without the optimisations of a build, may be so much slower
ATTEMPTS_MAX = 5  # of a measurement: what other processes add to one of them, they do not add to all
BYTES_MAX = 64 << 20


def check_cost(name: str, call: Callable[[], object]) -> None:
    """Assert that a call, which may fail, takes no more than SECONDS_MAX of processor time and BYTES_MAX of memory."""
    call_once(call)  # imports and caches
    found: list[float] = []
    for _ in attempts(found):
        began = time.thread_time()
        call_once(call)
        found.append(time.thread_time() - began)
    seconds = min(found)
    assert seconds < SECONDS_MAX * SLOWER, f"{name} takes {seconds:.3f} s of processor time"
    tracemalloc.start()
    try:
        call_once(call)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BYTES_MAX, f"{name} takes {peak >> 20} MiB"


def attempts(found: list[float]) -> Iterator[None]:
    """Yield until a measurement in seconds that the loop appends is within the limit, ATTEMPTS_MAX times at most."""
    for _ in range(ATTEMPTS_MAX):
        yield
        if found[-1] < SECONDS_MAX * SLOWER:
            return


def call_once(call: Callable[[], object]) -> None:
    """Make a call, and take an error with a name as its end."""
    with contextlib.suppress(HeliographError, RefusedFrame):
        call()
