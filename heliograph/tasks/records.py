"""Records of a job: its state, and the message that carries it (pure). docs/formats.md describes the bytes."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import msgpack

from heliograph.base.errors import ProtocolError
from heliograph.base.lifecycle import Lifecycle
from heliograph.client.aio.producer.arguments import HEAD_BYTES_MAX

VERSION = 1
RESULT_BYTES_INLINE = 256  # a larger result is a message of its own, so that views of states stay small
ERROR_CHARACTERS_MAX = 2_000
NOTE_CHARACTERS_MAX = 1_000
ID_CHARACTERS_MAX = 256

# Properties of a job's message, and of its letter.
ID, NAME, ENCODING, PARENT = "heliograph.job", "heliograph.task", "heliograph.encoding", "heliograph.parent"
PRIORITY = "heliograph.priority"  # if it is not 0
NAMED = "heliograph.named"  # the id was chosen by the caller, and may be submitted again
REASON, TRACEBACK, ATTEMPTS = "heliograph.reason", "heliograph.traceback", "heliograph.attempts"
KEY_BYTES_MAX = 4 << 10  # of a job, and of a key with a state: letters and records have more in front of them
_PAIR_BYTES = 16  # of a property, besides its name and its value


class JobState(enum.StrEnum):
    PENDING = "PENDING"
    STARTED = "STARTED"
    RETRY = "RETRY"
    SUCCESS = "SUCCESS"
    FAILURE = "FAILURE"
    REVOKED = "REVOKED"


_ENDS = {JobState.SUCCESS, JobState.FAILURE, JobState.REVOKED}

JOB_LIFECYCLE = Lifecycle(
    {
        JobState.PENDING: (
            "In the queue, or unknown: no worker has begun it.",
            {JobState.STARTED, JobState.FAILURE, JobState.REVOKED},
        ),
        JobState.STARTED: (
            "A worker runs it, or has died running it: then another one begins it again.",
            {JobState.STARTED, JobState.RETRY, *_ENDS},
        ),
        JobState.RETRY: (
            "It failed, and begins again after a pause.",
            {JobState.STARTED, JobState.FAILURE, JobState.REVOKED},
        ),
        JobState.SUCCESS: ("It has a result, which stays until it expires.", ()),
        JobState.FAILURE: ("It failed for good. Its letter can be submitted again.", {JobState.PENDING}),
        JobState.REVOKED: ("It was cancelled. A worker that had begun it may end it nevertheless.", {JobState.SUCCESS}),
    }
)


@dataclass(frozen=True, slots=True)
class JobRecord:
    """The state of a job, as the topic of states holds it.

    Attributes:
        task: Name of the task; empty if it was revoked by its id alone.
        state: State of the job.
        at_ms: When this was written, in ms since the epoch, by the clock of the process that wrote it.
        key: Key of the job, or None.
        parent: Id of the job that submitted it, or None.
        source: Id of the message in the queue that was begun last; another message of the same job is a repetition.
        worker: Name of the worker that began it last; empty before.
        attempt: Number of this attempt, from 1: failures and crashes before count.
        is_alone: Whether the worker runs nothing else meanwhile, because it may have ended another worker.
        crashes: How often a worker ended while it ran this job alone.
        progress: Share of the work that is done, from 0 to 1, as the function said, or None.
        note: The function's note on its progress, or the error of a failure.
        result: The encoded result, if it has at most ``RESULT_BYTES_INLINE`` bytes.
        result_at: Id of the message that holds a larger result.
    """

    task: str
    state: JobState
    at_ms: int
    key: str | None = None
    parent: str | None = None
    source: str = ""
    worker: str = ""
    attempt: int = 0
    is_alone: bool = False
    crashes: int = 0
    progress: float | None = None
    note: str = ""
    result: bytes | None = None
    result_at: str | None = None

    @property
    def has_ended(self) -> bool:
        """Return whether no worker is to begin the job any more."""
        return self.state in _ENDS

    def moved(self, state: JobState, at_ms: int, **changes: Any) -> JobRecord:
        """Return the record of a later state, which may follow this one."""
        return replace(self, state=JOB_LIFECYCLE.move(self.state, state), at_ms=at_ms, **changes)

    def replaces(self, known: JobRecord | None) -> bool:
        """Return whether this state, which was stored after another one, holds. A worker that stood still may write
        late. Of two messages of one job that are begun at the same moment, the first holds."""
        if known is None or self.state in (JobState.PENDING, JobState.SUCCESS):
            return known is None or known.state is not JobState.SUCCESS or self.state is JobState.SUCCESS
        if known.has_ended:
            return False
        return self.state is JobState.REVOKED or known.source in ("", self.source) or not self.source

    def encode(self) -> bytes:
        values = {name: getattr(self, name) for name in _FIELDS}
        kept = {name: value for name, value in values.items() if value not in (None, "", 0, False) or name == "state"}
        return bytes(msgpack.packb({"v": VERSION, **kept, "state": str(self.state)}))

    @classmethod
    def decode(cls, data: bytes) -> JobRecord:
        """Return the record of some bytes; fields that this release does not know are left out.

        Raises:
            ProtocolError: The bytes are no record, or one of a later version.
        """
        try:
            values = msgpack.unpackb(data)
            if not isinstance(values, Mapping) or values.get("v") != VERSION:
                raise ValueError(f"version {values.get('v')!r}" if isinstance(values, Mapping) else "not a map")
            known: dict[str, Any] = {name: values[name] for name in _FIELDS if name in values}
            return cls(**{"task": "", "at_ms": 0, **known, "state": JobState(known["state"])})
        except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
            raise ProtocolError(f"the state of a job cannot be read: {error}", field="state") from error


_FIELDS = tuple(each.name for each in fields(JobRecord))


def letter_properties(key: str | None, kept: Mapping[str, str], reason: str, traceback: str) -> dict[str, str]:
    """Return the properties of a letter: those that it keeps, the beginning of the reason and the end of the traceback.

    They get the room that is left in a message. Where the kept ones leave none, only ours are kept, short ones first.
    """
    kept = {name: value for name, value in kept.items() if name not in (REASON, TRACEBACK)}  # of a letter before
    if _room(key, kept) < 0:
        ours = [pair for pair in kept.items() if pair[0].startswith("heliograph.")]
        kept = {}
        for name, value in sorted(ours, key=lambda pair: len(pair[1])):
            if _room(key, {**kept, name: value}) >= ERROR_CHARACTERS_MAX:
                kept[name] = value
    room = max(_room(key, kept), 0)
    cut = reason.encode(errors="backslashreplace")[: min(room, ERROR_CHARACTERS_MAX)]
    shown = traceback.encode(errors="backslashreplace")
    shown = shown[max(0, len(shown) - room + len(cut)) :]
    return {**kept, REASON: cut.decode(errors="ignore"), TRACEBACK: shown.decode(errors="ignore")}


def _room(key: str | None, kept: Mapping[str, str]) -> int:
    """Return the bytes that are left for the values of a reason and a traceback."""
    names = len(REASON) + len(TRACEBACK) + 3 * _PAIR_BYTES
    pairs = sum(len(name.encode()) + len(value.encode()) + _PAIR_BYTES for name, value in kept.items())
    return HEAD_BYTES_MAX - names - pairs - len((key or "").encode())
