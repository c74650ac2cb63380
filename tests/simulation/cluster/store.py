"""The metadata store of a simulation: the real tree of nodes behind a network that loses requests and replies.

Every change of a ledger's record is kept with its author, for the checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from heliograph.metadata import codec, paths
from heliograph.metadata.chain_records import ChainPiece, PieceRef
from heliograph.metadata.errors import BadVersionError, MetadataError, NodeExistsError, NoNodeError
from heliograph.metadata.model import LedgerInfo, LedgerMetadata, TopicRecord, Versioned
from heliograph.metadata.store import ANY_VERSION, Create, Operation, Set
from heliograph.metadata.store import Delete as DeleteNode
from heliograph.metadata.tree import Result, ZnodeTree
from heliograph.metadata.znode import parent_of
from tests.simulation.cluster.network import Network
from tests.simulation.world import Action, Process, World

R = TypeVar("R")
TOPIC = paths.topic("public", "default", "simulated")
REQUEST_TIMEOUT_MS = 800


@dataclass(frozen=True, slots=True)
class Author:
    """The author of a change: a core of a process. ``number`` distinguishes the cores of a process."""

    process: str
    core: str = ""
    number: int = 0

    def __str__(self) -> str:
        return f"{self.process}/{self.core}" if self.core else self.process


@dataclass(frozen=True, slots=True)
class Change:
    """One change of a ledger's record. ``before`` is None for its creation, ``after`` for its deletion."""

    author: Author
    before: LedgerMetadata | None
    after: LedgerMetadata | None


class Brief:
    """A record in a line of the trace. It is formatted only if the run is traced."""

    __slots__ = ("_record",)

    def __init__(self, record: LedgerMetadata) -> None:
        self._record = record

    def __str__(self) -> str:
        record = self._record
        segments = ", ".join(f"{s.first_entry_id}: {' '.join(s.bookies)}" for s in record.segments)
        end = f", ends at {record.last_entry_id}, length {record.length}" if record.is_closed else ""
        return f"ledger {record.ledger_id} is {record.state.value}, segments {segments}{end}"


