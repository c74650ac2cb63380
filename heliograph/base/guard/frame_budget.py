"""One budget for the bytes of unfinished frames that all connections of a listener hold (pure, I15).

A frame is unfinished from its first byte to its last but one: the listener holds what has arrived and can do nothing
with it. Many reads end with a piece of a frame, which the next read completes. A stranger can begin a frame on each of
many connections and never end it.

Three bounds hold. The age of a frame counts from its first byte.

- **A deadline.** A frame that is not complete in time has its connection closed.
- **Room.** Above three quarters of the budget, or above half of it for one address, all connections with unfinished
  frames, or all of that address, wait: their sockets are not read until there is room. Stale frames are not waited for:
  their connections are closed, those of the address that holds the most first. One of the frames that wait is read all
  the same, the one that lacks the least, so that frames do not wait for each other without end.
- **The whole budget.** Above it, connections are closed however young their frames are. That takes more beginning
  frames at one moment than the last quarter has room for.

So a listener holds at most the budget and what one socket delivers in one read.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from heliograph.base.errors import UnfinishedFrameError
from heliograph.base.guard.shares import ShareCounter

STALE_SECONDS = 5.0  # age above which no other frame waits for this one
STALLS_REMEMBERED_SECONDS = 30.0  # after a frame stalled that had room, those that wait for room may be stale, too
STALL_SECONDS = 2.0  # in which nothing comes of a frame that is read in spite of the bound, or it comes slower than
PREFERRED_BYTES_PER_SECOND = 1 << 20
SHARE_OF_ONE_ADDRESS = 2  # one address may hold half of the budget
BYTES_PER_SECOND_LEAST = 16 << 10  # a frame that comes slower than this uses up its deadline
READ_BYTES_MAX = 256 << 10  # about the most that a socket delivers in one read
SWEEP_SECONDS = 0.5  # time between two looks at the deadlines
BUDGET_LEAST = 32 << 20  # bytes; four of the largest frames of any protocol fit


class FrameReader(Protocol):
    """A connection, as far as the budget needs it."""

    @property
    def is_held_back(self) -> bool:
        """Return whether its socket is not read for a reason of the listener's, which is not the peer's fault."""

    def hold_reading(self) -> None:
        """Read nothing until ``resume_reading``, because there is no room."""

    def resume_reading(self) -> None:
        """Read on, as far as nothing else forbids it."""

    def drop_frame(self, error: UnfinishedFrameError) -> None:
        """Close the connection, and free the received part of its frame."""


class UnfinishedFrame:
    """The part of a frame that one connection holds. It is made with the connection, and is mostly empty."""

    __slots__ = ("address", "arrived", "begun", "held", "is_waiting", "missing", "promised", "reader")

    def __init__(self, reader: FrameReader, address: str) -> None:
        self.reader = reader
        self.address = address
        self.held = 0  # bytes of memory, 0 <= held
        self.promised = 0  # bytes of room that it was given to read on, and has not used
        self.arrived = 0  # bytes of the frame
        self.missing = 0  # bytes that are known to be needed
        self.begun = 0.0  # monotonic seconds
        self.is_waiting = False  # for room; held > 0


class FrameBudget:
    """The unfinished frames of one listener. Times are seconds of a monotonic clock.

    Attributes:
        bytes_max: the budget. It may change.
        seconds_max: time in which a frame has to arrive, and one second more for each ``BYTES_PER_SECOND_LEAST``.
        dropped: connections that were closed because of their frames.
    """

    def __init__(self, bytes_max: int, seconds_max: float) -> None:
        self.bytes_max = bytes_max
        self.seconds_max = seconds_max
        self.dropped = 0
        self._held = ShareCounter()
        self._frames: dict[str, OrderedDict[UnfinishedFrame, None]] = {}  # by address, the oldest first; held > 0
        self._waiting: OrderedDict[UnfinishedFrame, None] = OrderedDict()  # the one that waits longest first
        self._full: set[str] = set()  # addresses whose frames all wait; "" stands for all
        self._preferred: UnfinishedFrame | None = None  # read in spite of the bound
        self._preferred_at = 0.0  # when it became that, and later for what arrived of it; <= now
        self._stalled_at = -STALLS_REMEMBERED_SECONDS

    @property
    def held_bytes(self) -> int:
        """The bytes of unfinished frames that are held now, and the room that is promised to those that read on."""
        return self._held.total

    @property
    def is_empty(self) -> bool:
        """Whether no frame is unfinished, so that there is no deadline to watch."""
        return not self._frames

    def note(
        self, frame: UnfinishedFrame, held: int, missing: int, now: float, *, is_new: bool, arrived: int = 0
    ) -> None:
        """Count what a connection holds after a read, and make room for it.

        Args:
            held: bytes of memory of its unfinished frame; 0: there is none.
            missing: bytes that the frame still lacks.
            is_new: an earlier frame was completed by this read.
            arrived: bytes of the frame that have come; 0: as many as are held.
        """
        if is_new or not held:
            was_waiting = frame.is_waiting
            self._finish(frame)
            if was_waiting:
                frame.reader.resume_reading()
        frame.missing = missing
        if held:
            if not frame.held:
                frame.begun = now
                self._frames.setdefault(frame.address, OrderedDict())[frame] = None
            if frame is self._preferred:
                earned = ((arrived or held) - frame.arrived) / PREFERRED_BYTES_PER_SECOND
                self._preferred_at = min(now, self._preferred_at + earned)
            self._held.add(frame.address, held - frame.held - frame.promised)
            frame.held, frame.promised, frame.arrived = held, 0, arrived or held
            if frame is not self._preferred and not self._has_room(frame.address):
                self._make_room(frame.address, now)
                self._hold(frame)
            if self._held.total > self.bytes_max:
                self._keep_budget(now)
        if self._waiting:
            self._wake(now)

    def restart(self, frame: UnfinishedFrame, now: float) -> None:
        """Give a frame its full time again: the listener did not read its socket for a while."""
        if frame.held:
            frame.begun = now
            self._frames[frame.address].move_to_end(frame)

    def postpone(self, seconds: float) -> None:
        """Give all frames more time: the process did not run for a while, and bytes may have come meanwhile."""
        for frame in [frame for frames in self._frames.values() for frame in frames]:
            frame.begun += seconds
        self._preferred_at += seconds

    def forget(self, frame: UnfinishedFrame, now: float) -> None:
        """Drop the frame of a connection that is closed. Idempotent."""
        self._finish(frame)
        if self._waiting:
            self._wake(now)

    def sweep(self, now: float) -> None:
        """Close the connections whose frames are late. Call it every ``SWEEP_SECONDS`` while there are frames."""
        for frame in [frame for frames in self._frames.values() for frame in frames]:
            if now - frame.begun < self.seconds_max + frame.arrived / BYTES_PER_SECOND_LEAST:
                continue
            if frame.reader.is_held_back or (frame.is_waiting and not self._has_stalled(now)):
                self.restart(frame, now)
            else:
                self._drop(frame, f"a frame did not arrive in {now - frame.begun:.0f} s", "unfinished_ms_max")
        self._check_preferred(now)
        for frame in list(self._waiting):
            if frame.is_waiting:
                self._make_room(frame.address, now)
        self._wake(now)

    # -- room

    def _has_room(self, address: str, size: int = 0) -> bool:
        return (
            self._held.total + size <= self.bytes_max * 3 // 4
            and self._held[address] + size <= self.bytes_max // SHARE_OF_ONE_ADDRESS
        )

    def _make_room(self, address: str, now: float) -> None:
        """Close connections with stale frames until an address may hold another read, or there are no such frames."""
        while not self._has_room(address, READ_BYTES_MAX) and (stale := self._stale(address, now)) is not None:
            self._drop(stale, "a frame did not arrive while others waited for its room", "unfinished_bytes_max")

    def _stale(self, address: str, now: float) -> UnfinishedFrame | None:
        """Return the oldest stale frame of the address that room for ``address`` is taken from."""
        has_stalled = self._has_stalled(now)
        for frame in self._frames.get(self._heaviest(address), ()):
            if now - frame.begun < STALE_SECONDS:
                return None
            if frame is self._preferred or frame.reader.is_held_back:
                continue
            if has_stalled or not frame.is_waiting:
                return frame
        return None

    def _has_stalled(self, now: float) -> bool:
        """Return whether peers hoard: a frame stalled a while ago that had room, so those that wait may do so, too."""
        return now - self._stalled_at < STALLS_REMEMBERED_SECONDS

    def _heaviest(self, address: str) -> str:
        """Return the address that holds the most, or ``address`` if that has no room within its share."""
        if self._held[address] + READ_BYTES_MAX > self.bytes_max // SHARE_OF_ONE_ADDRESS:
            return address
        return max(self._frames, key=self._held.__getitem__, default=address)

    def _hold(self, frame: UnfinishedFrame) -> None:
        """Have a frame wait if there is no room, and others that may grow, too, before each brings another read."""
        if self._has_room(frame.address):
            return
        is_over = self._held.total > self.bytes_max * 3 // 4
        scope = "" if is_over else frame.address
        crowd = [frame]
        if scope not in self._full:
            self._full.add(scope)
            addresses = list(self._frames) if is_over else [frame.address]
            crowd = [one for address in addresses for one in self._frames.get(address, ())]
        for one in crowd:
            if one.held and not one.promised and not one.is_waiting and one is not self._preferred:
                one.is_waiting = True
                self._waiting[one] = None
                one.reader.hold_reading()

    def _wake(self, now: float) -> None:
        """Have waiting connections read on: as many as there is room for one read each, and one in any case."""
        for frame in list(self._waiting):
            if self._held.total + READ_BYTES_MAX > self.bytes_max * 3 // 4:
                break
            if self._has_room(frame.address, READ_BYTES_MAX):
                frame.promised = READ_BYTES_MAX
                self._held.add(frame.address, READ_BYTES_MAX)
                self._resume(frame, now)
        ready = [frame for frame in self._waiting if not frame.reader.is_held_back] if self._preferred is None else []
        if ready:
            frame = self._preferred = min(ready, key=lambda frame: frame.missing)
            self._preferred_at = now
            self._resume(frame, now)

    def _resume(self, frame: UnfinishedFrame, now: float) -> None:
        self._full.clear()
        if not self._has_stalled(now):  # that it waited was not the peer's fault
            self.restart(frame, now)
        frame.is_waiting = False
        del self._waiting[frame]
        frame.reader.resume_reading()

    def _check_preferred(self, now: float) -> None:
        """Take its place from a frame that did not use it. It stalled, if its socket was read."""
        frame = self._preferred
        if frame is None or now - self._preferred_at < STALL_SECONDS:
            return
        self._preferred = None
        if not frame.reader.is_held_back:
            self._stalled_at = now
            self._drop(frame, "a frame stalled while others waited for its room", "unfinished_bytes_max")

    def _keep_budget(self, now: float) -> None:
        """Close connections until the budget holds, the oldest frame of the address that holds the most first."""
        while self._held.total > self.bytes_max:
            frames = self._frames[max(self._frames, key=self._held.__getitem__)]
            oldest = next((frame for frame in frames if frame is not self._preferred), self._preferred)
            assert oldest is not None, "an address with frames has one"
            self._drop(oldest, f"unfinished frames are above {self.bytes_max} bytes", "unfinished_bytes_max")

    def _drop(self, frame: UnfinishedFrame, reason: str, setting: str) -> None:
        self.dropped += 1
        self._finish(frame)
        frame.reader.drop_frame(UnfinishedFrameError(f"{reason}; {setting} is the limit", field=setting))

    def _finish(self, frame: UnfinishedFrame) -> None:
        """Take a frame off the count, and off the list of those that wait."""
        if frame.held:
            self._held.add(frame.address, -frame.held - frame.promised)
            frame.held = frame.promised = 0
            frames = self._frames[frame.address]
            del frames[frame]
            if not frames:
                del self._frames[frame.address]
        if frame is self._preferred:
            self._preferred = None
        if frame.is_waiting:
            frame.is_waiting = False
            del self._waiting[frame]
