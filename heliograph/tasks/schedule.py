"""Schedules of a queue: jobs that are submitted at the times of a cron expression (pure). Bytes: docs/formats.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import msgpack
from cronsim import CronSim, CronSimError

from heliograph.base.errors import BadRequestError, ProtocolError

VERSION = 1
NAME_CHARACTERS_MAX = 200  # so that the id of a job has room for its time
SCHEDULES_MAX = 10_000  # of one queue # I15
SUBMITTED = "@"  # behind the name of a schedule: the key under which its last submission is kept


@dataclass(frozen=True, slots=True)
class Schedule:
    """When a call of a task is submitted again and again.

    Attributes:
        task: Name of the task.
        cron: Five fields, or six with seconds in front.
        zone: Name of the time zone in which they hold.
        since_ms: When it was made, in ms since the epoch; earlier times do not count.
        payload: The encoded arguments.
        encoding: How they are encoded.
        key: Key of the jobs, or None.
        priority: Priority of the jobs.
    """

    task: str
    cron: str
    zone: str
    since_ms: int
    payload: bytes
    encoding: str
    key: str | None = None
    priority: int = 0

    def next_ms(self, after_ms: int) -> int:
        """Return the first time after another one, both in ms since the epoch.

        Raises:
            BadRequestError: There is none, or the fields or the zone cannot be read.
        """
        return self._time(after_ms, is_before=False)

    def due_ms(self, submitted_ms: int, now_ms: int) -> int | None:
        """Return the latest due time that was not submitted, or None. Earlier missed times stay missed.

        Args:
            submitted_ms: The time that was submitted last, or 0.
        """
        floor = max(submitted_ms, self.since_ms)
        first_ms = self.next_ms(floor)
        if first_ms > now_ms:
            return None
        last_ms = self._time(now_ms + 1, is_before=True)
        return last_ms if last_ms > floor else first_ms  # backwards, an hour that comes twice is passed over

    def job_id(self, name: str, at_ms: int) -> str:
        """Return the id of the job of a time: every worker that submits it makes the same one."""
        return f"{name}@{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"

    def _time(self, from_ms: int, *, is_before: bool) -> int:
        try:
            found = next(
                CronSim(self.cron, datetime.fromtimestamp(from_ms / 1000, ZoneInfo(self.zone)), reverse=is_before)
            )
        except StopIteration:
            raise BadRequestError(f"{self.cron!r} names no time that comes", field="cron") from None
        except CronSimError as error:
            raise BadRequestError(
                f"{self.cron!r} cannot be read: {error}", field="cron", limit="minute hour day month weekday"
            ) from error
        except (ValueError, OSError, KeyError, OverflowError) as error:
            raise BadRequestError(f"there is no time zone {self.zone!r}: {error}", field="zone") from error
        return round(found.timestamp() * 1000)

    def encode(self) -> bytes:
        values = {name: getattr(self, name) for name in _FIELDS}
        return bytes(msgpack.packb({"v": VERSION, **{name: each for name, each in values.items() if each is not None}}))


@dataclass(frozen=True, slots=True)
class Submission:
    """The time of a schedule whose job was submitted last, in ms since the epoch."""

    at_ms: int

    def encode(self) -> bytes:
        return bytes(msgpack.packb({"v": VERSION, "at_ms": self.at_ms}))


_FIELDS = tuple(each.name for each in fields(Schedule))
_KINDS = {"task": str, "cron": str, "zone": str, "since_ms": int, "payload": bytes, "encoding": str, "priority": int}


def decode(data: bytes) -> Schedule | Submission:
    """Return the record of some bytes; fields that this release does not know are left out.

    Raises:
        ProtocolError: The bytes are no record, or one of a later version.
    """
    try:
        values: Any = msgpack.unpackb(data)
        if not isinstance(values, Mapping) or values.get("v") != VERSION:
            raise ValueError("not a map of this version")
        if set(values) <= {"v", "at_ms"}:
            return Submission(int(values["at_ms"]))
        found = Schedule(**{name: values[name] for name in _FIELDS if name in values})
        if not all(isinstance(getattr(found, name), kind) for name, kind in _KINDS.items()):
            raise ValueError("a field is not of its type")
        return found
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a schedule cannot be read: {error}", field="schedule") from error