class SimulatedStore(Process):
    """The store's process, which holds the tree."""

    def __init__(self, world: World, network: Network) -> None:
        super().__init__("store")
        self.world = world
        self.network = network
        self.random = world.stream("store")
        self.tree = ZnodeTree()
        self.tree.open_session(1, "", 1 << 60, 0)
        self.on_change: Callable[[Change], None] = lambda change: None
        self.watchers: list[Callable[[Change], None]] = []  # faults that wait for a change
        self.on_nodes: list[Callable[[Author, Sequence[Operation]], None]] = []  # after each change by a session
        self.on_topic: list[Callable[[TopicRecord, TopicRecord], None]] = []
        self._topic: Versioned[TopicRecord] | None = None  # as decoded last
        self.history: dict[int, list[LedgerMetadata]] = {}  # every record that a ledger ever had
        self.author = Author("nobody")  # of the latest change
        self._pieces: dict[int, ChainPiece] = {}  # of the topic's chain, as they were created
        self.make_parents(TOPIC)
        self._apply(Create(paths.LEDGER_IDS))
        self.tree.apply(1, [Create(TOPIC, codec.encode(TopicRecord("simulated")))], 0)

    # -- read by checkers and faults, without a request

    def ledger(self, ledger_id: int) -> Versioned[LedgerMetadata] | None:
        """Return the record as stored now."""
        node = self.tree.find(paths.ledger(ledger_id))
        if node is None:
            return None
        return Versioned(self.history[ledger_id][-1], node.version)

    def topic(self) -> Versioned[TopicRecord]:
        """Return the topic's record as stored now."""
        node = self.tree.node(TOPIC)
        if self._topic is None or self._topic.version != node.version:
            self._topic = Versioned(codec.decode(TopicRecord, node.value), node.version)
        return self._topic

    def chain(self, record: TopicRecord) -> list[LedgerInfo]:
        """Return all ledgers of the topic, oldest first. A piece whose node is gone is known from before."""
        return [row for ref in record.pieces for row in self._rows(ref)] + list(record.ledgers)

    def _rows(self, ref: PieceRef) -> list[LedgerInfo]:
        if ref.number not in self._pieces:
            node = self.tree.node(paths.chain_piece(TOPIC, ref.number))
            self._pieces[ref.number] = codec.decode(ChainPiece, node.value)
        piece = self._pieces[ref.number]
        rows = [row for part in piece.pieces for row in self._rows(part)]
        rows += map(LedgerInfo, piece.ledger_ids, piece.entries, piece.sizes, piece.closed_ms)
        return [row for row in rows if row.ledger_id >= ref.first_id]

    def ledgers(self) -> list[int]:
        """Return the records of all ledgers, in the order of their creation."""
        return [ledger_id for ledger_id in self.history if self.tree.find(paths.ledger(ledger_id)) is not None]

    def last_ledger_id(self) -> int:
        """Return the greatest ledger id that was given out."""
        return self.tree.node(paths.LEDGER_IDS).version

    def ledgers_naming(self, bookie_id: str) -> list[LedgerMetadata]:
        """Return the ledgers with a segment on the bookie."""
        records = [self.history[ledger_id][-1] for ledger_id in self.ledgers()]
        return [record for record in records if any(bookie_id in segment.bookies for segment in record.segments)]

    # -- requests of processes

    def ask(self, client: Process, execute: Callable[[], R], answer: Callable[[R], None], unknown: Action) -> None:
        """Send a request. Exactly one of ``answer`` and ``unknown`` happens to ``client`` in the end.

        ``unknown``: the store did not answer in time, and may or may not have done the request.
        """
        is_answered = False

        def once(action: Callable[[], None]) -> None:
            nonlocal is_answered
            if not is_answered:
                is_answered = True
                action()

        def at_store() -> None:
            result = execute()
            if self.loses_reply():
                return
            self.network.send(self, client, lambda: once(lambda: answer(result)), "metadata")

        self.network.send(client, self, at_store, "metadata")
        self.world.after(REQUEST_TIMEOUT_MS, lambda: once(unknown), client)

    def loses_reply(self) -> bool:
        """Whether the reply to the present request is lost."""
        is_lost = not self.network.is_healed and self.random.random() < self.network.profile.reply_loss_metadata
        self.world.count("metadata reply lost", is_lost)
        return is_lost

    def change(self, author: Author, *operations: Operation) -> list[Result]:
        """Do operations of a session on any kind of nodes, all or none.

        Raises:
            MetadataError: one of them cannot be done; nothing has changed.
        """
        before = {ledger_id: self.ledger(ledger_id) for one in operations if (ledger_id := _ledger_of(one))}
        topic = self.topic().record if any(one.path == TOPIC for one in operations) else None
        try:
            results = self.tree.apply(1, list(operations), self.world.now).results
        except MetadataError:
            self.world.count("metadata conflict")
            raise
        self.author = author
        for told in list(self.on_nodes):
            told(author, operations)
        for one in operations:
            if ledger_id := _ledger_of(one):
                after = None
                if not isinstance(one, DeleteNode):
                    after = codec.decode(LedgerMetadata, self.tree.node(one.path).value)
                    self.history.setdefault(ledger_id, []).append(after)
                    self.world.note("store has from", author, Brief(after))
                ledger = before[ledger_id]
                self._tell(Change(author, ledger.record if ledger else None, after))
        if topic is not None:
            self._tell_topic(topic, self.topic().record)
        return results

    def next_ledger_id(self) -> int:
        """Return the next ledger id: the new version of the counter's node, as in the recipe."""
        return self._apply(Set(paths.LEDGER_IDS, b"", ANY_VERSION))[0].version  # type: ignore[union-attr]

    def write_ledger(self, author: Author, record: LedgerMetadata, version: int) -> int | MetadataError:
        """Compare-and-set a record. Return the new version or the error. ``version`` -1 creates."""
        path = paths.ledger(record.ledger_id)
        before = self.ledger(record.ledger_id)
        operation: Operation = Set(path, codec.encode(record), version)
        if version < 0:
            self.make_parents(path)
            operation = Create(path, codec.encode(record))
        try:
            self._apply(operation)
        except (BadVersionError, NoNodeError, NodeExistsError) as error:
            self.world.count("metadata conflict")
            return error
        self.history.setdefault(record.ledger_id, []).append(record)
        self.world.note("store has from", author, Brief(record))
        self._tell(Change(author, before.record if before else None, record))
        return self.tree.node(path).version

    def delete_ledger(self, author: Author, ledger_id: int) -> None:
        """Delete the record, if there is one."""
        before = self.ledger(ledger_id)
        if before is not None:
            self.world.note("store has from", author, "deletion of ledger", ledger_id)
            self._apply(DeleteNode(paths.ledger(ledger_id)))
            self._tell(Change(author, before.record, None))

    def write_topic(self, record: TopicRecord, version: int) -> int | MetadataError:
        """Compare-and-set the topic's list of ledgers."""
        before = self.topic().record
        try:
            self._apply(Set(TOPIC, codec.encode(record), version))
        except BadVersionError as error:
            self.world.count("metadata conflict")
            return error
        self._tell_topic(before, record)
        return self.tree.node(TOPIC).version

    def _tell(self, change: Change) -> None:
        self.on_change(change)
        for watcher in list(self.watchers):
            watcher(change)

    def _tell_topic(self, before: TopicRecord, after: TopicRecord) -> None:
        self.world.note("the topic's ledgers:", [*after.pieces], [info.ledger_id for info in after.ledgers])
        for listener in list(self.on_topic):
            listener(before, after)

    def _apply(self, operation: Operation) -> list[Result]:
        return self.tree.apply(1, [operation], self.world.now).results

    def make_parents(self, path: str) -> None:
        """Create the parents of a node that are missing."""
        parent = parent_of(path)
        if self.tree.find(parent) is None:
            self.make_parents(parent)
            self._apply(Create(parent))


def _ledger_of(operation: Operation) -> int:
    return paths.ledger_id_of(operation.path) if operation.path.startswith(f"{paths.LEDGERS}/") else 0
