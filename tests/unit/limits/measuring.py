"""What a call costs: processor time of its thread, and memory at its peak. Other processes do not count."""

from __future__ import annotations

import contextlib
import time
import tracemalloc
from collections.abc import Callable

from heliograph.base.errors import HeliographError
from heliograph.gateway.websocket.frames import RefusedFrame

SECONDS_MAX = 0.05
SLOWER = 40  # a busy machine with cold caches; what this looks for takes minutes
BYTES_MAX = 64 << 20


def check_cost(name: str, call: Callable[[], object]) -> None:
    """Assert that a call, which may fail, takes no more than SECONDS_MAX of processor time and BYTES_MAX of memory."""
    call_once(call)  # imports and caches
    began = time.thread_time()
    call_once(call)
    seconds = time.thread_time() - began
    assert seconds < SECONDS_MAX * SLOWER, f"{name} takes {seconds:.3f} s of processor time"
    tracemalloc.start()
    try:
        call_once(call)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < BYTES_MAX, f"{name} takes {peak >> 20} MiB"


def call_once(call: Callable[[], object]) -> None:
    """Make a call, and take an error with a name as its end."""
    with contextlib.suppress(HeliographError, RefusedFrame):
        call()
