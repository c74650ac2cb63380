"""Messages between processes: lost, late, twice, in any order, or cut off."""

from __future__ import annotations

from random import Random

from tests.simulation.profile import Profile
from tests.simulation.world import Action, Process, World

ANYONE = "*"
ANYTHING = "*"


class Network:
    """Carries actions from one process to another."""

    def __init__(self, world: World, profile: Profile) -> None:
        self.world = world
        self.profile = profile
        self.is_healed = False
        self._cut: set[tuple[str, str]] = set()
        self._slow: dict[tuple[str, str, str], int] = {}
        self._late: dict[tuple[str, str, str], int] = {}
        self._links: dict[tuple[str, str], Random] = {}

    def slow(self, source: str, target: str, delay_ms_max: int, kind: str = ANYTHING) -> None:
        """Messages of a kind in that direction take up to ``delay_ms_max`` longer; 0 undoes it.

        Either end may be ANYONE.
        """
        self._slow[kind, source, target] = delay_ms_max

    def make_late(self, source: str, target: str, delay_ms: int, kind: str) -> None:
        """Like ``slow``, but each message takes at least half of that longer."""
        self._late[kind, source, target] = delay_ms

    def cut(self, source: str, target: str) -> None:
        """Nothing sent from ``source`` reaches ``target`` from now on."""
        self._cut.add((source, target))

    def mend(self, source: str, target: str) -> None:
        """Undo ``cut``."""
        self._cut.discard((source, target))

    def heal(self) -> None:
        """From now on every message arrives once, soon."""
        self.is_healed = True
        self._cut.clear()
        self._slow.clear()
        self._late.clear()

    def is_cut(self, source: str, target: str) -> bool:
        """Whether messages in that direction are dropped."""
        return (source, target) in self._cut

    def send(self, source: Process, target: Process, action: Action, kind: str = "") -> None:
        """Have ``action`` happen to ``target``, if the message makes it."""
        world, profile = self.world, self.profile
        random = self._link(source.name, target.name)
        if self.is_healed:
            world.after(1 + random.randrange(3), action, target)
            return
        if self.is_cut(source.name, target.name):
            world.count("message cut off")
            return
        if random.random() < profile.loss:
            world.count("message lost")
            return
        copies = 1
        if random.random() < profile.duplication:
            world.count("message duplicated")
            copies = 2
        for _ in range(copies):
            extra = self._extra(source.name, target.name, kind, random) if self._slow or self._late else 0
            world.after(self._delay(random) + extra, action, target)

    def delay(self, source: Process, target: Process, kind: str) -> int | None:
        """How long the next message of an orderly connection takes; None when it is lost."""
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
        keys = [(k, s, t) for k in (ANYTHING, kind) for s, t in ((source, target), (ANYONE, target), (source, ANYONE))]
        slow = max(self._slow.get(key, 0) for key in keys)
        late = max(self._late.get(key, 0) for key in keys)
        return (random.randrange(slow) if slow else 0) + (random.randrange(late // 2, late) if late else 0)

    def _delay(self, random: Random) -> int:
        profile = self.profile
        if random.random() < profile.straggler:
            self.world.count("message late")
            return random.randrange(profile.straggler_ms_max)
        return random.randrange(profile.delay_ms_max)
