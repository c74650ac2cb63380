"""Windows of event time (pure)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from heliograph.base.clock import Duration, seconds_of
from heliograph.base.errors import InvalidConfigError

WINDOWS_OF_A_MESSAGE_MAX = 100


@dataclass(frozen=True, slots=True)
class WindowSpan:
    """One window: event times from ``start_ms`` to before ``end_ms``, in ms since the epoch."""

    start_ms: int
    end_ms: int


class Window:
    """How event time is divided: every ``every`` seconds a window of ``size`` seconds starts.

    Args:
        size: Length of a window: seconds or a timedelta.
        every: Time between the starts of two windows; None: ``size``, so that windows do not overlap.
        late: How long a window stays open for messages that come out of order, in event time.

    Raises:
        InvalidConfigError: A length is out of range, or a message would be in more than 100 windows.
    """

    def __init__(self, size: Duration, *, every: Duration | None = None, late: Duration = 0) -> None:
        lengths = (
            seconds_of(size, "size"),
            seconds_of(size if every is None else every, "every"),
            seconds_of(late, "late"),
        )
        # Lengths without end are out of range.
        self.size_ms, self.every_ms, self.late_ms = (round(1000 * each) if isfinite(each) else -1 for each in lengths)
        if not 0 < self.every_ms <= self.size_ms or self.late_ms < 0:
            raise InvalidConfigError("the window is out of range", field="window", limit="0 < every <= size, 0 <= late")
        if self.size_ms > WINDOWS_OF_A_MESSAGE_MAX * self.every_ms:
            raise InvalidConfigError(
                "each message would be in too many windows", field="every", limit=f"size / {WINDOWS_OF_A_MESSAGE_MAX}"
            )

    def spans(self, time_ms: int) -> list[WindowSpan]:
        """Return the windows of a message with the event time ``time_ms``, the earliest first."""
        last = time_ms - time_ms % self.every_ms
        starts = range(last, time_ms - self.size_ms, -self.every_ms)
        return [self.span(start) for start in reversed(starts)]

    def span(self, start_ms: int) -> WindowSpan:
        """Return the window that starts at ``start_ms``."""
        return WindowSpan(start_ms, start_ms + self.size_ms)

    def watermark(self, seen_ms: Mapping[str, int]) -> int | None:
        """Return the time before which windows are over; None: there was no message yet.

        Args:
            seen_ms: By input, the highest event time. The input that is behind decides.
        """
        return min(seen_ms.values()) - self.late_ms if seen_ms else None
