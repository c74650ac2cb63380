"""Adds on their way to bookies: alone, or many in one frame with one answer for all that a sync made durable. Pure.

An entry travels alone, in a frame ADD that is written at once, where some bookie has no other add to answer. Else it
goes into a frame ADDS with the others that one loop iteration sends to the same bookies, of any ledgers. Each is what a
frame ADD has as its body, and their request ids are consecutive. A frame is the same for all bookies that get it. A
sync of the journal makes some of them durable. Each **run** of them, of request ids without a gap, is answered by one
frame. A refused entry is answered by itself, as to an ADD, and its id ends a run. So a run never names an entry that
the bookie did not store (docs/formats.md, "Bookie protocol").
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
ALONE_BURST_MAX = 4  # adds in a burst, behind which the next one still travels alone
SHARED_IDS_FROM = 1 << 62  # request ids of frames that are the same for several bookies; no connection counts so far

SIZE_BYTES = 4  # of the length before an entry of a frame ADDS

_SIZE = struct.Struct(">I")
_ADD, _ADDS, _OK = int(BookieOp.ADD), int(BookieOp.ADDS), int(Status.OK)
_RUN_FIELDS = len(Answer._fields) + 1

assert RANGED_ENTRY_BYTES_MAX + SIZE_BYTES <= RANGE_BYTES_MAX <= ENTRY_PAYLOAD_BYTES_MAX, "an entry fits a frame"


class AddListener(Protocol):
    """The one who sent adds, and takes the answers."""

    def on_stored(self, bookie_id: str, tags: Sequence[Any]) -> None:
        """Take the news that the entries with these tags are durable on the bookie: in the order of their adds."""

    def on_add_answer(self, bookie_id: str, tag: Any, answer: Answer | BookieError) -> None:
        """Take the answer of a bookie to one entry, or the error in its place."""


Add = tuple[AddListener, Any, int]  # listener, tag, deadline in milliseconds
Told = tuple[AddListener, list[Any]]  # a listener, and the tags of adds that it is told about


class SentRange:
    """The adds of one frame ADDS. The same record serves every bookie that got the frame; it does not change."""

    __slots__ = ("adds", "count", "deadline_ms", "first", "last")

    def __init__(self, first: int, count: int, adds: list[Told], deadline_ms: int) -> None:
        """Args:
        first: request id of the first add; the others follow.
        adds: listeners and tags of the adds in order. A listener has several tags if its adds follow each other.
        """
        self.first = first
        self.last = first + count - 1
        self.count = count
        self.adds = adds
        self.deadline_ms = deadline_ms

    def one_by_one(self) -> list[tuple[AddListener, Any]]:
        """Return listener and tag of each add, in order."""
        return [(listener, tag) for listener, tags in self.adds for tag in tags]


class PendingAdds(dict[int, Add]):
    """The adds of one connection that have no answer. Adds sent one by one are the items, by request id.

    All adds of a client have the same timeout, so their deadlines rise with their ids. Each leaves with its first
    answer: a repeated one finds nothing. The connection bounds their number (I15). This is a dict, because an item is
    made for each copy of each message that travels alone.
    """

    def __init__(self) -> None:
        super().__init__()
        self.in_ranges = 0  # adds that were sent in frames for several bookies
        self._ranges: dict[int, SentRange] = {}  # those frames, by their first request id
        self._split: dict[int, Add] = {}  # the adds of frames that were answered in parts

    def put_range(self, sent: SentRange) -> None:
        """Add all adds of a frame that goes to several bookies."""
        self._ranges[sent.first] = sent
        self.in_ranges += sent.count

    def deadline_of(self, first: int) -> int:
        """Return the deadline of the adds of a run in ms, of which ``first`` is the first; 0 if it does not wait."""
        sent = self._ranges.get(first)
        return sent.deadline_ms if sent is not None else self[first][2] if first in self else 0

    def take(self, request_id: int) -> tuple[AddListener, Any] | None:
        """Return listener and tag of an add that is answered by itself; None if it waits no longer."""
        add = self.pop(request_id, None)
        if add is None and self.in_ranges:
            self._split_ranges(request_id, request_id)
            add = self._pop_split(request_id)
        return None if add is None else add[:2]

    def take_run(self, first: int, last: int) -> list[Told]:
        """Return the tags of the adds of a run that wait, in order, by their listeners. One may come twice."""
        sent = self._ranges.get(first)
        if sent is None or sent.last != last:
            return self._take_each(first, last)
        del self._ranges[first]
        self.in_ranges -= sent.count
        return sent.adds

    def take_expired(self, now: int) -> list[tuple[AddListener, Any]]:
        """Return the adds whose deadline has passed. No other add is looked at: deadlines rise."""
        late = takewhile(lambda item: item[1][2] <= now, self.items())
        expired = [self.pop(request_id)[:2] for request_id in [request_id for request_id, _ in late]]
        for sent in list(takewhile(lambda sent: sent.deadline_ms <= now, self._ranges.values())):
            del self._ranges[sent.first]
            self.in_ranges -= sent.count
            expired += sent.one_by_one()
        for request_id in [request_id for request_id, add in self._split.items() if add[2] <= now]:
            expired.append(self._split.pop(request_id)[:2])
            self.in_ranges -= 1
        return expired

    def take_all(self) -> list[tuple[AddListener, Any]]:
        waiting = [add[:2] for add in (*self.values(), *self._split.values())]
        for sent in self._ranges.values():
            waiting += sent.one_by_one()
        self.clear()
        self._split.clear()
        self._ranges.clear()
        self.in_ranges = 0
        return waiting

    def _take_each(self, first: int, last: int) -> list[Told]:
        if self.in_ranges:
            self._split_ranges(first, last)
        found: dict[AddListener, list[Any]] = {}
        for request_id in range(first, last + 1):
            add = self.pop(request_id, None) or self._pop_split(request_id)
            if add is not None:
                found.setdefault(add[0], []).append(add[1])
        return list(found.items())

    def _pop_split(self, request_id: int) -> Add | None:
        add = self._split.pop(request_id, None)
        if add is not None:
            self.in_ranges -= 1
        return add

    def _split_ranges(self, first: int, last: int) -> None:
        """Take apart the frames that hold some of these adds: they are not answered as a whole."""
        for sent in [sent for sent in self._ranges.values() if sent.first <= last and sent.last >= first]:
            del self._ranges[sent.first]
            for request_id, (listener, tag) in enumerate(sent.one_by_one(), sent.first):
                self._split[request_id] = (listener, tag, sent.deadline_ms)


class OutgoingEntry:
    """An entry on its way to its bookies. It is encoded once for each way in which it travels.

    Attributes:
        head: the entry's bytes up to its payload.
        size: bytes of the whole entry.
    """

    __slots__ = ("_ranged", "entry_id", "head", "ledger_id", "payload", "size")

    def __init__(self, ledger_id: int, entry_id: int, head: bytes, payload: bytes | memoryview) -> None:
        self.ledger_id = ledger_id
        self.entry_id = entry_id
        self.head = head
        self.payload = payload
        self.size = len(head) + len(payload)
        self._ranged = b""

    def in_range(self) -> bytes | None:
        """Return the entry after its length, as a frame ADDS has it; None if it is too large for one."""
        if not self._ranged and self.size <= RANGED_ENTRY_BYTES_MAX:
            self._ranged = b"".join((_SIZE.pack(self.size), self.head, self.payload))
        return self._ranged or None


def sized_head(head: bytes, size: int) -> bytes:
    """Return the head of an entry of ``size`` bytes after its length, as a frame ADDS has it."""
    return _SIZE.pack(size) + head


def encode_adds(first_request_id: int, entries: Sequence[bytes]) -> bytes:
    """Return a frame ADDS with entries as ``OutgoingEntry.in_range`` returns them."""
    return encode_adds_in_parts(first_request_id, len(entries), entries, sum(map(len, entries)))


def encode_adds_in_parts(first_request_id: int, count: int, parts: Sequence[bytes | memoryview], size: int) -> bytes:
    """Return a frame ADDS with ``count`` entries, each after its length. ``parts`` are its body, of ``size`` bytes."""
    assert 0 < count <= RANGE_ENTRIES_MAX, "the caller ends a frame before it has too many"  # I15
    return b"".join((encode_head([_ADDS, first_request_id, -1, -1, 0, count, -1], size), *parts))


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

    __slots__ = ("_bytes", "_first", "entries")

    def __init__(self) -> None:
        self.entries: list[bytes] = []  # for those who ask whether it is empty
        self._first = 0
        self._bytes = 0

    def put(self, request_id: int, entry: bytes) -> bool:
        """Append an entry as ``OutgoingEntry.in_range`` returns it, whose request id follows that of the entry before.

        Returns:
            False if it has no room (I15): then it is not appended.
        """
        entries = self.entries
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
        if self.entries:
            entries, self.entries, self._bytes = self.entries, [], 0
            write(encode_adds(self._first, entries))

    def clear(self) -> None:
        """Discard the entries: their connection is lost."""
        self.entries, self._bytes = [], 0
