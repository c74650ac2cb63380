"""When Ray ended actors of parts because memory ran short, as Ray's own texts tell it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

AGE_SECONDS_MAX = 24 * 3_600  # an older shortage is not told
QUIET_MS = 60_000  # without an end, after which the next one belongs to another shortage
NAMED_MAX = 3  # parts; more are counted

# An actor in the list of those that Ray ended. Ray before 2.55 names the one whose worker it was.
_ACTOR = re.compile(r"(?:Actor\(|actor ID: )([0-9a-f]{32})\b.*?\bpid=(\d+)", re.DOTALL)
# The first line of the table of the largest processes; its lines end with a comma in some releases.
_LARGEST = re.compile(r"PID\tMEM\(GB\)\tCOMMAND[\n,]\s*\d+\t([0-9.]+)\t(.+?)(?:\n|, \d+\t|, Refer |$)")


@dataclass(frozen=True, slots=True)
class Shortage:
    """One time that memory ran short on machines of the cluster.

    Attributes:
        ended_ms: when Ray ended the last actor, since the epoch.
        parts: whose actors it ended.
        largest: command and memory in GB of the process that used most; None: Ray did not say.
    """

    ended_ms: int
    parts: tuple[str, ...]
    largest: tuple[str, float] | None

    def note(self, wall_seconds: float) -> str:
        """Return the sentence for people; empty when it is too long ago.

        Args:
            wall_seconds: the wall clock, in seconds since the epoch.
        """
        if wall_seconds - self.ended_ms / 1_000 > AGE_SECONDS_MAX:
            return ""
        at, now = datetime.fromtimestamp(self.ended_ms / 1_000), datetime.fromtimestamp(wall_seconds)
        when = at.strftime("%H:%M" if at.date() == now.date() else "%H:%M on %Y-%m-%d")
        count = len(self.parts)
        whose = f"actors of {count} parts" if count > NAMED_MAX else f"actor of {', '.join(self.parts)}"
        text = f"Ray ended the {whose} at {when} because memory ran short, and the processes of the parts went on"
        return text if self.largest is None else f"{text}; the largest user was {self.largest[0]}, {self.largest[1]} GB"


def latest_shortage(ended: Iterable[tuple[int, int, str]], parts: Mapping[str, str]) -> Shortage | None:
    """Return the latest shortage that ended an actor of a part.

    Args:
        ended: workers that Ray ended for it: when, in ms since the epoch; the pid; and what Ray says.
        parts: names of the parts by the ids of their actors.
    """
    last: list[tuple[int, str, str]] = []  # when, the part, and what Ray says; the newest first
    for ended_ms, pid, detail in sorted(ended, reverse=True):
        actors = {number: actor for actor, number in _ACTOR.findall(detail)}
        part = parts.get(actors.get(str(pid), ""))
        if part is None:
            continue
        if last and last[-1][0] - ended_ms > QUIET_MS:
            break
        last.append((ended_ms, part, detail))
    if not last:
        return None
    users = [user for _, _, detail in last if (user := _largest(detail)) is not None]
    names = tuple(sorted({part for _, part, _ in last}))
    return Shortage(last[0][0], names, max(users, key=lambda user: user[1], default=None))


def _largest(detail: str) -> tuple[str, float] | None:
    match = _LARGEST.search(detail)
    return (match[2].strip(), float(match[1])) if match else None
