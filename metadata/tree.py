"""The store's state machine: nodes, sessions and transactions with ZooKeeper's semantics. No I/O, no clock.

Every change is one transaction with the next ``zxid``. It happens wholly or not at all, and names the watch events that
it causes and the nodes and sessions that a durable copy has to write again. Watches are kept in
``metadata/session/watches.py``. Durations are measured by the clock that the caller passes as ``now_ms``; ``wall_ms``
is only stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice

from heliograph.metadata.errors import (
    BadVersionError,
    MetadataError,
    NoChildrenForEphemeralsError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    SessionExpiredError,
)
from heliograph.metadata.store import (
    ANY_VERSION,
    Check,
    Create,
    Delete,
    EventType,
    Operation,
    Reap,
    Set,
    Stat,
    WatchEvent,
)
from heliograph.metadata.znode import ROOT, Znode, check_operation, check_path, is_due, name_of, parent_of

Result = str | Stat | None


@dataclass(slots=True)
class TreeSession:
    """One client's session. It may be ended when ``deadline_ms`` passes without a touch.

    ``owner`` names the client that took it over last, "" for the one that began it: others may not use it.
    """

    session_id: int
    password: str
    timeout_ms: int
    deadline_ms: int
    ephemerals: set[str] = field(default_factory=set)
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TreeTransaction:
    """The effects of one change: a result per operation, events in order, paths and session ids to be made durable."""

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
        self.sessions: dict[int, TreeSession] = {}
        self._reaped: set[str] = set()  # the paths of containers and of nodes with a time to live

    @classmethod
    def restored(cls, zxid: int, nodes: Iterable[tuple[str, Znode]], sessions: Iterable[TreeSession]) -> ZnodeTree:
        """Return a tree with the given nodes and sessions, and build the links between them.

        Every node's parent and every ephemeral's session must be among them.
        """
        tree = cls()
        tree.zxid = zxid
        tree.nodes.update(nodes)
        tree.sessions = {session.session_id: session for session in sessions}
        for path, node in tree.nodes.items():
            if path == ROOT:
                continue
            _add_child(tree.nodes[parent_of(path)], name_of(path))
            if node.is_ephemeral:
                tree.sessions[node.ephemeral_owner].ephemerals.add(path)
            elif node.ephemeral_owner:
                tree._reaped.add(path)
        return tree

    def node(self, path: str) -> Znode:
        """Return the node at ``path``.

        Raises:
            NoNodeError, InvalidPathError.
        """
        node = self.nodes.get(path)
        if node is None:
            check_path(path)
            raise NoNodeError(f"no node {path}")
        return node

    def find(self, path: str) -> Znode | None:
        """Return the node at ``path``, or None.

        Raises:
            InvalidPathError.
        """
        node = self.nodes.get(path)
        if node is None:
            check_path(path)
        return node

    def children(self, path: str) -> list[str]:
        """Return the sorted names of the children.

        Raises:
            NoNodeError, InvalidPathError.
        """
        return sorted(self.node(path).children or ())

    def reapable(self, wall_ms: int, count_max: int) -> list[str]:
        """Return at most ``count_max`` paths of nodes that a ``Reap`` would delete at that time."""
        due = (path for path in self._reaped if is_due(self.nodes[path].stat(), wall_ms))
        return sorted(islice(due, count_max))

    def apply(self, session_id: int, operations: Sequence[Operation], wall_ms: int) -> TreeTransaction:
        """Apply all operations, in order, or none.

        Raises:
            SessionExpiredError: there is no such session.
            MetadataError: the error of the first operation that cannot be done, with its ``operation_index``.
        """
        if session_id not in self.sessions:
            raise SessionExpiredError(f"session {session_id:#x} is over")
        for index, operation in enumerate(operations):
            check_operation(operation, index)
        plan = _TreePlan(self, session_id, wall_ms)
        for index, operation in enumerate(operations):
            try:
                plan.results.append(plan.run(operation))
            except MetadataError as error:
                plan.roll_back()
                error.operation_index = index
                raise
        return plan.commit([])

    def open_session(self, session_id: int, password: str, timeout_ms: int, now_ms: int) -> TreeTransaction:
        """Begin a session under an id that is not in use."""
        assert session_id > 0, "0 means 'no session'"
        assert session_id not in self.sessions, "session ids are never used twice"
        self.sessions[session_id] = TreeSession(session_id, password, timeout_ms, now_ms + timeout_ms)
        return _TreePlan(self, session_id, 0).commit([session_id])

    def end_session(self, session_id: int, wall_ms: int) -> TreeTransaction:
        """End a session and delete its ephemerals, in one transaction.

        Raises:
            SessionExpiredError: it is over already.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise SessionExpiredError(f"session {session_id:#x} is over")
        plan = _TreePlan(self, session_id, wall_ms)
        for path in sorted(session.ephemerals):
            plan.run(Delete(path))
        assert not session.ephemerals, "a session's ephemerals end with it"
        del self.sessions[session_id]
        return plan.commit([session_id])

    def take_over(self, session_id: int, owner: str) -> TreeTransaction:
        """Give a session to another client.

        Raises:
            SessionExpiredError: it is over.
        """
        session = self.sessions.get(session_id)
        if session is None:
            raise SessionExpiredError(f"session {session_id:#x} is over")
        session.owner = owner
        return _TreePlan(self, session_id, 0).commit([session_id])

    def touch(self, session_id: int, now_ms: int) -> bool:
        """Give the session its full timeout from now on. Return False when it is over."""
        session = self.sessions.get(session_id)
        if session is None:
            return False
        session.deadline_ms = now_ms + session.timeout_ms
        return True

    def expired(self, now_ms: int) -> list[int]:
        """Return the sessions whose time is up. They stay until ``end_session``."""
        return [session.session_id for session in self.sessions.values() if session.deadline_ms <= now_ms]

    def first_deadline_ms(self) -> int | None:
        """Return when the first session expires unless it is heard; None if there is no session."""
        return min((session.deadline_ms for session in self.sessions.values()), default=None)

    def postpone_expiry(self, delay_ms: int) -> None:
        """Move every session's deadline, after a time in which no client could be heard."""
        assert delay_ms >= 0, "a deadline is moved away, never nearer"
        for session in self.sessions.values():
            session.deadline_ms += delay_ms


