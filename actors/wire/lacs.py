"""Explicit LACs of many ledgers in one frame LACS, which is not answered. Pure.

A writer at rest tells its LAC without an entry. It does not wait for the answer, so with many ledgers the answers would
cost both ends as much as the entries do (docs/formats.md, "Bookie protocol").
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.frame import encode_head
from heliograph.actors.wire.messages import LEDGER_ENTRIES_MAX, BookieOp, BookieRequest, Flag

LACS_MAX = 1_024  # of a frame # I15

_LAC = struct.Struct(">qq")
_LACS = int(BookieOp.LACS)


def encode_lacs(first_request_id: int, lacs: Mapping[int, int]) -> list[bytes]:
    """Return the frames that tell LACs by ledger id. Their request ids follow each other."""
    packed = [_LAC.pack(ledger_id, lac) for ledger_id, lac in lacs.items()]
    frames = []
    for number, start in enumerate(range(0, len(packed), LACS_MAX)):
        body = b"".join(packed[start : start + LACS_MAX])
        head = encode_head([_LACS, first_request_id + number, -1, -1, 0, len(body) // _LAC.size, -1], len(body))
        frames.append(head + body)
    return frames


def decode_lacs(request: BookieRequest, body: bytes | memoryview) -> list[tuple[int, int]]:
    """Return ledger id and LAC of each ledger that a frame LACS names.

    Raises:
        FrameError: it has too many or too few, or flags, or a field is out of range.
    """
    count = request.limit
    if not 0 < count <= LACS_MAX or request.flags is not Flag.NONE or len(body) != count * _LAC.size:
        raise FrameError(
            f"LACS has {count} ledgers in {len(body)} bytes and flags {int(request.flags)}; 1 to {LACS_MAX} of "
            f"{_LAC.size} bytes each and 0 are allowed"
        )
    lacs: list[tuple[int, int]] = list(_LAC.iter_unpack(body))
    for ledger_id, lac in lacs:
        if ledger_id < 0 or not 0 <= lac < LEDGER_ENTRIES_MAX:
            raise FrameError(f"LACS names LAC {lac} of ledger {ledger_id}: 0 <= LAC < 2**48 is required")
    return lacs
