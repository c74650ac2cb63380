"""Which entries of a topic were sent before (pure).

Every producer numbers its messages with growing sequence ids. An entry is judged by the sequence id of its last
message: *pushed* is the highest that was handed to the ledger, *persisted* the highest that the ledger confirmed. These
two numbers tell what a producer sends again, after a lost connection or a change of owner, from something new.

All chunks of a large message carry the same sequence id, and the message is stored with its last chunk. So only the
last chunk counts as pushed or persisted. Of the message that a producer is in the middle of, the last chunk that was
pushed and the last one persisted are known as well, so that a chunk that is sent again is a duplicate: consumers drop
a message of which a chunk comes twice. A message that begins again after ``CHUNKS_MS_MAX`` is stored again from its
first chunk on, because consumers have dropped the chunks that they had.

The numbers of producers that disconnected are kept for a while, for at most ``producers_max`` of them (I15). They
survive a broker as a snapshot of some position of the topic; ``replay`` of every entry after it brings them up to date.
Of those that are forgotten, what their names begin with is kept, so that a writer that comes back after a long time can
learn that others of its query are forgotten (``FORGOTTEN_LAST``).
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from heliograph.protocol.batch import FORGOTTEN_LAST, FORGOTTEN_TIME

PRODUCERS_REMEMBERED_MAX = 10_000  # producers of one topic that are not connected
CHUNKS_MS_MAX = 60_000  # stock consumers keep the chunks of an unfinished message for a minute
PREFIXES_MAX = 1_000  # of forgotten names of one topic; the one of which none was forgotten for longest goes (I15)
NOTHING = -1  # the sequence id before the first, and the number before the first chunk


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


class StoredChunks(NamedTuple):
    """One producer in a snapshot that is in the middle of a large message: the message (``Chunk``), its sequence id,
    the number of its last persisted chunk, and when that was persisted, in ms since the epoch."""

    name: str
    message: bytes
    sequence_id: int
    number: int
    active_ms: int


class Forgotten(NamedTuple):
    """The forgotten producers whose names begin alike, in a snapshot: up to the last slash of their names, their
    highest persisted sequence id, and when the last of them was active, in ms since the epoch."""

    prefix: str
    persisted: int
    active_ms: int


Stored = Remembered | StoredChunks | Forgotten


class Chunk(NamedTuple):
    """One chunk of a large message.

    Attributes:
        message: the same for all chunks of a message, and another for other messages of the producer.
        number: from 0.
    """

    message: bytes
    number: int
    is_last: bool


@dataclass(slots=True)
class Chunks:
    """The chunks of the message that a producer is in the middle of."""

    message: bytes
    sequence_id: int
    pushed: int = NOTHING  # >= persisted
    persisted: int = NOTHING  # number of a chunk


@dataclass(slots=True)
class _Sequence:
    pushed: int = NOTHING  # >= persisted
    persisted: int = NOTHING  # only grows
    in_flight: int = 0  # entries accepted and not confirmed, chunks included
    active_ms: int = 0
    connected: int = 0  # producers of this name
    chunks: Chunks | None = None  # of a message above ``persisted``


class Deduplication:
    """The sequence ids of all producers of one topic."""

    def __init__(self, producers_max: int = PRODUCERS_REMEMBERED_MAX) -> None:
        self.producers_max = producers_max
        self.forgotten_early = 0  # producers, because ``producers_max`` others left later
        self._known: dict[str, _Sequence] = {}
        self._forgotten: dict[str, Forgotten] = {}  # by prefix; that of the name forgotten last is the last
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
        is_empty = sequence.persisted == NOTHING and sequence.chunks is None
        if (forget or is_empty) and not sequence.connected and not sequence.in_flight:
            del self._known[name]
            return
        sequence.active_ms = now_ms
        self._rest(name, sequence)

    def last(self, name: str) -> int:
        """Return the highest persisted sequence id, -1 for none; or what a name asks of forgotten ones."""
        sequence = self._known.get(name)
        if sequence is not None and sequence.persisted != NOTHING:
            return sequence.persisted
        prefix, slash, own = name.rpartition("/")
        if own.startswith((FORGOTTEN_LAST, FORGOTTEN_TIME)) and (found := self._forgotten.get(prefix + slash)):
            return found.persisted if own.startswith(FORGOTTEN_LAST) else found.active_ms
        return NOTHING

    def pushed(self, name: str) -> int:
        """Return the highest sequence id that was handed to the ledger, -1 for none."""
        sequence = self._known.get(name)
        return NOTHING if sequence is None else sequence.pushed

    def is_settled(self, name: str) -> bool:
        """Return whether every entry pushed under this name has its outcome."""
        sequence = self._known.get(name)
        return sequence is None or sequence.in_flight == 0

    def chunks(self, name: str) -> Chunks | None:
        """Return the chunked message that a producer has begun and not ended."""
        sequence = self._known.get(name)
        return None if sequence is None else sequence.chunks

    def judge(self, name: str, highest: int, chunk: Chunk | None = None, now_ms: int = 0) -> DedupVerdict:
        """Decide on an entry. After ACCEPT the caller pushes it at once.

        Args:
            highest: the sequence id of its last message.
            chunk: the chunk that it is, None for whole messages.
            now_ms: the topic's clock, for a chunk.
        """
        sequence = self._known.setdefault(name, _Sequence())
        if highest <= sequence.persisted:
            return DedupVerdict.DUPLICATE
        if highest <= sequence.pushed:
            return DedupVerdict.UNKNOWN
        if chunk is not None:
            chunks = self._chunks_of(sequence, highest, chunk)
            if not chunk.number and now_ms - sequence.active_ms > CHUNKS_MS_MAX and chunks.pushed == chunks.persisted:
                chunks = sequence.chunks = Chunks(chunk.message, highest)
            if chunk.number <= chunks.persisted:
                return DedupVerdict.DUPLICATE
            if chunk.number <= chunks.pushed:
                return DedupVerdict.UNKNOWN
            chunks.pushed = chunk.number
        if chunk is None or chunk.is_last:
            sequence.pushed = highest
        sequence.in_flight += 1
        self._idle.pop(name, None)
        return DedupVerdict.ACCEPT

    def confirmed(self, name: str, highest: int, now_ms: int, chunk: Chunk | None = None) -> None:
        """Note that an accepted entry is durable. Called in the order in which entries were accepted."""
        sequence = self._known[name]
        assert sequence.in_flight > 0, "an entry is confirmed once"
        sequence.in_flight -= 1
        sequence.active_ms = now_ms
        chunks = sequence.chunks
        if chunk is not None and chunks is not None and chunks.message == chunk.message:
            # A client may send the chunks of two messages in turns, so that one is accepted again.
            chunks.persisted = max(chunks.persisted, min(chunk.number, chunks.pushed))
        if chunk is None or chunk.is_last:
            assert sequence.persisted < highest <= sequence.pushed, "pushed entries are stored once"
            self._stored(sequence, highest)
        self._rest(name, sequence)

    def replay(self, name: str | bytes, highest: int, active_ms: int, chunk: Chunk | None = None) -> None:
        """Apply an entry of the ledger (recovery): in ledger order, before any entry is judged. A name that is not
        UTF-8 is bytes."""
        if isinstance(name, bytes):
            name = name.decode("utf-8", "replace")
        sequence = self._known.setdefault(name, _Sequence())
        assert sequence.in_flight == 0, "recovery comes before use"
        if chunk is None or chunk.is_last:
            sequence.pushed = max(sequence.persisted, highest)
            self._stored(sequence, sequence.pushed)
        elif highest > sequence.persisted:
            if not chunk.number:  # the message began, perhaps again
                sequence.chunks = None
            chunks = self._chunks_of(sequence, highest, chunk)
            chunks.pushed = chunks.persisted = max(chunks.persisted, chunk.number)
        sequence.active_ms = active_ms
        self._rest(name, sequence)

    def snapshot(self) -> list[Stored]:
        """Return the persisted state of every producer that stored anything; the longest idle first."""
        busy = (name for name in self._known if name not in self._idle)
        found: list[Stored] = list(self._forgotten.values())
        for name in (*self._idle, *busy):
            sequence = self._known[name]
            if sequence.persisted != NOTHING:
                found.append(Remembered(name, sequence.persisted, sequence.active_ms))
            chunks = sequence.chunks
            if chunks is not None and chunks.persisted != NOTHING:
                found.append(
                    StoredChunks(name, chunks.message, chunks.sequence_id, chunks.persisted, sequence.active_ms)
                )
        return found

    def restore(self, snapshot: Iterable[Stored]) -> None:
        """Load a snapshot (recovery)."""
        for one in snapshot:
            if isinstance(one, Forgotten):
                self._forgotten[one.prefix] = one
            elif isinstance(one, Remembered):
                self.replay(one.name, one.persisted, one.active_ms)
            else:
                chunk = Chunk(one.message, one.number, is_last=False)
                self.replay(one.name, one.sequence_id, one.active_ms, chunk)

    @property
    def oldest_idle_ms(self) -> int | None:
        """Return when the producer was last active that ``expire`` forgets first; None if there is none."""
        first = next(iter(self._idle), None)
        return None if first is None else self._known[first].active_ms

    def expire(self, before_ms: int) -> int:
        """Forget producers that are not connected and were last active before a time, and return how many."""
        gone = []
        for name in self._idle:
            if self._known[name].active_ms > before_ms:
                break
            gone.append(name)
        for name in gone:
            self._forget(name)
        return len(gone)

    @staticmethod
    def _chunks_of(sequence: _Sequence, highest: int, chunk: Chunk) -> Chunks:
        """Return the state of a chunk's message; the state of an earlier message is forgotten."""
        if sequence.chunks is None or sequence.chunks.message != chunk.message:
            sequence.chunks = Chunks(chunk.message, highest)
        return sequence.chunks

    @staticmethod
    def _stored(sequence: _Sequence, highest: int) -> None:
        sequence.persisted = highest
        if sequence.chunks is not None and sequence.chunks.sequence_id <= highest:
            sequence.chunks = None

    def _rest(self, name: str, sequence: _Sequence) -> None:
        """Move a producer to the end of the idle ones, if it is idle."""
        if sequence.connected or sequence.in_flight:
            return
        self._idle.pop(name, None)
        self._idle[name] = None
        while len(self._idle) > self.producers_max:  # I15
            self.forgotten_early += 1
            self._forget(next(iter(self._idle)))
        assert len(self._idle) <= self.producers_max, "a bounded number of producers is remembered"  # I15

    def _forget(self, name: str) -> None:
        del self._idle[name]
        sequence = self._known.pop(name)
        prefix, slash, _ = name.rpartition("/")
        if not slash or sequence.persisted == NOTHING:
            return
        prefix += slash
        _, persisted, active_ms = self._forgotten.pop(prefix, Forgotten(prefix, NOTHING, 0))
        self._forgotten[prefix] = Forgotten(
            prefix, max(persisted, sequence.persisted), max(active_ms, sequence.active_ms)
        )
        if len(self._forgotten) > PREFIXES_MAX:  # I15
            self.forgotten_early += 1
            del self._forgotten[next(iter(self._forgotten))]
