"""Checks of what counts messages: permits (I15), crashes of consumers (I22), and backlogs (counts).

They share no code with the broker: a backlog is counted from the entries on the bookies' disks.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.subscription.message_count import message_backlog
from tests.simulation.checkers.judge import COUNTS, Judge
from tests.simulation.topic.history import History
from tests.simulation.topic.keeping import Keeping, keys_of

if TYPE_CHECKING:
    from tests.simulation.topic.broker import TopicBroker

Of = tuple[str, Position]  # a subscription, and an entry of it


class MessageChecks:
    """What the consumers of a topic asked for, held and lost, message by message."""

    def __init__(self, judge: Judge, histories: Mapping[str, History], keeping: Keeping) -> None:
        self._judge = judge
        self._histories = histories
        self._keeping = keeping
        self._permits: dict[int, int] = {}  # by consumer, of those whose FLOW commands are known
        self._crashed: defaultdict[Of, Counter[int]] = defaultdict(Counter)  # by message
        self._alone: defaultdict[Of, Counter[int]] = defaultdict(Counter)
        self._in_hand: dict[int, tuple[Position, int]] = {}  # by consumer
        self._stored: defaultdict[Of, list[tuple[dict[int, int], int, int]]] = defaultdict(list)

    # -- permits

    def on_flow(self, consumer: int, permits: int) -> None:
        """Note permits that reached the broker."""
        self._permits[consumer] = self._permits.get(consumer, 0) + permits

    def on_push(self, name: str, consumer: int, messages: int, *, may_exceed: bool) -> None:
        """Check that a consumer had asked for what it is sent.

        Args:
            may_exceed: it may get more than it asked for, because its entry is not divided.
        """
        if consumer not in self._permits:
            return
        left = self._permits[consumer]
        self._judge.require(left > 0, "I15", f"{name}, which has asked for nothing")
        self._judge.require(may_exceed or messages <= left, "I15", f"{name}, {messages} messages for {left} permits")
        self._permits[consumer] = left - messages

    # -- crashes

    def on_in_hand(self, consumer: int, position: Position, place: int) -> None:
        """Note that a message is all that the callers of a consumer's client have."""
        self._in_hand[consumer] = position, place

    def on_return(self, consumer: int, position: Position | None = None, bits: int = 0) -> None:
        """Note that a consumer gave back these messages of an entry (0: all), or everything it had.

        A caller that has another message in hand keeps it.
        """
        in_hand = self._in_hand.get(consumer)
        if in_hand is None or position is None or (in_hand[0] == position and (not bits or bits >> in_hand[1] & 1)):
            self._in_hand.pop(consumer, None)

    def on_crash(self, subscription: str, consumer: int, held: Iterable[tuple[Position, Iterable[int]]]) -> None:
        """Note that a consumer was lost with these messages."""
        alone = self._in_hand.pop(consumer, None)
        for position, places in held:
            for place in places:
                self._crashed[subscription, position][place] += 1
                if alone == (position, place):
                    self._alone[subscription, position][place] += 1

    def on_crash_stored(self, of: Of, counts: dict[int, int], rank: int, number: int) -> None:
        """Note counts of an entry's messages that a broker of ``rank`` made durable.

        Args:
            number: that of the newest step of the subscription's history when they were counted.
        """
        self._stored[of].append((counts, rank, number))

    def on_counts(self, name: str, broker: TopicBroker, of: Of, places: list[int], crashes: int, alone: int) -> None:
        """Check the counts of crashes with which messages are delivered."""
        broker.world.count("message delivered after a crash", crashes > 0)
        broker.world.count("message delivered after a crash alone", alone > 0)
        most = min(self._crashed[of][place] for place in places)
        self._judge.require(crashes <= most, "I22", f"{name} as crashed {crashes} times, lost {most} times")
        most = min(self._alone[of][place] for place in places)
        self._judge.require(alone <= most, "I22", f"{name} as lost alone {alone} times, not {most} times")
        history = self._histories[of[0]]
        for counts, rank, number in self._stored[of]:
            knows = broker.rank >= rank and not history.is_void(of[1], rank, number, broker.rank)
            least = min(counts.get(place, 0) for place in places)
            self._judge.require(
                crashes >= least or not knows, "I11", f"{name} as crashed {crashes} times after {least}"
            )

    # -- backlogs

    def check_backlogs(self, broker: TopicBroker) -> None:
        """Check the backlogs in messages that a broker would tell now."""
        topic = broker.topic
        assert topic is not None, "it has opened it"
        chain = topic.ledger.chain
        for name, subscription in topic.subscriptions.items():
            cursor = subscription.cursor
            is_behind = cursor.mark < chain.first  # of a reader, while a topic is being trimmed
            if subscription.chain is not chain or cursor.acknowledged_messages is None or is_behind:
                continue
            told = message_backlog(subscription, topic.ledger)
            if told.uncounted:
                continue
            found = [
                self._left(chain.position_at(index), cursor.unacknowledged_bits(index))
                for index in range(max(cursor.mark, chain.first), chain.end)
                if not cursor.is_acknowledged(index)
            ]
            if None in found:
                continue  # no sound copy is left that this check can read
            exact = sum(one for one in found if one is not None)
            broker.world.count("backlog counted", exact > 0)
            text = f"{broker.name} tells a backlog of {told.messages} messages of {name}, which has {exact}"
            self._judge.require(told.messages == exact, COUNTS, text)

    def _left(self, position: Position, bits: int | None) -> int | None:
        entry = self._keeping.entry_at(position)
        if entry is None:
            return None
        messages = len(keys_of(entry))
        return messages if bits is None else (bits & (1 << messages) - 1).bit_count()


def places_of(bits: int) -> list[int]:
    """Return the places of the bits that are set."""
    return [place for place in range(bits.bit_length()) if bits >> place & 1]
