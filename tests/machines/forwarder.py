"""A cable that delays and loses frames, by chance: ``python -m tests.machines.forwarder SEED FROM:TO ...``.

Frames that come out of a device FROM are put into TO after a delay, unless they are lost, and those of TO into FROM at
once. It is for kernels without ``tc netem``, which most containers have; and chance is drawn from a seed.
"""

from __future__ import annotations

import heapq
import itertools
import random
import selectors
import socket
import sys
import time
from contextlib import suppress

DELAY_SECONDS = (0.010, 0.030)
LOST_SHARE = 0.01
READY = "ready"
QUEUED_MAX = 10_000  # frames; further ones are lost
_FRAME_BYTES = 70_000  # the kernel hands over segments of up to 64 KiB
_ALL_PROTOCOLS = 3
_SOL_PACKET, _PACKET_VNET_HDR, _PACKET_IGNORE_OUTGOING = 263, 15, 23


def main() -> None:
    """Forward frames until the process is ended."""
    chance = random.Random(int(sys.argv[1]))
    selector = selectors.DefaultSelector()
    for pair in sys.argv[2:]:
        slow, quick = (_opened(device) for device in pair.split(":"))
        selector.register(slow, selectors.EVENT_READ, (quick, True))
        selector.register(quick, selectors.EVENT_READ, (slow, False))
    print(READY, flush=True)
    due: list[tuple[float, int, bytes, socket.socket]] = []
    numbers = itertools.count()
    while True:
        wait = max(0.0, due[0][0] - time.monotonic()) if due else None
        for key, _ in selector.select(wait):
            assert isinstance(key.fileobj, socket.socket), "only sockets are registered"
            frame = key.fileobj.recv(_FRAME_BYTES)
            other, is_disturbed = key.data
            if not is_disturbed:
                _send(other, frame)
            elif chance.random() >= LOST_SHARE and len(due) < QUEUED_MAX:
                at = time.monotonic() + chance.uniform(*DELAY_SECONDS)
                heapq.heappush(due, (at, next(numbers), frame, other))
        while due and due[0][0] <= time.monotonic():
            _, _, frame, other = heapq.heappop(due)
            _send(other, frame)


def _opened(device: str) -> socket.socket:
    """Return a socket that gets each frame that enters a device, with what the kernel left undone of its checksum."""
    made = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(_ALL_PROTOCOLS))
    made.setsockopt(_SOL_PACKET, _PACKET_IGNORE_OUTGOING, 1)
    made.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
    made.bind((device, 0))
    return made


def _send(device: socket.socket, frame: bytes) -> None:
    with suppress(OSError):  # a device that is down, or whose queue is full, loses frames
        device.send(frame)


if __name__ == "__main__":
    main()
