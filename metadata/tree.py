"""The store's state machine: nodes, sessions and transactions with ZooKeeper's semantics. No I/O, no clock.

Every change is one transaction with the next ``zxid``; it happens wholly or not at all and tells which watch events
it causes and which nodes and sessions a durable copy has to write again. Watches themselves are kept elsewhere
(``metadata/watches.py``). Durations run on whatever clock the caller passes as ``now_ms``; ``wall_ms`` is only stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from metadata.errors import (
    BadVersionError,
    MetadataError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    Set,
    Stat,
    WatchEvent,
)
from metadata.znode import ROOT, Znode, check_operation, check_path, name_of, parent_of

Result = str | Stat | None


@dataclass(slots=True)
class Session:
    """One client's session. It is over when ``deadline_ms`` passes without a touch."""

    session_id: int
    password: str
    timeout_ms: int
    deadline_ms: int
    ephemerals: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Transaction:
    """What one change did: results per operation, events in order, paths and session ids to be made durable."""

    zxid: int
    results: list[Result]
    events: list[WatchEvent]
    paths: list[str]
    sessions: list[int]


class ZnodeTree:
    """All nodes and sessions of one store."""

    def __init__(self) -> None:
        self.zxid = 0
        self.nodes: dict[str, Znode] = {ROOT: Znode(b"", 0, 0, 0, 0, 0, 0, 0, 0)}
        self.sessions: dict[int, Session] = {}

    @classmethod
    def restored(cls, zxid: int, nodes: Iterable[tuple[str, Znode]], sessions: Iterable[Session]) -> ZnodeTree:
        """A tree with the given content; the links between nodes and to their sessions are made anew.

        Every node's parent and every ephemeral's session must be among the content.
        """
        tree = cls()
        tree.zxid = zxid
        tree.nodes.update(nodes)
        tree.sessions = {session.session_id: session for session in sessions}
        for path, node in tree.nodes.items():
            if path == ROOT:
                continue
            _add_child(tree.nodes[parent_of(path)], name_of(path))
            if node.ephemeral_owner:
                tree.sessions[node.ephemeral_owner].ephemerals.add(path)
        return tree

    def node(self, path: str) -> Znode:
        """The node at ``path``.

        Raises:
            NoNodeError, InvalidPathError.
        """
        node = self.nodes.get(path)
        if node is None:
            check_path(path)
            raise NoNodeError(f"no node {path}")
        return node

    def find(self, path: str) -> Znode | None:
        """The node at ``path``, or None.

        Raises:
            InvalidPathError.
        """
        node = self.nodes.get(path)
        if node is None:
            check_path(path)
        return node

    def children(self, path: str) -> list[str]:
        """Sorted names of the children.

        Raises:
            NoNodeError, InvalidPathError.
        """
        return sorted(self.node(path).children or ())

    def apply(self, session_id: int, operations: Sequence[Operation], wall_ms: int) -> Transaction:
        """Do all operations, in order, or none.

        Raises:
            SessionExpiredError: there is no such session.
            MetadataError: of the first operation that cannot be done, with its ``operation_index``.
        """
        if session_id not in self.sessions:
            raise SessionExpiredError(f"session {session_id:#x} is over")
        for index, operation in enumerate(operations):
            check_operation(operation, index)
        draft = _Draft(self, session_id, wall_ms)
        for index, operation in enumerate(operations):
            try:
                draft.results.append(draft.run(operation))
            except MetadataError as error:
                draft.roll_back()
                error.operation_index = index
                raise
        return draft.commit([])

    def open_session(self, session_id: int, password: str, timeout_ms: int, now_ms: int) -> Transaction:
        """Begin a session under an id that was never used."""
        assert session_id > 0, "0 means 'no session'"
        assert session_id not in self.sessions, "session ids are never used twice"
        self.sessions[session_id] = Session(session_id, password, timeout_ms, now_ms + timeout_ms)
        return _Draft(self, session_id, 0).commit([session_id])

    def end_session(self, session_id: int, wall_ms: int) -> Transaction:
        """End a session and delete its ephemerals, in one transaction.

        Raises:
            SessionExpiredError: it is over already.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise SessionExpiredError(f"session {session_id:#x} is over")
        draft = _Draft(self, session_id, wall_ms)
        for path in sorted(session.ephemerals):
            draft.run(Delete(path))
        del self.sessions[session_id]
        return draft.commit([session_id])

    def touch(self, session_id: int, now_ms: int) -> bool:
        """Give the session its full timeout from now on; False when it is over."""
        session = self.sessions.get(session_id)
        if session is None:
            return False
        session.deadline_ms = now_ms + session.timeout_ms
        return True

    def expired(self, now_ms: int) -> list[int]:
        """Sessions whose time is up; they stay until ``end_session``."""
        return [session.session_id for session in self.sessions.values() if session.deadline_ms <= now_ms]

    def postpone_expiry(self, delay_ms: int) -> None:
        """Move every session's deadline, after a time in which nobody could be heard."""
        for session in self.sessions.values():
            session.deadline_ms += delay_ms


