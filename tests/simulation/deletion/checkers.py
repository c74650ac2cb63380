"""Checks of deletions: marks, what is left behind a record that goes, and receipts of a deleted topic.

They read the store's nodes as they change, and share no code with the broker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_record import DELETING
from heliograph.base.errors import BadRequestError, HeliographError, NamespaceNotFoundError, NotFoundError
from heliograph.metadata import codec, paths
from heliograph.metadata.model import NamespacePolicies, PartitionedTopicRecord, TopicRecord
from heliograph.metadata.store import Create, Delete, Operation, Set
from tests.simulation.checkers.judge import DELETION, Judge
from tests.simulation.cluster.bookie import SimulatedBookie
from tests.simulation.cluster.store import Author, Change, SimulatedStore

NAMESPACE = "public/default"
PARTITIONED, PLAIN = "many", "orders"
NAMESPACE_PATH = paths.namespace(*NAMESPACE.split("/"))
PARTITIONED_PATH = paths.partitioned_topic("public", "default", PARTITIONED)
PLAIN_PATH = paths.topic("public", "default", PLAIN)
PARTITIONS_BEFORE = f"{paths.topic('public', 'default', PARTITIONED)}-partition-"
TOPICS_FOLDER = PLAIN_PATH.rpartition("/")[0]
PARTITIONED_FOLDER = PARTITIONED_PATH.rpartition("/")[0]
Names = tuple[int, int]  # which creation of a record, and which mark of it, 0 for none


class _Returns:
    """The redelivery counts of consumers, which other worlds check."""

    def number_of(self, subscription: str) -> int:
        return 0

    def on_stored(self, *rest: Any) -> None:
        """Do nothing."""


class _Uncounted:
    """Takes what clients say of their messages: deletions count none."""

    def __getattr__(self, name: str) -> Any:
        return lambda *_, **__: None


class DeletionCheckers:
    """The checkers of one run."""

    def __init__(
        self, store: SimulatedStore, judge: Judge, bookies: Mapping[str, SimulatedBookie], *rest: Any, **options: Any
    ) -> None:
        self.is_deduplicated = self.is_counted = False
        self.undivided: set[str] = set()  # read by the clients of the world of topics
        self.returns = _Returns()
        self.messages = _Uncounted()
        self.confirmed_messages = 0
        self.creators: set[str] = set()  # brokers that began to create the partitioned topic, and did not end
        self._store = store
        self._world = store.world
        self._judge = judge
        self._bookies = bookies
        self._births: dict[str, int] = {}  # record -> the step in which it was created, while it exists
        self._marks: dict[str, int] = {}  # record -> the step in which it was marked, while it is
        self._gone: dict[str, tuple[int, int]] = {}  # record -> step of its last deletion, last ledger id then
        self._sent: dict[tuple[str, int], int] = {}  # producer, number of a message -> step in which it was last sent
        store.on_nodes.append(self._on_nodes)
        store.watchers.append(self._on_ledger)

    # -- records

    def state_of(self, path: str) -> Names:
        """Return what a caller remembers of a record when a call begins."""
        return self._births.get(path, 0), self._marks.get(path, 0)

    def left(self) -> list[str]:
        """Return the paths of all records of topics and partitioned topics."""
        folders = (TOPICS_FOLDER, PARTITIONED_FOLDER)
        return [f"{folder}/{name}" for folder in folders for name in self._children(folder)]

    def is_marked(self) -> bool:
        """Whether any deletion began and did not end."""
        return bool(self._marks.keys() & {PARTITIONED_PATH, NAMESPACE_PATH})

    def _children(self, path: str) -> list[str]:
        return self._store.tree.children(path) if self._store.tree.find(path) is not None else []

    def _on_nodes(self, author: Author, operations: Sequence[Operation]) -> None:
        written = {one.path for one in operations if isinstance(one, Set)}
        for one in operations:
            if one.path == PARTITIONED_PATH:
                self._on_record(one, PartitionedTopicRecord)
            elif one.path == NAMESPACE_PATH:
                self._on_record(one, NamespacePolicies)
            elif one.path.rpartition("/")[0] == TOPICS_FOLDER:
                self._on_record(one, TopicRecord)
                if isinstance(one, Create) and one.path.startswith(PARTITIONS_BEFORE):
                    may_be = PARTITIONED_PATH in written or author.process in self.creators
                    self._require(may_be, f"{author} creates {one.path} without its topic")

    def _on_record(self, change: Operation, kind: type[Any]) -> None:
        path = change.path
        if isinstance(change, Delete):
            self._on_deleted(path)
        elif isinstance(change, Create | Set):
            record = codec.decode(kind, change.value)
            if isinstance(change, Create):
                self._births[path] = self._world.steps
                is_closing = kind is not NamespacePolicies and NAMESPACE_PATH in self._marks
                self._require(not is_closing, f"{path} is created in a namespace that is being deleted")
            is_marked = _is_marked(record)
            if isinstance(record, NamespacePolicies) and not is_marked:
                self._marks.pop(path, None)  # a deletion without force was refused
            self._require(is_marked or path not in self._marks, f"{path} is written without its mark")
            if is_marked and path not in self._marks:
                self._marks[path] = self._world.steps
                self._world.count("record marked")
            if isinstance(record, TopicRecord):
                old = [info.ledger_id for info in record.ledgers if info.ledger_id <= self._gone.get(path, (0, -1))[1]]
                self._require(not old, f"{path} names ledgers {old} of a topic that was deleted")

    def _on_deleted(self, path: str) -> None:
        self._world.count("record deleted")
        self._world.note("goes:", path)
        self._require(path in self._marks, f"{path} goes without a mark")
        left: list[str] = []
        if path == PARTITIONED_PATH:
            left = [name for name in self.left() if name.startswith(PARTITIONS_BEFORE)]
        elif path == NAMESPACE_PATH:
            left = self.left()
        self._require(not left, f"{path} goes, and {left} are left")
        self._marks.pop(path, None)
        self._births.pop(path, None)
        self._gone[path] = self._world.steps, self._store.last_ledger_id()

    def _on_ledger(self, change: Change) -> None:
        """Check that a ledger that is deleted is in no topic that is to stay."""
        if change.after is not None or change.before is None:
            return
        for name in self._children(TOPICS_FOLDER):
            record = codec.decode(TopicRecord, self._store.tree.node(f"{TOPICS_FOLDER}/{name}").value)
            named = change.before.ledger_id in {info.ledger_id for info in record.ledgers}
            text = f"{change.author} deletes ledger {change.before.ledger_id} of {name}"
            self._require(not named or DELETING in record.properties, text)

    # -- calls

    def on_found(self, path: str, before: Names) -> None:
        """Check that a look-up, or a creation, that began below a mark did not succeed below it."""
        is_refused = not before[1] or self.state_of(path) != before
        self._require(is_refused, f"{path} is found while it is being deleted")

    def on_refused(self, path: str, before: Names, error: HeliographError) -> None:
        """Check the error of a look-up that began and ended below a mark: a client has to try again."""
        if before[1] and self.state_of(path) == before:
            self._world.count("use refused below a mark")
            is_final = isinstance(error, NotFoundError | BadRequestError)
            fits = not is_final or (isinstance(error, NamespaceNotFoundError) and NAMESPACE_PATH in self._marks)
            self._require(fits, f"a client hears {type(error).__name__} of {path} while it is being deleted")

    def on_confirmed(self, path: str, before: Names) -> None:
        """Check that what a broker calls deleted is not there any more."""
        self._world.count("deletion confirmed")
        is_there = before[0] and self.state_of(path)[0] == before[0]
        self._require(not is_there, f"the deletion of {path} is confirmed, and it is there")

    # -- clients

    def on_publish(self, name: str, number: int) -> None:
        """Note that a producer sends a message, perhaps again."""
        self._sent[name, number] = self._world.steps

    def on_receipt(self, broker: Any, link: Any, name: str, number: int, position: Position) -> None:
        """Check a receipt: a message that was sent after a deletion is in the topic that was made afterwards."""
        self.confirmed_messages += 1
        topic = self._store.history[position.ledger_id][-1].properties["topic"]
        step, last = self._gone.get(f"{TOPICS_FOLDER}/{topic.rpartition('/')[2]}", (0, -1))
        text = f"{name} gets a receipt for {position} of {topic}, which was deleted before it sent message {number}"
        self._require(self._sent[name, number] < step or position.ledger_id > last, text)

    # -- the end

    def at_last(self) -> None:
        """Check that nothing is left of any topic."""
        self._require(not (left := self.left()), f"{left} are left")
        self._require(not (ledgers := self._store.ledgers()), f"ledgers {ledgers} are left")

    def at_bookies(self) -> None:
        """Check that no bookie has anything left once it collected."""
        for bookie in self._bookies.values():
            self._require(not (kept := bookie.known_ledgers()), f"{bookie.name} keeps ledgers {sorted(kept)}")

    def _require(self, holds: object, text: str) -> None:
        self._judge.require(bool(holds), DELETION, text)

    # -- told by faults and clients, and checked in other worlds

    def after_step(self) -> None:
        """Do nothing."""

    def confirmed_to(self, ledger_id: int) -> int:
        return -1

    def held_by(self, *rest: Any) -> int:
        return 0

    def on_ack_arrived(self, *rest: Any) -> int:
        return 0

    def on_crash(self, *rest: Any) -> list[Any]:
        return []

    def _ignore(self, *rest: Any) -> None:
        """Do nothing."""

    on_collect = on_push = on_return = on_ack = on_ack_confirmed = _ignore


def _is_marked(record: Any) -> bool:
    if isinstance(record, TopicRecord):
        return DELETING in record.properties
    if isinstance(record, NamespacePolicies):
        return record.is_closing or record.is_deleted
    return bool(record.is_deleting)
