"""The job that a function runs, for the function to ask and to report on."""

from __future__ import annotations

import contextvars
from collections.abc import Callable
from dataclasses import dataclass, field

from heliograph.base.errors import BadRequestError
from heliograph.tasks.records import NOTE_CHARACTERS_MAX


@dataclass(slots=True)
class CurrentJob:
    """The job that a function runs.

    Attributes:
        id: Its id, the same at each attempt.
        attempt: Number of this attempt, from 1.
        key: Its key, or None.
    """

    id: str
    attempt: int
    key: str | None
    _tell: Callable[[float | None, str], None]
    _children: int = field(default=0)

    def next_child_id(self) -> str:
        """Return the id of the next job that this one submits, the same at each attempt."""
        self._children += 1
        return f"{self.id}/{self._children}"

    def report(self, progress: float | None = None, note: str = "") -> None:
        """Publish how far the job is, without waiting; of reports that come faster than they are stored, the last.

        Args:
            progress: Share of the work that is done, from 0 to 1.
            note: Text to show with it, cut at 1,000 characters.

        Raises:
            BadRequestError: The share is out of range.
        """
        if progress is not None and not 0 <= progress <= 1:
            raise BadRequestError(f"progress is {progress!r}", field="progress", limit="0 to 1")
        self._tell(progress, note[:NOTE_CHARACTERS_MAX])


_current: contextvars.ContextVar[CurrentJob | None] = contextvars.ContextVar("heliograph_job", default=None)
set_current_job = _current.set


def current_job() -> CurrentJob | None:
    """Return the job that runs in this context, or None outside of a worker."""
    return _current.get()
