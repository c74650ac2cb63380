"""Checks of a topic, its cursors and its dispatchers after every step: I1, I2, I11, I12, I13, I14 and I16.

The checkers are told what clients asked for and what brokers answered, and they read the store and the cursors. They
share no code with the broker.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from typing import TYPE_CHECKING

from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import TopicEntry
from heliograph.metadata.model import TopicRecord
from heliograph.protocol.entry import broker_metadata_of, split
from tests.simulation.checkers.judge import DELAY, LIVENESS, READING, Judge
from tests.simulation.checkers.messages import MessageChecks, places_of
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.store import SimulatedStore
from tests.simulation.topic.history import ALL, NOWHERE, Ack, Acked, History, Move, Returns
from tests.simulation.topic.keeping import COMPACTED, Keeping, keys_of, label_of

if TYPE_CHECKING:
    from tests.simulation.topic.broker import TopicBroker
    from tests.simulation.topic.scene import Link

Place = tuple[Position, int]  # of a message: its entry, and its number there

STOOD_STILL_MS = 1_000  # within which a broker that stood still takes everything back


@dataclass
class Confirmed:
    """An acknowledgement that a broker of ``rank`` confirmed. Brokers of a lower rank need not know of it."""

    ack: Ack
    rank: int
    number: int


@dataclass
class Held:
    """The messages that the consumers of a shared subscription hold at one broker, as bits."""

    bits: defaultdict[Position, dict[int, int]] = field(default_factory=lambda: defaultdict(dict))  # by consumer

    def release(self, position: Position, bits: int, consumer: int | None = None) -> None:
        """Note that a consumer, None for all, does not hold these messages any more."""
        held = self.bits[position]
        for one in list(held) if consumer is None else [consumer]:
            held[one] = held.get(one, 0) & ~bits


@dataclass
class Dispatched:
    """The messages that the consumers of a Key_Shared subscription hold at one broker, by entry and place there."""

    held: dict[Place, tuple[int, str]] = field(default_factory=dict)  # -> consumer, key
    returned: defaultdict[str, set[Place]] = field(default_factory=lambda: defaultdict(set))
    newest: dict[str, Place] = field(default_factory=dict)
    seen: set[Place] = field(default_factory=set)

    def forget(self, is_gone: Callable[[Place], bool]) -> None:
        """Forget messages that are acknowledged."""
        for place in [place for place in self.held if is_gone(place)]:
            del self.held[place]
        for returned in self.returned.values():
            returned.difference_update([place for place in returned if is_gone(place)])


class TopicCheckers:
    """The history of a topic, and the checks on it."""

    def __init__(
        self,
        store: SimulatedStore,
        judge: Judge,
        bookies: Mapping[str, SimulatedBookie],
        key_shared: Iterable[str],
        *,
        is_deduplicated: bool,
        is_counted: bool,
    ) -> None:
        self.is_deduplicated = is_deduplicated
        self.is_counted = is_counted  # whether brokers note the index of every entry
        self.store = store
        self.judge = judge
        self.brokers: list[TopicBroker] = []  # brokers that opened the topic
        self.confirmed_messages = 0
        self.undivided: set[str] = set()  # subscriptions with a consumer that takes no parts
        self._served: set[str] = set()  # subscriptions that were delivered anything
        self.receipts: dict[Position, tuple[str, int, int]] = {}  # -> producer, number of its entry, rank of the broker
        self.asked: defaultdict[str, Acked] = defaultdict(Acked)  # by subscription
        self.confirmed: defaultdict[str, list[Confirmed]] = defaultdict(list)
        self._key_shared = frozenset(key_shared)
        self._first_push: dict[str, tuple[int, str]] = {}  # by Key_Shared subscription: greatest rank that delivered
        self._told: set[tuple[str, int]] = set()  # entries whose receipt says "stored before"
        self._published: set[tuple[str, int]] = set()
        self._last_receipt: dict[Link, int] = {}
        self._dispatched: defaultdict[tuple[str, str], Dispatched] = defaultdict(Dispatched)
        self._held: defaultdict[tuple[str, str], Held] = defaultdict(Held)
        self._refused: defaultdict[tuple[str, Position], Counter[int]] = defaultdict(Counter)  # by message
        self._marks: dict[tuple[str, str], int] = {}
        self._resets: dict[tuple[str, str], int] = {}
        self._histories: defaultdict[str, History] = defaultdict(History)  # by subscription
        self._durable: defaultdict[tuple[str, Position], list[Confirmed]] = defaultdict(list)
        self._listed: set[int] = set()
        self.returns = Returns(judge, self._histories)
        self.keeping = Keeping(store, judge, bookies)
        self.messages = MessageChecks(judge, self._histories, self.keeping)
        store.on_topic.append(self.on_topic)

    def confirmed_to(self, ledger_id: int) -> int:
        """Return the last entry of a ledger that a client got a receipt for, -1 for none."""
        return max((at.entry_id for at in self.receipts if at.ledger_id == ledger_id), default=-1)

    # -- the chain

    def on_topic(self, before: TopicRecord, after: TopicRecord) -> None:
        """Check the list: ids grow, at most two ledgers are not closed, and only empty ones leave from its middle."""
        chain = self.store.chain(before)
        old, new = [info.ledger_id for info in chain], [info.ledger_id for info in self.store.chain(after)]
        added = [ledger_id for ledger_id in new if ledger_id not in old]
        text = f"the topic went from {old} to {new}"
        require = self.judge.require
        require(new == sorted(new) and new[len(new) - len(added) :] == added, "I12", text)
        require(all(ledger_id > max(self._listed, default=0) for ledger_id in added), "I12", text)
        require(sum(info.closed_ms == 0 for info in after.ledgers) <= 2, "I12", f"{text}, with too many open")
        self._listed.update(added)
        self.store.world.count("chain folded", len(after.pieces) > len(before.pieces))
        used = {position.ledger_id for position in self.receipts}
        gone = [info for info in chain if info.ledger_id not in new and (info.entries or info.ledger_id in used)]
        if gone:
            name = self.store.author.process
            broker = next((one for one in self.brokers if one.name == name and one.profile.policies), None)
            require(broker is not None, "I14", f"{text} by {name}, and {gone} have messages")
            assert broker is not None, "it trims"
            self.keeping.on_trimmed(broker, before, gone, partial(self._needs, broker))

    def _needs(self, broker: TopicBroker, position: Position) -> str:
        """Return a subscription for which an entry was never acknowledged, "" if there is none."""
        for name in self._served:
            history = self._histories[name]
            if self.asked[name].covers(position) and not history.moves:
                continue
            is_moving = any(move.begun_ms >= broker.round_began_ms for move in history.moves)
            if not is_moving and not history.acked(broker.rank).covers(position):
                return name
        return ""

    def on_collect(self, bookie_id: str, ledger_ids: set[int]) -> None:
        """Check that a bookie may delete the data of these ledgers."""
        kept = sorted(ledger_ids.intersection(self.store.ledgers()))
        self.judge.require(not kept, "I14", f"{bookie_id} deletes the data of ledgers {kept}, which exist")

    # -- publishing

    def on_publish(self, producer: str, number: int) -> None:
        """Note that a producer sends an entry, perhaps again."""
        self._published.add((producer, number))

    def on_receipt(self, broker: TopicBroker, link: Link, producer: str, number: int, position: Position) -> None:
        """Check a receipt that a broker sends."""
        require = self.judge.require
        name = f"{broker.name} confirms {producer}:{number} at {position.ledger_id}:{position.entry_id}"
        require(not broker.is_lost, "I13", f"{name} after it knew that the topic is lost")
        require(not broker.is_fenced, "I13", f"{name} after a bookie told it that it was replaced")
        last = self._last_receipt.get(link, 0)
        require(number > last, "I2", f"{name} after {last}")
        self._last_receipt[link] = number
        require((producer, number) in self._published, "I1", f"{name}, which nobody sent")
        if position.ledger_id < 0:
            require(self.is_deduplicated, "I12", f"{name} as a duplicate, and nobody looks for any")
            self._told.add((producer, number))
            return
        require(position.ledger_id in self._listed, "I12", f"{name} in a ledger that the topic never had")
        records = self.store.history.get(position.ledger_id)
        assert records, "a ledger of the topic was made once"
        is_in = not records[-1].is_closed or position.entry_id <= records[-1].last_entry_id
        require(is_in, "I13", f"{name}, beyond the end of a ledger that was closed without it")
        require(position not in self.receipts, "I12", f"{name}, where another entry is")
        self.receipts[position] = producer, number, broker.rank
        self.confirmed_messages += 1

    # -- cursors

    def on_open(self, broker: TopicBroker) -> None:
        """Check that a broker that took the topic over knows what was confirmed until now."""
        assert broker.topic is not None, "it has opened it"
        chain = broker.topic.ledger.chain
        for position, (producer, number, rank) in self.receipts.items():
            there = rank > broker.rank or self._is_in(chain, position)
            text = f"{producer}:{number} at {position.ledger_id}:{position.entry_id} is lost for {broker.name}"
            self.judge.require(there, "I12", text)
        for name, confirmed in self.confirmed.items():
            found = broker.topic.has_subscription(name) or all(one.rank > broker.rank for one in confirmed)
            self.judge.require(found, "I11", f"{broker.name} does not know subscription {name}")
        self.brokers.append(broker)

    def _is_in(self, chain: LedgerChain, position: Position) -> bool:
        """Whether a broker's chain has an entry: it may be trimmed, or in older ledgers that are not in memory."""
        if chain.find(position) is not None or position.ledger_id in self.keeping.trimmed:
            return True
        return any(run.ref.first_id <= position.ledger_id <= run.ref.last_id for run in chain.older)

    def on_recovered(self, broker: TopicBroker, name: str) -> None:
        """Check that a broker that recovered a cursor knows what was confirmed until now."""
        for one in self.confirmed[name]:
            self._check_durable(broker, name, one)
        self._check_moves(broker, name)

    def on_ack(self, subscription: str, ack: Ack) -> None:
        """Note what a client acknowledges."""
        self.asked[subscription].add(ack)

    def on_ack_confirmed(self, broker: TopicBroker, subscription: str, ack: Ack, number: int) -> None:
        """Check that brokers that took the topic over since know an acknowledgement that a broker confirms.

        ``number`` is what ``on_ack_arrived`` returned.
        """
        confirmed = Confirmed(ack, broker.rank, number)
        self.confirmed[subscription].append(confirmed)
        self._durable[subscription, ack.position].append(confirmed)
        broker.world.count("acknowledgement confirmed")
        broker.world.note(broker.name, "confirms to", subscription, ack)
        for other in self.brokers:
            if other.is_serving and other.rank >= broker.rank:
                self._check_durable(other, subscription, confirmed)

    def _check_durable(self, broker: TopicBroker, name: str, confirmed: Confirmed) -> None:
        assert broker.topic is not None, "it has opened it"
        subscription = broker.topic.subscriptions.get(name)
        if subscription is None or broker.rank < confirmed.rank or subscription.reads_compacted:
            return
        chain, cursor, ack = broker.topic.ledger.chain, subscription.cursor, confirmed.ack
        if self._histories[name].is_void(ack.position, confirmed.rank, confirmed.number, broker.rank):
            return
        index = chain.find(ack.position)
        place = f"{ack.position.ledger_id}:{ack.position.entry_id}"
        there = index is not None or self._is_in(chain, ack.position)
        self.judge.require(there, "I12", f"{broker.name} has no {place}, which was delivered")
        if index is None:
            return
        if ack.left:
            left = cursor.unacknowledged_bits(index)
            holds = cursor.is_acknowledged(index) or (left is not None and not left & ~ack.left)
        else:
            holds = cursor.is_acknowledged(index)
        if ack.is_cumulative:
            holds = holds and cursor.mark >= index
        text = f"{broker.name} forgot that {name} acknowledged {place}"
        self.judge.require(holds, "I11", text)

    def after_step(self) -> None:
        """Check that no cursor's mark passed an entry that no client acknowledged."""
        world = self.store.world
        if world.alarms:
            self.judge.hear(world.alarms)
        for broker in self.brokers:
            if world.last is not None and broker is not world.last:
                continue  # its marks have not moved
            self._look(broker)

    def _look(self, broker: TopicBroker) -> None:
        """Check the marks of a broker that have moved."""
        if not broker.is_serving or broker.topic is None:
            return
        for name, subscription in broker.topic.subscriptions.items():
            if subscription.reads_compacted or subscription.is_internal or not subscription.is_durable:
                continue  # they count by another chain, follow compactions, or end with a connection
            mark, key = subscription.cursor.mark, (broker.name, name)
            resets = subscription.cursor.resets
            seen = self._marks.get(key, 0)
            if resets != self._resets.setdefault(key, resets):
                self._resets[key] = resets
                self._check_moves(broker, name)
                self._marks[key] = mark
            elif mark != seen:
                self._check_mark(broker, name, seen, mark)
                self._marks[key] = mark

    def _check_mark(self, broker: TopicBroker, name: str, seen: int, mark: int) -> None:
        assert broker.topic is not None, "it has opened it"
        self.judge.require(mark > seen, "I11", f"{broker.name}: the mark of {name} went back from {seen} to {mark}")
        chain, history = broker.topic.ledger.chain, self._histories[name]
        asked = history.acked(broker.rank) if history.moves else self.asked[name]
        passed = [chain.position_at(at) for at in range(max(seen, chain.loaded_from), min(mark, chain.end))]
        open_ones = [position for position in passed if not asked.covers(position)]
        if open_ones and broker.profile.policies and self._may_expire(broker, passed[passed.index(open_ones[-1]) :]):
            self._on_expired(broker, name, open_ones[-1])
            return
        for position in open_ones:
            text = f"{broker.name}: {name} passed {position.ledger_id}:{position.entry_id}, which nobody acknowledged"
            self.judge.require(False, "I11", text)

    def _may_expire(self, broker: TopicBroker, positions: list[Position]) -> bool:
        """Whether one of these entries may leave by its age, or by a quota; publish times decrease hardly ever."""
        return any(self.keeping.may_expire(broker, position) for position in positions)

    def _on_expired(self, broker: TopicBroker, name: str, last: Position) -> None:
        """Note that everything up to ``last`` counts as acknowledged: it was too old, or too much."""
        broker.world.count("backlog expired or evicted")
        broker.world.note(broker.name, "expires", name, "up to", last)
        ack = Ack(last, 0, is_cumulative=True)
        self.asked[name].add(ack)
        self._histories[name].add_ack(broker.rank, ack)
        shared = self._held[broker.name, name]
        for position in [position for position in shared.bits if position <= last]:
            del shared.bits[position]
        self._dispatched[broker.name, name].forget(lambda place: place[0] <= last)

    # -- seeks

    def on_seek(self, broker: TopicBroker, subscription: str, before: Position, ack: Ack | None) -> Move:
        """Note that a broker moves a cursor behind ``before``. Consumers are disconnected first, and give back all."""
        self._dispatched[broker.name, subscription] = Dispatched()
        self._held[broker.name, subscription] = Held()
        move = self._histories[subscription].add_move(broker.rank, before, ack)
        move.begun_ms = broker.world.now
        return move

    def seeks_of(self, subscription: str) -> int:
        """Return how many seeks of a subscription were confirmed."""
        return sum(move.is_confirmed for move in self._histories[subscription].moves)

    def on_seek_refused(self, subscription: str, move: Move) -> None:
        """Note that a seek was refused before it did anything."""
        self._histories[subscription].moves.remove(move)

    def on_seek_confirmed(self, broker: TopicBroker, subscription: str, move: Move) -> None:
        """Check that brokers that took the topic over since know a seek that a broker confirms."""
        move.is_confirmed = True
        broker.world.count("seek confirmed")
        broker.world.note(broker.name, "confirms to", subscription, "a seek behind", move.before)
        for other in self.brokers:
            if other.is_serving and other.rank >= broker.rank:
                self._check_moves(other, subscription)

    def _check_moves(self, broker: TopicBroker, name: str) -> None:
        """Check that the mark is not before the end of a seek, and passed nothing but what it may."""
        assert broker.topic is not None, "it has opened it"
        history, subscription = self._histories[name], broker.topic.subscriptions.get(name)
        if subscription is None or not history.moves:
            return
        chain = broker.topic.ledger.chain
        mark = max(subscription.cursor.mark, chain.first)  # what it was at may be trimmed meanwhile
        for move in history.moves:
            behind = mark >= chain.after_or_before(move.before) or not history.is_passed(move.before, broker.rank)
            text = f"{broker.name}: the mark of {name} is before {move.before}, which a seek passed"
            self.judge.require(behind, "I11", text)
        if mark > chain.first:
            self._check_mark(broker, name, chain.first, mark)

    # -- dispatching

    def on_push(
        self,
        broker: TopicBroker,
        subscription: str,
        consumer: int,
        position: Position,
        entry: TopicEntry,
        count: int,
        bits: int | None,
        crashes: tuple[int, int] = (0, 0),
    ) -> None:
        """Check an entry that a broker sends to a consumer.

        Args:
            crashes: how often it was lost with a consumer, and how often as all that this had in hand.
        """
        place = f"{position.ledger_id}:{position.entry_id}"
        name = f"{broker.name} gives {place} to consumer {consumer} of {subscription}"
        broker.world.note(name)
        self._look(broker)
        if subscription != COMPACTED:  # which needs what compaction needs
            self._served.add(subscription)
        self.judge.require(not broker.is_lost, "I13", f"{name} after it knew that the topic is lost")
        self.judge.require(not broker.is_fenced, "I13", f"{name} after a bookie told it that it was replaced")
        if entry.deliver_at_ms and broker.topic is not None and broker.topic.subscriptions[subscription].kind.is_shared:
            self._check_time(name, broker, entry.deliver_at_ms)
        history = self._histories[subscription]
        passed = history.is_passed(position, broker.rank)
        self.judge.require(not passed, "I11", f"{name}, which a seek passed")
        for confirmed in self._durable[subscription, position]:
            again = not confirmed.ack.left or bits is None or bool(bits & ~confirmed.ack.left)
            knows = broker.rank >= confirmed.rank
            knows = knows and not history.is_void(position, confirmed.rank, confirmed.number, broker.rank)
            self.judge.require(not (again and knows), "I11", f"{name}, though its acknowledgement was confirmed")
        self.returns.on_push(name, broker, subscription, position, count)
        kind = None if broker.topic is None else broker.topic.subscriptions[subscription].kind
        places = places_of(((1 << entry.messages) - 1) if bits is None else bits)
        consumers = [] if broker.topic is None else broker.topic.subscriptions[subscription].consumers
        is_divided = kind is not None and kind.is_shared and subscription not in self.undivided
        may_exceed = not is_divided or len(consumers) < 2
        self.messages.on_push(name, consumer, len(places), may_exceed=may_exceed)
        if kind is not None and kind.is_shared:
            self.messages.on_counts(name, broker, (subscription, position), places, *crashes)
            self._check_messages(name, self._held[broker.name, subscription], consumer, position, entry, bits)
            refused = self._refused[subscription, position]
            least = min(refused[place] for place in places)
            self.judge.require(count <= least, "I22", f"{name} as redelivery {count}, refused {least} times")
        if subscription in self._key_shared:
            self._check_brokers(name, broker, subscription)
            keys, is_delayed = keys_of(entry.payload), entry.deliver_at_ms > 0
            for at in places:
                if subscription not in self.undivided:
                    self._check_key(name, broker, subscription, consumer, (position, at), keys[at], is_delayed)
                self._dispatched[broker.name, subscription].held[position, at] = consumer, keys[at]

    def on_crash(self, broker: TopicBroker, subscription: str, consumer: int) -> list[tuple[Position, list[int]]]:
        """Note that a consumer was lost with its connection, and return what it held: the messages of entries."""
        shared = self._held[broker.name, subscription].bits
        held = [(position, places_of(found)) for position, of in shared.items() if (found := of.get(consumer, 0))]
        self.messages.on_crash(subscription, consumer, held)
        return held

    def held_by(self, broker: TopicBroker, subscription: str, consumer: int, position: Position) -> int:
        """Return the messages of an entry that a consumer of a shared subscription holds, a bit each."""
        return self._held[broker.name, subscription].bits[position].get(consumer, 0)

    def _check_messages(
        self, name: str, state: Held, consumer: int, position: Position, entry: TopicEntry, bits: int | None
    ) -> None:
        """Check that no consumer holds a message that a broker sends."""
        given = (1 << entry.messages) - 1 if bits is None else bits
        held = state.bits[position]
        self.judge.require(not any(given & one for one in held.values()), "I22", f"{name}, of which {held} is held")
        held[consumer] = held.get(consumer, 0) | given
        self.store.world.count("part of a batch delivered", bits is not None)

    def _check_brokers(self, name: str, broker: TopicBroker, subscription: str) -> None:
        """Check that no later owner has delivered."""
        rank, newest = self._first_push.get(subscription, (broker.rank, broker.name))
        self.judge.require(broker.rank >= rank, "I16", f"{name} after {newest}, a later owner, began to")
        self._first_push[subscription] = max((rank, newest), (broker.rank, broker.name))

    def _check_time(self, name: str, broker: TopicBroker, due_ms: int) -> None:
        """Check that the time of delivery has come by the broker's clock."""
        broker.world.count("message delivered at its time")
        early_ms = due_ms - broker.wall_ms()
        self.judge.require(early_ms <= 0, DELAY, f"{name}, {early_ms} ms before its time")

    def _check_key(
        self,
        name: str,
        broker: TopicBroker,
        subscription: str,
        consumer: int,
        place: Place,
        key: str,
        is_delayed: bool,
    ) -> None:
        """Check that no other consumer holds a message of the key, also of another broker that runs, and the order."""
        require, state, name = self.judge.require, self._dispatched[broker.name, subscription], f"{name}: {place[1]}"
        others = [one for one, (holder, held_key) in state.held.items() if held_key == key and holder != consumer]
        require(not others, "I16", f"{name}, while another holds {others[:1]} of the same key")
        for other in self.brokers:
            if other is broker or not other.is_serving or other.paused_until > broker.world.now - STOOD_STILL_MS:
                continue  # one that stands still takes back what its consumers hold once it goes on
            held = self._dispatched[other.name, subscription].held
            others = [one for one, (_, held_key) in held.items() if held_key == key]
            require(not others, "I16", f"{name}, while a consumer of {other.name} holds {others[:1]}")
        require(place not in state.held, "I16", f"{name}, which it holds already")
        earlier = min(state.returned[key], default=place)
        require(earlier >= place, "I16", f"{name}, before {earlier} of the same key, which came back")
        if place not in state.seen and not is_delayed:  # what was delayed comes after what was not
            newest = state.newest.get(key, (NOWHERE, 0))
            require(place > newest, "I16", f"{name}, after {newest} of the same key")
            state.newest[key] = place
        state.seen.add(place)
        state.returned[key].discard(place)

    def on_ack_arrived(self, broker: TopicBroker, subscription: str, ack: Ack) -> int:
        """Note an acknowledgement that reached the broker, which may now send the key to another consumer.

        Returns:
            its number among the steps of the subscription.
        """
        self._release(broker, subscription, ack)
        return self._histories[subscription].add_ack(broker.rank, ack)

    def _release(self, broker: TopicBroker, subscription: str, ack: Ack) -> None:
        self._held[broker.name, subscription].release(ack.position, ~ack.left if ack.left else ALL)
        self._dispatched[broker.name, subscription].forget(
            lambda place: place[0] == ack.position and not ack.left >> place[1] & 1
        )

    def on_return(
        self,
        broker: TopicBroker,
        subscription: str,
        consumer: int,
        positions: Iterable[Position] | None,
        bits: int = 0,
    ) -> None:
        """Note that a consumer gave these entries back (None: all), of each the messages in ``bits`` (0: all), without
        an acknowledgement."""
        shared = self._held[broker.name, subscription]
        for position in list(shared.bits) if positions is None else positions:
            if positions is not None:
                returned = shared.bits[position].get(consumer, 0) & (bits or ALL)
                self._refused[subscription, position].update(places_of(returned))
            shared.release(position, bits or ALL, consumer)
        state, named = self._dispatched[broker.name, subscription], None if positions is None else set(positions)
        for place, (holder, key) in list(state.held.items()):
            if holder == consumer and (named is None or (place[0] in named and (bits or ALL) >> place[1] & 1)):
                del state.held[place]
                state.returned[key].add(place)

    # -- readers

    def on_reader_push(self, broker: TopicBroker, reader: str, position: Position) -> None:
        """Check an entry that a broker sends to a reader."""
        name = f"{broker.name} gives {position.ledger_id}:{position.entry_id} to {reader}"
        broker.world.note(name)
        self.judge.require(not broker.is_lost, "I13", f"{name} after it knew that the topic is lost")
        self.judge.require(not broker.is_fenced, "I13", f"{name} after a bookie told it that it was replaced")

    def on_read(self, reader: str, last: Position, position: Position, label: str) -> None:
        """Check an entry that a reader gets after ``last``: every receipt between them is of a ledger that is gone."""
        self.store.world.count("entry read by a reader")
        name = f"{reader} gets {label} at {position.ledger_id}:{position.entry_id}"
        producer, _, number = label.partition(":")
        self.judge.require((producer, int(number)) in self._published, READING, f"{name}, which nobody sent")
        skipped = [at for at in self.receipts if last < at < position and at.ledger_id not in self.keeping.trimmed]
        self.judge.require(not skipped, READING, f"{name} after {last}, and never {skipped[:1]}")

    def check_read(
        self, reader: str, read: Sequence[tuple[Position, str]], contents: Sequence[tuple[Position, bytes]]
    ) -> None:
        """Check all that a reader got against all that the topic has and had."""
        had = dict(read)
        assert len(had) == len(read), "it drops what it had"
        expected = [
            (position, label_of(section))
            for position, section in (*self.keeping.gone, *contents)
            if position in had or position.ledger_id not in self.keeping.trimmed
        ]
        wrong = next((pair for pair in zip_longest(read, expected) if pair[0] != pair[1]), None)
        self.judge.require(
            wrong is None, READING, f"{reader} got {wrong and wrong[0]} in the place of {wrong and wrong[1]}"
        )

    # -- the end of a run

    def name_of(self, section: bytes) -> str:
        """Return what an entry of the topic is called: "producer:number"."""
        return label_of(section)

    def may_follow(self, producer: str, number: int, last: int) -> bool:
        """Whether the topic may have an entry of a producer after those up to ``last``."""
        return number == last + 1 if self.is_deduplicated else number <= last + 1

    def at_end(self, broker: TopicBroker, contents: list[tuple[Position, bytes]]) -> None:
        """Check that the whole chain holds each producer's messages in order. Everything is healed."""
        require = self.judge.require
        found: dict[Position, str] = {}
        newest: dict[str, int] = {}
        messages = stored_ms = 0
        for position, section in (*self.keeping.gone, *contents):
            noted = broker_metadata_of(section)
            text = f"{position.ledger_id}:{position.entry_id} was stored at {noted.broker_timestamp}"
            require(stored_ms <= noted.broker_timestamp, "I21", f"{text}, and an earlier entry at {stored_ms}")
            stored_ms = noted.broker_timestamp
            metadata, text = split(section)[0], self.name_of(section)
            if self.is_counted:
                messages += metadata.num_messages_in_batch
                index = noted.index
                require(index == messages - 1, "I12", f"{text} has the index {index}, not {messages - 1}")
            found[position] = text
            producer, _, digits = text.partition(":")
            number = int(digits)
            known = (producer, number) in self._published
            require(known, "I1", f"{position.ledger_id}:{position.entry_id} reads {text}, which nobody sent")
            last = newest.get(producer, 0)
            in_order = self.may_follow(producer, number, last)
            place = f"{position.ledger_id}:{position.entry_id}"
            require(in_order, "I12", f"{text} at {place} comes after {last} of that producer")
            newest[producer] = max(last, number)
        for position, (producer, number, _) in self.receipts.items():
            text = f"{position.ledger_id}:{position.entry_id} reads {found.get(position)}"
            require(found.get(position) == f"{producer}:{number}", "I1", f"{text}, not {producer}:{number}")
        lost = sorted(told for told in self._told if told[1] > newest.get(told[0], 0))
        require(not lost, "I1", f"{lost[:1]} was said to be stored before, and is not")
        assert broker.topic is not None, "it serves it"
        durable = {name: one for name, one in broker.topic.subscriptions.items() if one.is_durable}
        for name, subscription in durable.items():
            for confirmed in self.confirmed[name]:
                self._check_durable(broker, name, confirmed)
            self._check_moves(broker, name)
            drained = subscription.cursor.mark == subscription.chain.end or subscription.is_internal
            require(drained, LIVENESS, f"{name} is not at the end")
