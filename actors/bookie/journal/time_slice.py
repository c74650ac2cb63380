"""A short time slice for a thread that mostly waits for the disk.

While other threads keep all cores busy, such a thread waits for a core each time the disk has done a part of its write.
Linux 6.12 and later let a thread with a shorter slice run first, up to the share of the processor that it has anyway,
and need no privilege for that. Elsewhere nothing changes.
"""

from __future__ import annotations

import ctypes
import platform
import struct

SLICE_NANOSECONDS = 100_000  # the shortest that Linux accepts
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")  # sched_attr: size, policy, flags, nice, priority, runtime, deadline, period
_POLICY, _RUNTIME = 1, 5  # the places of the policy, and of the slice of a thread with the ordinary policy
_ORDINARY = 0  # SCHED_OTHER
_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr


def shorten_time_slice() -> bool:
    """Shorten the time slice of the calling thread; return whether the kernel has done so."""
    calls = _CALLS.get(platform.machine())
    if platform.system() != "Linux" or calls is None:
        return False
    set_call, get_call = calls
    system_call = ctypes.CDLL(None).syscall
    memory = ctypes.create_string_buffer(_ATTRIBUTES.size)
    if system_call(get_call, 0, memory, _ATTRIBUTES.size, 0) != 0:
        return False
    attributes = list(_ATTRIBUTES.unpack(memory.raw))  # the nice value stays, which a thread may not lower again
    if attributes[_POLICY] != _ORDINARY:
        return False
    attributes[_RUNTIME] = SLICE_NANOSECONDS
    if system_call(set_call, 0, _ATTRIBUTES.pack(*attributes), 0) != 0:
        return False
    system_call(get_call, 0, memory, _ATTRIBUTES.size, 0)
    return bool(_ATTRIBUTES.unpack(memory.raw)[_RUNTIME] == SLICE_NANOSECONDS)
