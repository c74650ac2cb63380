"""Messages between processes. They may be lost, late, repeated or out of order, and links may be cut."""

from __future__ import annotations

from random import Random

from tests.simulation.profile import Profile
from tests.simulation.world import Action, Process, World

ANYONE = "*"
ANYTHING = "*"

Delayed = tuple[str, str, str]  # kind, source and target of messages


class Network:
    """Carries actions from one process to another."""

    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.profile = profile
        self.is_healed = False
        self._cut: set[tuple[str, str]] = set()
        self._slow: dict[Delayed, int] = {}
        self._late: dict[Delayed, int] = {}
        self._repeated: dict[str, int] = {}
        self._links: dict[tuple[str, str], Random] = {}

    def slow(self, source: str, target: str, delay_ms_max: int, kind: str = ANYTHING) -> None:
        """Delay messages of a kind in one direction by up to ``delay_ms_max``; 0 undoes it.

        Either end may be ANYONE.
        """
        _put(self._slow, (kind, source, target), delay_ms_max)

    def make_late(self, source: str, target: str, delay_ms: int, kind: str) -> None:
        """Delay messages as ``slow`` does, each by at least half of that time."""
        _put(self._late, (kind, source, target), delay_ms)

    def repeat(self, source: str, delay_ms: int) -> None:
        """Deliver everything that ``source`` sends a second time, up to ``delay_ms`` later; 0 undoes it."""
        if delay_ms:
            self._repeated[source] = delay_ms
        else:
            self._repeated.pop(source, None)

    def cut(self, source: str, target: str) -> None:
        """Drop everything that ``source`` sends to ``target``."""
        self._cut.add((source, target))

    def mend(self, source: str, target: str) -> None:
        """Undo ``cut``."""
        self._cut.discard((source, target))

    def heal(self) -> None:
        """Deliver every message once and soon, from now on."""
        self.is_healed = True
        self._cut.clear()
        self._slow.clear()
        self._late.clear()
        self._repeated.clear()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether messages in that direction are dropped."""
        return (source, target) in self._cut

    def send(self, source: Process, target: Process, action: Action, kind: str = "") -> None:
        """Let ``action`` happen to ``target`` when the message arrives, if it does."""
        world, profile = self.world, self.profile
        random = self._link(source.name, target.name)
        if self.is_healed:
            world.after(1 + random.randrange(3), action, target)
            return
        if self._cut and (source.name, target.name) in self._cut:
            world.count("message cut off")
            return
        if random.random() < profile.loss:
            world.count("message lost")
            return
        self._deliver(source, target, action, kind, random)
        if random.random() < profile.duplication:
            world.count("message duplicated")
            self._deliver(source, target, action, kind, random)
        repeated_ms = self._repeated.get(source.name) if self._repeated else None
        if repeated_ms is not None:
            world.count("answer repeated late")
            world.after(random.randrange(repeated_ms // 2, repeated_ms), action, target)

    def _deliver(self, source: Process, target: Process, action: Action, kind: str, random: Random) -> None:
        extra = self._extra(source.name, target.name, kind, random) if self._slow or self._late else 0
        self.world.after(self._delay(random) + extra, action, target)

    def delay(self, source: Process, target: Process, kind: str) -> int | None:
        """Return how long the next message of an ordered connection takes, None if it is lost."""
        random = self._link(source.name, target.name)
        if self.is_healed:
            return 1 + random.randrange(3)
        if self.is_cut(source.name, target.name):
            self.world.count("message cut off")
            return None
        if random.random() < self.profile.loss:
            self.world.count("message lost")
            return None
        extra = self._extra(source.name, target.name, kind, random) if self._slow or self._late else 0
        return self._delay(random) + extra

    def _link(self, source: str, target: str) -> Random:
        random = self._links.get((source, target))
        if random is None:
            random = self._links[source, target] = self.world.stream(f"{source}>{target}")
        return random

    def _extra(self, source: str, target: str, kind: str, random: Random) -> int:
        slow, late = _most(self._slow, kind, source, target), _most(self._late, kind, source, target)
        return (random.randrange(slow) if slow else 0) + (random.randrange(late // 2, late) if late else 0)

    def _delay(self, random: Random) -> int:
        profile = self.profile
        if random.random() < profile.straggler:
            self.world.count("message late")
            return random.randrange(profile.straggler_ms_max)
        return int(random.random() * profile.delay_ms_max)


def _put(delays: dict[Delayed, int], key: Delayed, delay_ms: int) -> None:
    if delay_ms:
        delays[key] = delay_ms
    else:
        delays.pop(key, None)


def _most(delays: dict[Delayed, int], kind: str, source: str, target: str) -> int:
    """Return the longest delay that applies to a message."""
    most = 0
    for (of_kind, of_source, of_target), delay_ms in delays.items():
        if (
            delay_ms > most
            and of_kind in (ANYTHING, kind)
            and (of_target == target or (of_target == ANYONE and of_source != ANYONE))
            and of_source in (source, ANYONE)
        ):
            most = delay_ms
    return most
