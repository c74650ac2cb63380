"""What one subscription was asked to do, in the order of its owners: acknowledgements, and moves of its cursor.

A later owner of the topic fences the cursor of an earlier one. So whatever an owner of a lower rank did comes before
all that one of a higher rank did, and each does one thing after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from heliograph.actors.broker.records.position import Position
from tests.simulation.checkers.judge import Judge

if TYPE_CHECKING:
    from tests.simulation.topic.broker import TopicBroker

NOWHERE = Position(-1, -1)
ALL = -1  # every message of an entry, as bits


@dataclass(frozen=True, slots=True)
class Ack:
    """An acknowledgement of an entry, of all entries up to it, or, with ``left``, of all its messages but those."""

    position: Position
    left: int
    is_cumulative: bool


@dataclass
class Acked:
    """The acknowledgements of one subscription: messages of entries as bits, and a position up to which all are."""

    bits: defaultdict[Position, int] = field(default_factory=lambda: defaultdict(int))
    up_to: Position = NOWHERE

    def add(self, ack: Ack) -> None:
        """Add an acknowledgement."""
        if not ack.is_cumulative:
            self.bits[ack.position] |= ~ack.left if ack.left else ALL
            return
        end = ack.position if not ack.left else Position(ack.position.ledger_id, ack.position.entry_id - 1)
        self.up_to = max(self.up_to, end)
        if ack.left:
            self.bits[ack.position] |= ~ack.left

    def covers(self, position: Position) -> bool:
        """Whether the whole entry is acknowledged. Bits beyond the end of a batch are 1 in every acknowledgement."""
        return position <= self.up_to or self.bits.get(position, 0) == ALL


@dataclass(eq=False, slots=True)
class Move:
    """A seek that a broker of ``rank`` did as the step ``number``: everything up to ``before`` counts as acknowledged,
    and of what follows only what ``ack`` says."""

    rank: int
    number: int
    before: Position
    ack: Ack | None
    is_confirmed: bool = False
    begun_ms: int = 0

    def binds(self, rank: int) -> bool:
        """Whether it took effect for sure at a broker of a rank: its own memory, or durably before it took over."""
        return self.rank == rank or (self.is_confirmed and self.rank < rank)


class History:
    """The steps of one subscription."""

    def __init__(self) -> None:
        self._acks: list[tuple[int, int, Ack]] = []  # rank of the broker, number, acknowledgement
        self.moves: list[Move] = []
        self.number = 0  # of the newest step

    def add_ack(self, rank: int, ack: Ack) -> int:
        """Add an acknowledgement that reached a broker, and return its number."""
        self.number += 1
        self._acks.append((rank, self.number, ack))
        return self.number

    def add_move(self, rank: int, before: Position, ack: Ack | None) -> Move:
        """Add a seek that a broker begins."""
        self.number += 1
        move = Move(rank, self.number, before, ack)
        self.moves.append(move)
        return move

    def acked(self, rank: int) -> Acked:
        """Return the most that a broker of a rank may take for acknowledged."""
        found = Acked()
        for step in self._steps(rank):
            if isinstance(step, Ack):
                found.add(step)
                continue
            if step.binds(rank):
                found = Acked()
            found.up_to = max(found.up_to, step.before)
            if step.ack is not None:
                found.add(step.ack)
        return found

    def is_void(self, position: Position, rank: int, number: int, at_rank: int) -> bool:
        """Whether a broker of ``at_rank`` may have forgotten an acknowledgement that a broker of ``rank`` confirmed,
        since a later seek began before its entry."""
        return any(
            (move.rank, move.number) > (rank, number) and move.rank <= at_rank and position > move.before
            for move in self.moves
        )

    def is_passed(self, position: Position, rank: int) -> bool:
        """Whether a seek passed an entry for good, as a broker of a rank must know."""
        for move in sorted(self.moves, key=lambda one: (one.rank, one.number), reverse=True):
            if move.rank <= rank and position > move.before:
                return False
            if move.binds(rank):
                return True
        return False

    def _steps(self, rank: int) -> Iterator[Ack | Move]:
        steps: list[tuple[int, int, Ack | Move]] = [*self._acks, *((one.rank, one.number, one) for one in self.moves)]
        steps.sort(key=lambda step: step[:2])
        return (step for at, _, step in steps if at <= rank)


class Returns:
    """The redelivery counts that brokers made durable."""

    def __init__(self, judge: Judge, histories: defaultdict[str, History]) -> None:
        self._judge = judge
        self._histories = histories
        self._stored: defaultdict[tuple[str, Position], list[tuple[int, int, int]]] = defaultdict(list)

    def number_of(self, subscription: str) -> int:
        """Return the number of the subscription's newest step."""
        return self._histories[subscription].number

    def on_stored(self, broker: TopicBroker, subscription: str, position: Position, count: int, number: int) -> None:
        """Note a count that a broker stored. ``number`` is that of the subscription's history when it was counted."""
        broker.world.count("redelivery count stored")
        self._stored[subscription, position].append((count, broker.rank, number))

    def on_push(self, name: str, broker: TopicBroker, subscription: str, position: Position, count: int) -> None:
        """Check the count of an entry that a broker sends to a consumer. A seek begins counting over."""
        history = self._histories[subscription]
        for stored, rank, number in self._stored[subscription, position]:
            knows = broker.rank >= rank and not history.is_void(position, rank, number, broker.rank)
            self._judge.require(count >= stored or not knows, "I11", f"{name} as redelivery {count} after {stored}")
