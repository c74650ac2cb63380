"""Which entries of a topic were sent before (pure).

Every producer numbers its messages with growing sequence ids. An entry is judged by the last of them: *pushed* is the
highest that was handed to the ledger, *persisted* the highest that the ledger confirmed. What a producer sends again
after a lost connection or a change of owner is told from something new by these two numbers alone.

All chunks of a large message carry the same sequence id, and the message is stored with its last chunk; so only the
last one counts as pushed or persisted, and the others are duplicates only when the whole message is stored.

The numbers of producers that left are kept for a while, at most ``producers_max`` of them (I15). They survive a broker
as a snapshot of some position of the topic, brought up to date by ``replay`` of every entry behind it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

PRODUCERS_REMEMBERED_MAX = 10_000  # producers of one topic that are not connected
INACTIVE_MS_MAX = 6 * 3600 * 1000  # after which a producer that is not connected is forgotten
NOTHING = -1  # the sequence id before the first


class Verdict(enum.Enum):
    """ACCEPT: new, push it. DUPLICATE: stored before. UNKNOWN: the same was pushed; wait for what becomes of it."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


class Remembered(NamedTuple):
    """What a snapshot holds of one producer: its highest persisted sequence id, and when that was, in ms."""

    name: str
    persisted: int
    active_ms: int


@dataclass(slots=True)
class _Sequence:
    pushed: int = NOTHING
    persisted: int = NOTHING
    in_flight: int = 0  # entries accepted and not confirmed, chunks included
    active_ms: int = 0
    connected: int = 0  # producers of this name


class Deduplication:
    """The numbers of all producers of one topic."""

    def __init__(self, producers_max: int = PRODUCERS_REMEMBERED_MAX) -> None:
        self.producers_max = producers_max
        self._known: dict[str, _Sequence] = {}
        self._idle: dict[str, None] = {}  # not connected, nothing in flight; longest idle first

    def __len__(self) -> int:
        return len(self._known)

    def connected(self, name: str) -> None:
        """A producer of that name is there: it is not forgotten."""
        sequence = self._known.setdefault(name, _Sequence())
        sequence.connected += 1
        self._idle.pop(name, None)

    def disconnected(self, name: str, now_ms: int, *, forget: bool = False) -> None:
        """It left. ``forget``: nobody will ever come back under this name, so nothing needs to be known of it."""
        sequence = self._known[name]
        assert sequence.connected > 0, "a producer leaves once"
        sequence.connected -= 1
        if forget and not sequence.connected and not sequence.in_flight:
            del self._known[name]
            return
        sequence.active_ms = now_ms
        self._rest(name, sequence)

    def last(self, name: str) -> int:
        """The highest persisted sequence id, -1 for none."""
        sequence = self._known.get(name)
        return NOTHING if sequence is None else sequence.persisted

    def is_settled(self, name: str) -> bool:
        """Whether every entry pushed under this name has its verdict."""
        sequence = self._known.get(name)
        return sequence is None or sequence.in_flight == 0

    def judge(self, name: str, highest: int, *, is_whole: bool = True) -> Verdict:
        """Decide on an entry; ACCEPT means that the caller pushes it now.

        Args:
            highest: sequence id of its last message.
            is_whole: False for a chunk that is not the last of its message.
        """
        sequence = self._known.setdefault(name, _Sequence())
        if highest <= sequence.persisted:
            return Verdict.DUPLICATE
        if highest <= sequence.pushed:
            return Verdict.UNKNOWN
        if is_whole:
            sequence.pushed = highest
        sequence.in_flight += 1
        self._idle.pop(name, None)
        return Verdict.ACCEPT

    def confirmed(self, name: str, highest: int, now_ms: int, *, is_whole: bool = True) -> None:
        """An accepted entry is durable. Called in the order in which entries were accepted."""
        sequence = self._known[name]
        assert sequence.in_flight > 0, "an entry is confirmed once"
        sequence.in_flight -= 1
        sequence.active_ms = now_ms
        if is_whole:
            assert highest > sequence.persisted, "no sequence id is stored twice"
            sequence.persisted = highest
        self._rest(name, sequence)

    def replay(self, name: str, highest: int, active_ms: int, *, is_whole: bool = True) -> None:
        """Take an entry of the ledger into account (takeover): in ledger order, before anything is judged."""
        sequence = self._known.setdefault(name, _Sequence())
        assert sequence.in_flight == 0, "recovery comes before use"
        if is_whole:
            sequence.pushed = sequence.persisted = max(sequence.persisted, highest)
        sequence.active_ms = active_ms
        self._rest(name, sequence)

    def snapshot(self) -> list[Remembered]:
        """What is persisted now, of every producer that stored anything; longest idle first."""
        busy = (name for name in self._known if name not in self._idle)
        return [
            Remembered(name, found.persisted, found.active_ms)
            for name in (*self._idle, *busy)
            if (found := self._known[name]).persisted != NOTHING
        ]

    def restore(self, snapshot: Iterable[Remembered]) -> None:
        """Begin with a snapshot (takeover)."""
        for name, persisted, active_ms in snapshot:
            self.replay(name, persisted, active_ms)

    def expire(self, now_ms: int) -> int:
        """Forget producers that have been away for too long; returns how many."""
        gone = []
        for name in self._idle:
            if now_ms - self._known[name].active_ms < INACTIVE_MS_MAX:
                break
            gone.append(name)
        for name in gone:
            self._forget(name)
        return len(gone)

    def _rest(self, name: str, sequence: _Sequence) -> None:
        """The producer may have become idle, the one that was active last."""
        if sequence.connected or sequence.in_flight:
            return
        self._idle.pop(name, None)
        self._idle[name] = None
        while len(self._idle) > self.producers_max:  # I15
            self._forget(next(iter(self._idle)))

    def _forget(self, name: str) -> None:
        del self._idle[name]
        del self._known[name]
