"""The latest starts of a part, in a file beside its log: a part that ends again and again is started after pauses.

Ray restarts a part at once, each time. The pauses grow, up to half a minute, and end with a start that lasts.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.base.home import make_private, replace_private

LASTING_MS = 60_000  # a process that lived for so long was no failed start
STARTS_FREE = 3  # in a row that are not delayed
PAUSE_MS = 1_000  # before the next one; it doubles
PAUSE_MS_MAX = 30_000  # I15
STARTS_KEPT_MAX = 64
FAILURE_CHARACTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class Starts:
    """Starts in a row without one that lasted. Times are milliseconds since the epoch.

    ``failure`` is the reason of the latest one that failed; a process that was killed left none.
    """

    times_ms: tuple[int, ...] = ()
    failure: str = ""

    def has_lasted(self, now_ms: int) -> bool:
        """Return whether the latest start was long ago, if no other follows it before ``now_ms``."""
        last_ms = self.times_ms[-1] if self.times_ms else now_ms
        return now_ms - last_ms >= LASTING_MS + pause_ms(len(self.times_ms)) or now_ms < last_ms

    def begun(self, now_ms: int) -> Starts:
        """Return the starts with one more. Starts before one that lasted do not count."""
        earlier = Starts() if self.has_lasted(now_ms) else self
        return Starts((*earlier.times_ms, now_ms)[-STARTS_KEPT_MAX:], earlier.failure)


def pause_ms(starts: int) -> int:
    """Return how long the latest of so many starts in a row is delayed."""
    beyond = starts - STARTS_FREE
    return 0 if beyond <= 0 else min(PAUSE_MS_MAX, PAUSE_MS << min(beyond - 1, 16))


class StartHistory:
    """The file of one part. A file that cannot be read or written counts as empty: it only delays starts."""

    def __init__(self, directory: Path, part: str) -> None:
        self._path = directory / f"{part}.starts"
        self.starts = self._read()

    def begin(self, now_ms: int) -> float:
        """Record a start. Return the seconds to wait before it."""
        self.starts = self.starts.begun(now_ms)
        self._write()
        return pause_ms(len(self.starts.times_ms)) / 1000

    def failed(self, failure: str) -> None:
        self.starts = Starts(self.starts.times_ms, failure[:FAILURE_CHARACTERS_MAX])
        self._write()

    def served(self) -> None:
        """Record that the part serves; it may still end soon."""
        self.starts = Starts(self.starts.times_ms)
        self._write()

    def stopped(self) -> None:
        """Record an orderly end, after which the next start is the first one."""
        self.starts = Starts()
        self._path.unlink(missing_ok=True)

    def _read(self) -> Starts:
        try:
            found: dict[str, Any] = json.loads(self._path.read_text())
            return Starts(tuple(int(time) for time in found["times_ms"]), str(found["failure"]))
        except (OSError, ValueError, TypeError, KeyError):
            return Starts()

    def _write(self) -> None:
        with contextlib.suppress(OSError):
            make_private(self._path.parent)
            content = {"times_ms": list(self.starts.times_ms), "failure": self.starts.failure}
            replace_private(self._path, json.dumps(content).encode())
