"""Which entries of a topic were sent before (pure).

Every producer numbers its messages with growing sequence ids. An entry is judged by the sequence id of its last
message: *pushed* is the highest that was handed to the ledger, *persisted* the highest that the ledger confirmed. These
two numbers tell what a producer sends again, after a lost connection or a change of owner, from something new.

All chunks of a large message carry the same sequence id, and the message is stored with its last chunk. So only the
last chunk counts as pushed or persisted, and the others are duplicates only when the whole message is stored.

The numbers of producers that disconnected are kept for a while, for at most ``producers_max`` of them (I15). They
survive a broker as a snapshot of some position of the topic; ``replay`` of every entry after it brings them up to date.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

PRODUCERS_REMEMBERED_MAX = 10_000  # producers of one topic that are not connected
INACTIVE_MS_MAX = 6 * 3600 * 1000  # then a producer that is not connected is forgotten
NOTHING = -1  # the sequence id before the first


class DedupVerdict(enum.Enum):
    """ACCEPT: it is new, push it. DUPLICATE: it is stored. UNKNOWN: the same entry was pushed and has no outcome
    yet."""

    ACCEPT = "accept"
    DUPLICATE = "duplicate"
    UNKNOWN = "unknown"


class Remembered(NamedTuple):
    """One producer in a snapshot: its highest persisted sequence id, and when it was last active, in ms since the
    epoch."""

    name: str
    persisted: int
    active_ms: int


@dataclass(slots=True)
class _Sequence:
    pushed: int = NOTHING  # >= persisted
    persisted: int = NOTHING  # only grows
    in_flight: int = 0  # entries accepted and not confirmed, chunks included
    active_ms: int = 0
    connected: int = 0  # producers of this name


class Deduplication:
    """The sequence ids of all producers of one topic."""

    def __init__(self, producers_max: int = PRODUCERS_REMEMBERED_MAX) -> None:
        self.producers_max = producers_max
        self._known: dict[str, _Sequence] = {}
        self._idle: dict[str, None] = {}  # not connected and nothing in flight; the longest idle first

    def __len__(self) -> int:
        return len(self._known)

    def connected(self, name: str) -> None:
        """Note that a producer of that name connected: it is not forgotten while it is connected."""
        sequence = self._known.setdefault(name, _Sequence())
        sequence.connected += 1
        self._idle.pop(name, None)

    def disconnected(self, name: str, now_ms: int, *, forget: bool = False) -> None:
        """Note that a producer disconnected.

        Args:
            forget: no producer will use this name again, so that nothing needs to be kept of it.
        """
        sequence = self._known[name]
        assert sequence.connected > 0, "a producer disconnects once"
        sequence.connected -= 1
        if forget and not sequence.connected and not sequence.in_flight:
            del self._known[name]
            return
        sequence.active_ms = now_ms
        self._rest(name, sequence)

    def last(self, name: str) -> int:
        """Return the highest persisted sequence id, -1 for none."""
        sequence = self._known.get(name)
        return NOTHING if sequence is None else sequence.persisted

    def is_settled(self, name: str) -> bool:
        """Return whether every entry pushed under this name has its outcome."""
        sequence = self._known.get(name)
        return sequence is None or sequence.in_flight == 0

    def judge(self, name: str, highest: int, *, is_whole: bool = True) -> DedupVerdict:
        """Decide on an entry. After ACCEPT the caller pushes it at once.

        Args:
            highest: the sequence id of its last message.
            is_whole: False for a chunk that is not the last of its message.
        """
        sequence = self._known.setdefault(name, _Sequence())
        if highest <= sequence.persisted:
            return DedupVerdict.DUPLICATE
        if highest <= sequence.pushed:
            return DedupVerdict.UNKNOWN
        if is_whole:
            sequence.pushed = highest
        sequence.in_flight += 1
        self._idle.pop(name, None)
        return DedupVerdict.ACCEPT

    def confirmed(self, name: str, highest: int, now_ms: int, *, is_whole: bool = True) -> None:
        """Note that an accepted entry is durable. Called in the order in which entries were accepted."""
        sequence = self._known[name]
        assert sequence.in_flight > 0, "an entry is confirmed once"
        sequence.in_flight -= 1
        sequence.active_ms = now_ms
        if is_whole:
            assert sequence.persisted < highest <= sequence.pushed, "what was pushed is stored, and once"
            sequence.persisted = highest
        self._rest(name, sequence)

    def replay(self, name: str, highest: int, active_ms: int, *, is_whole: bool = True) -> None:
        """Apply an entry of the ledger (recovery): in ledger order, before any entry is judged."""
        sequence = self._known.setdefault(name, _Sequence())
        assert sequence.in_flight == 0, "recovery comes before use"
        if is_whole:
            sequence.pushed = sequence.persisted = max(sequence.persisted, highest)
        sequence.active_ms = active_ms
        self._rest(name, sequence)

    def snapshot(self) -> list[Remembered]:
        """Return what is persisted of every producer that stored anything; the longest idle first."""
        busy = (name for name in self._known if name not in self._idle)
        return [
            Remembered(name, found.persisted, found.active_ms)
            for name in (*self._idle, *busy)
            if (found := self._known[name]).persisted != NOTHING
        ]

    def restore(self, snapshot: Iterable[Remembered]) -> None:
        """Load a snapshot (recovery)."""
        for name, persisted, active_ms in snapshot:
            self.replay(name, persisted, active_ms)

    def expire(self, now_ms: int) -> int:
        """Forget producers that were inactive for too long, and return how many."""
        gone = []
        for name in self._idle:
            if now_ms - self._known[name].active_ms < INACTIVE_MS_MAX:
                break
            gone.append(name)
        for name in gone:
            self._forget(name)
        return len(gone)

    def _rest(self, name: str, sequence: _Sequence) -> None:
        """Move a producer to the end of the idle ones, if it is idle."""
        if sequence.connected or sequence.in_flight:
            return
        self._idle.pop(name, None)
        self._idle[name] = None
        while len(self._idle) > self.producers_max:  # I15
            self._forget(next(iter(self._idle)))
        assert len(self._idle) <= self.producers_max, "a bounded number of producers is remembered"  # I15

    def _forget(self, name: str) -> None:
        del self._idle[name]
        del self._known[name]