class _TreePlan:
    """A transaction under way. It changes the tree at once and keeps what undoes the changes."""

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
            case Reap():
                self._reap(operation)
            case Check():
                self._checked(operation.path, operation.version)
        return None

    def commit(self, sessions: list[int]) -> TreeTransaction:
        assert self._zxid == self._tree.zxid + 1, "a plan is applied once, and zxids only grow"
        self._tree.zxid = self._zxid
        return TreeTransaction(self._zxid, self.results, self._events, list(self._paths), sessions)

    def roll_back(self) -> None:
        assert self._zxid == self._tree.zxid + 1, "what was applied is not undone"
        while self._undo:
            self._undo.pop()()

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
        if parent.is_ephemeral:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and cannot have children")
        owner = self._session_id if operation.ephemeral else operation.kind
        zxid, wall = self._zxid, self._wall_ms
        nodes[path] = Znode(operation.value, zxid, zxid, zxid, 0, 0, owner, wall, wall)
        self._undo.append(lambda: nodes.pop(path))
        if owner:
            siblings = self._of_owner(owner)
            siblings.add(path)
            self._undo.append(lambda: siblings.discard(path))
        self._change_children(parent, name_of(path), created=True)
        self._note(EventType.CREATED, path, parent_path)
        return path

    def _set(self, operation: Set) -> Stat:
        node = self._checked(operation.path, operation.version)
        value, version, mzxid, modified_ms = node.value, node.version, node.mzxid, node.modified_ms

        def undo() -> None:
            node.value, node.version, node.mzxid, node.modified_ms = value, version, mzxid, modified_ms

        self._undo.append(undo)
        assert node.mzxid <= self._zxid, "zxids only grow"
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
            siblings = self._of_owner(node.ephemeral_owner)
            siblings.discard(path)
            self._undo.append(lambda: siblings.add(path))
        parent_path = parent_of(path)
        self._change_children(nodes[parent_path], name_of(path), created=False)
        self._note(EventType.DELETED, path, parent_path)

    def _reap(self, operation: Reap) -> None:
        path = operation.path
        node = self._checked(path, ANY_VERSION)
        if not node.children and not is_due(node.stat(), self._wall_ms):
            raise BadVersionError(f"the time of {path} has not come")
        self._delete(Delete(path))

    def _of_owner(self, owner: int) -> set[str]:
        """Return the set of paths to which a node with that owner or kind belongs."""
        return self._tree.sessions[owner].ephemerals if owner > 0 else self._tree._reaped

    def _checked(self, path: str, version: int) -> Znode:
        node = self._tree.node(path)
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        return node

    def _change_children(self, parent: Znode, name: str, *, created: bool) -> None:
        assert parent.pzxid <= self._zxid, "zxids only grow"
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
