"""Adds on their way to bookies: alone, or many in one frame with one answer for all that a sync made durable. Pure.

An entry travels alone, in a frame ADD that is written at once, over a connection where no other add waits. Else it
goes into a frame ADDS with the others that one loop iteration sends to a bookie, of any ledgers. Each is what a frame
ADD has as its body, and their request ids are consecutive. A sync of the journal makes some of them durable. Each
**run** of them, of request ids without a gap, is answered by one frame. A refused entry is answered by itself, as to
an ADD, and its id ends a run. So a run never names an entry that the bookie did not store (docs/formats.md, "Bookie
protocol").
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from itertools import takewhile
from typing import Any, Protocol

from heliograph.actors.errors import BookieError, FrameError
from heliograph.actors.wire.frame import ENTRY_PAYLOAD_BYTES_MAX, decode_batch, encode_head
from heliograph.actors.wire.messages import NUMBER_MAX, Answer, BookieOp, BookieRequest, Flag, Status

RANGED_ENTRY_BYTES_MAX = 16 << 10  # a larger entry travels by itself, so that no frame is long
RANGE_BYTES_MAX = 60 << 10  # of a frame's body # I15
RANGE_ENTRIES_MAX = 1_024  # of a frame, and of a run # I15
ALONE_BYTES_MAX = 64 << 10  # of an entry that is copied into one frame for all its bookies
ALONE_BURST_MAX = 4  # adds in a burst, behind which the next one still travels alone
ALONE_IDS_FROM = 1 << 62  # request ids of such frames, which no range counts up to

_SIZE = struct.Struct(">I")
_ADD, _ADDS, _OK = int(BookieOp.ADD), int(BookieOp.ADDS), int(Status.OK)
_RUN_FIELDS = len(Answer._fields) + 1

assert RANGED_ENTRY_BYTES_MAX + _SIZE.size <= RANGE_BYTES_MAX <= ENTRY_PAYLOAD_BYTES_MAX, "an entry fits a frame"


class AddListener(Protocol):
    """The one who sent adds, and takes the answers."""

    def on_stored(self, tags: Sequence[Any]) -> None:
        """Take the news that the entries with these tags are durable on the bookie: in the order of their adds."""

    def on_add_answer(self, tag: Any, answer: Answer | BookieError) -> None:
        """Take the answer to one entry, or the error in its place."""


class PendingAdds(dict[int, tuple[AddListener, Any, int]]):
    """The adds of one connection that have no answer, by request id: listener, tag, deadline in milliseconds.

    All adds of a client have the same timeout, so their deadlines rise with their ids. Each leaves with its first
    answer: a repeated one finds nothing. The connection bounds their number (I15). This is a dict, because an item is
    made for each copy of each message.
    """

    def take(self, request_id: int) -> tuple[AddListener, Any] | None:
        """Return listener and tag of an add that is answered by itself; None if it waits no longer."""
        add = self.pop(request_id, None)
        return None if add is None else add[:2]

    def take_run(self, first: int, last: int) -> dict[AddListener, list[Any]]:
        """Return the tags of the adds of a run that wait, in order, by their listeners."""
        found: dict[AddListener, list[Any]] = {}
        pop = self.pop
        for request_id in range(first, last + 1):
            add = pop(request_id, None)
            if add is not None:
                tags = found.get(add[0])
                if tags is None:
                    found[add[0]] = [add[1]]
                else:
                    tags.append(add[1])
        return found

    def take_expired(self, now: int) -> list[tuple[AddListener, Any]]:
        """Return the adds whose deadline has passed. Only these are looked at: those of later adds are not earlier."""
        late = takewhile(lambda item: item[1][2] <= now, self.items())
        return [self.pop(request_id)[:2] for request_id in [request_id for request_id, _ in late]]

    def take_all(self) -> list[tuple[AddListener, Any]]:
        """Return all adds."""
        waiting = [add[:2] for add in self.values()]
        self.clear()
        return waiting


class OutgoingEntry:
    """An entry on its way to its bookies. It is encoded once for each way in which it travels.

    Attributes:
        head: the entry's bytes up to its payload.
        size: bytes of the whole entry.
        alone: the whole frame ADD, once ``travel_alone`` has made it; empty before.
        alone_id: the request id in that frame.
    """

    __slots__ = ("_ranged", "alone", "alone_id", "entry_id", "head", "ledger_id", "payload", "size")

    def __init__(self, ledger_id: int, entry_id: int, head: bytes, payload: bytes | memoryview) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.head = head
        self.payload = payload
        self.size = len(head) + len(payload)
        self.alone = self._ranged = b""
        self.alone_id = 0

    def travel_alone(self, request_id: int) -> None:
        """Make the frame ADD, which is the same for every bookie.

        Args:
            request_id: used for nothing else on any of these connections.
        """
        size = self.size
        header = encode_head([_ADD, request_id, self.ledger_id, self.entry_id, 0, 0, -1], size)
        self.alone = b"".join((header, self.head, self.payload))
        self.alone_id = request_id

    def in_range(self) -> bytes | None:
        """Return the entry after its length, as a frame ADDS has it; None if it is too large for one."""
        if not self._ranged and self.size <= RANGED_ENTRY_BYTES_MAX:
            self._ranged = b"".join((_SIZE.pack(self.size), self.head, self.payload))
        return self._ranged or None


def encode_adds(first_request_id: int, entries: Sequence[bytes]) -> bytes:
    """Return a frame ADDS with entries as ``OutgoingEntry.in_range`` returns them."""
    assert 0 < len(entries) <= RANGE_ENTRIES_MAX, "the caller ends a frame before it has too many"  # I15
    head = encode_head([_ADDS, first_request_id, -1, -1, 0, len(entries), -1], sum(map(len, entries)))
    return b"".join((head, *entries))


def decode_adds(request: BookieRequest, body: memoryview) -> list[memoryview]:
    """Return the entries of a frame ADDS, as views into its body. None of them is checked.

    Raises:
        FrameError: it has too many or too few, or request ids out of range, or flags.
    """
    count = request.limit
    if not 0 < count <= RANGE_ENTRIES_MAX or request.flags is not Flag.NONE or request.request_id > NUMBER_MAX - count:
        raise FrameError(
            f"ADDS has {count} entries and flags {int(request.flags)}, 1 to {RANGE_ENTRIES_MAX} and 0 are allowed"
        )
    entries = decode_batch(body)
    if len(entries) != count:
        raise FrameError(f"ADDS has {len(entries)} entries, its header names {count}")
    return entries


def encode_stored(request_ids: Iterable[int]) -> bytes:
    """Return the answers to entries of ADDS that are durable: one frame for each run, in the order of the ids."""
    return b"".join([encode_head([first, _OK, -1, "", last], 0) for first, last in runs_of(request_ids)])


def runs_of(request_ids: Iterable[int]) -> list[tuple[int, int]]:
    """Return first and last of each run of consecutive ids. A gap is an add that has another answer."""
    runs: list[tuple[int, int]] = []
    first = last = -1
    for request_id in request_ids:
        if request_id == last + 1 and last >= 0 and request_id - first < RANGE_ENTRIES_MAX:
            last = request_id
            continue
        if last >= 0:
            runs.append((first, last))
        first = last = request_id
    if last >= 0:
        runs.append((first, last))
    return runs


def is_run(header: list[Any]) -> bool:
    """Return whether a header is that of an answer to a run."""
    return len(header) == _RUN_FIELDS


def decode_run(header: list[Any]) -> tuple[int, int]:
    """Return first and last request id of an answer to a run.

    Raises:
        FrameError: a field has a wrong type or is out of range, or the run is longer than a bookie may answer.
    """
    first, status, _, _, last = header
    if not (type(first) is type(status) is type(last) is int and status == _OK and 0 < first <= last):
        raise FrameError(f"not an answer to a run of adds: {header!r:.200}")
    if last - first >= RANGE_ENTRIES_MAX:
        raise FrameError(f"an answer names {last - first + 1} adds, at most {RANGE_ENTRIES_MAX} are allowed")
    return first, last


class OpenRange:
    """The frame ADDS that the current loop iteration fills for one bookie. Not empty between two calls of ``take``."""

    __slots__ = ("_bytes", "_entries", "_first")

    def __init__(self) -> None:
        self._entries: list[bytes] = []
        self._first = 0
        self._bytes = 0

    def put(self, request_id: int, entry: bytes) -> bool:
        """Append an entry as ``OutgoingEntry.in_range`` returns it, whose request id follows that of the entry before.

        Returns:
            False if it has no room (I15): then it is not appended.
        """
        entries = self._entries
        size = self._bytes + len(entry)
        if not entries:
            self._first = request_id
        elif size > RANGE_BYTES_MAX or len(entries) >= RANGE_ENTRIES_MAX:
            return False
        assert request_id == self._first + len(entries), "the ids of a frame have no gap"
        entries.append(entry)
        self._bytes = size
        return True

    def take(self, write: Callable[[bytes], Any]) -> None:
        """End the frame, if it has an entry, and pass it to ``write``."""
        if self._entries:
            entries, self._entries, self._bytes = self._entries, [], 0
            write(encode_adds(self._first, entries))

    def clear(self) -> None:
        """Discard the entries: their connection is lost."""
        self._entries, self._bytes = [], 0