class _Draft:
    """A transaction under way: it changes the tree at once and keeps what takes the changes back."""

    def __init__(self, tree: ZnodeTree, session_id: int, wall_ms: int) -> None:
        self._tree = tree
        self._session_id = session_id
        self._wall_ms = wall_ms
        self._zxid = tree.zxid + 1
        self._undo: list[Callable[[], object]] = []
        self._events: list[WatchEvent] = []
        self._paths: dict[str, None] = {}
        self.results: list[Result] = []

    def run(self, operation: Operation) -> Result:
        match operation:
            case Create():
                return self._create(operation)
            case Set():
                return self._set(operation)
            case Delete():
                self._delete(operation)
            case Check():
                self._checked(operation.path, operation.version)
        return None

    def commit(self, sessions: list[int]) -> Transaction:
        self._tree.zxid = self._zxid
        return Transaction(self._zxid, self.results, self._events, list(self._paths), sessions)

    def roll_back(self) -> None:
        for step in reversed(self._undo):
            step()

    def _create(self, operation: Create) -> str:
        nodes, path = self._tree.nodes, operation.path
        if path == ROOT and not operation.sequence:
            raise NodeExistsError("the root always exists")
        parent_path = parent_of(path)
        parent = nodes.get(parent_path)
        if parent is None:
            raise NoNodeError(f"no node {parent_path}, so {path} cannot be created in it")
        if operation.sequence:
            path = f"{path}{parent.creations:010d}"
        if path in nodes:
            raise NodeExistsError(f"{path} exists")
        if parent.ephemeral_owner:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and cannot have children")
        owner = self._session_id if operation.ephemeral else 0
        zxid, wall = self._zxid, self._wall_ms
        nodes[path] = Znode(operation.value, zxid, zxid, zxid, 0, 0, owner, wall, wall)
        self._undo.append(lambda: nodes.pop(path))
        if owner:
            ephemerals = self._tree.sessions[owner].ephemerals
            ephemerals.add(path)
            self._undo.append(lambda: ephemerals.discard(path))
        self._change_children(parent, name_of(path), created=True)
        self._note(EventType.CREATED, path, parent_path)
        return path

    def _set(self, operation: Set) -> Stat:
        node = self._checked(operation.path, operation.version)
        value, version, mzxid, modified_ms = node.value, node.version, node.mzxid, node.modified_ms

        def undo() -> None:
            node.value, node.version, node.mzxid, node.modified_ms = value, version, mzxid, modified_ms

        self._undo.append(undo)
        node.value = operation.value
        node.version += 1
        node.mzxid = self._zxid
        node.modified_ms = self._wall_ms
        self._note(EventType.CHANGED, operation.path, None)
        return node.stat()

    def _delete(self, operation: Delete) -> None:
        nodes, path = self._tree.nodes, operation.path
        node = self._checked(path, operation.version)
        if node.children:
            raise NotEmptyError(f"{path} has {len(node.children)} children")
        del nodes[path]
        self._undo.append(lambda: nodes.__setitem__(path, node))
        if node.ephemeral_owner:
            ephemerals = self._tree.sessions[node.ephemeral_owner].ephemerals
            ephemerals.discard(path)
            self._undo.append(lambda: ephemerals.add(path))
        parent_path = parent_of(path)
        self._change_children(nodes[parent_path], name_of(path), created=False)
        self._note(EventType.DELETED, path, parent_path)

    def _checked(self, path: str, version: int) -> Znode:
        node = self._tree.node(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        return node

    def _change_children(self, parent: Znode, name: str, *, created: bool) -> None:
        pzxid, creations = parent.pzxid, parent.creations
        if created:
            _add_child(parent, name)
            parent.creations += 1
        else:
            _remove_child(parent, name)
        parent.pzxid = self._zxid

        def undo() -> None:
            parent.pzxid, parent.creations = pzxid, creations
            if created:
                _remove_child(parent, name)
            else:
                _add_child(parent, name)

        self._undo.append(undo)

    def _note(self, kind: EventType, path: str, parent_path: str | None) -> None:
        self._paths[path] = None
        self._events.append(WatchEvent(kind, path))
        if parent_path is not None:
            self._paths[parent_path] = None
            self._events.append(WatchEvent(EventType.CHILD, parent_path))


def _add_child(parent: Znode, name: str) -> None:
    if parent.children is None:
        parent.children = set()
    parent.children.add(name)


def _remove_child(parent: Znode, name: str) -> None:
    assert parent.children is not None, "a node that has a child has a set of children"
    parent.children.remove(name)
    if not parent.children:
        parent.children = None
