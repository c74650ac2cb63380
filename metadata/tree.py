"""The store's state machine: nodes, sessions and transactions with ZooKeeper's semantics. No I/O, no clock.

Every change is one transaction with the next ``zxid``. It happens completely or not at all, and names its watch events
and the sessions that a durable copy has to write again. Nodes are kept in ``metadata/znode.py``, watches in
``metadata/session/watches.py``. Durations are measured by the clock that the caller passes as ``now_ms``; ``wall_ms``
is only stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
from heliograph.metadata.znode import (
    ROOT,
    MemoryNodes,
    Nodes,
    Replaced,
    Znode,
    check_operation,
    is_due,
    parent_of,
)

Result = str | Stat | None


@dataclass(slots=True)
class TreeSession:
    """One client's session. It may be ended once ``deadline_ms`` passes without a touch.

    ``owner`` names the client that last took it over, "" for the client that began it: others may not use it.
    """

    session_id: int
    password: str
    timeout_ms: int
    deadline_ms: int
    owner: str = ""


@dataclass(frozen=True, slots=True)
class TreeTransaction:
    """The effects of one change: a result per operation, events in order, session ids to be made durable."""

    zxid: int
    results: list[Result]
    events: list[WatchEvent]
    sessions: list[int]


class ZnodeTree:
    """All nodes and sessions of one store."""

    def __init__(self, nodes: Nodes | None = None, zxid: int = 0, sessions: Iterable[TreeSession] = ()) -> None:
        """
        Args:
            nodes: as of transaction ``zxid``; None: an empty tree in memory. The session of each ephemeral is among
                ``sessions``.
        """
        self.zxid = zxid
        self.nodes: Nodes = MemoryNodes() if nodes is None else nodes
        self.sessions = {session.session_id: session for session in sessions}

    def node(self, path: str) -> Znode:
        """Return the node at ``path``.

        Raises:
            NoNodeError, InvalidPathError.
        """
        node = self.nodes.get(path)
        if node is None:
            raise NoNodeError(f"no node {path}")
        return node

    def find(self, path: str) -> Znode | None:
        """Return the node at ``path``, or None.

        Raises:
            InvalidPathError.
        """
        return self.nodes.get(path)

    def children(self, path: str) -> list[str]:
        """Return the sorted names of the children.

        Raises:
            NoNodeError, InvalidPathError.
        """
        return list(self.nodes.names(path, "")) if self.node(path).child_count else []

    def children_from(self, path: str, start: str, limit: int) -> list[str]:
        """Return the sorted names of the first ``limit`` children at or after ``start``.

        Raises:
            NoNodeError, InvalidPathError.
        """
        return list(islice(self.nodes.names(path, start), limit)) if self.node(path).child_count else []

    def reapable(self, wall_ms: int, count_max: int) -> list[str]:
        """Return at most ``count_max`` paths of nodes that a ``Reap`` would delete at ``wall_ms``."""
        return self.nodes.due(wall_ms, count_max)

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
        for path in self.nodes.ephemerals(session_id):
            plan.run(Delete(path))
        del self.sessions[session_id]
        ended = plan.commit([session_id])
        assert not self.nodes.ephemerals(session_id), "a session's ephemerals end with it"
        return ended

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
        """Return the earliest deadline of a session; None if there is no session."""
        return min((session.deadline_ms for session in self.sessions.values()), default=None)

    def postpone_expiry(self, delay_ms: int) -> None:
        """Postpone every session's deadline, after a time in which no client could be heard."""
        assert delay_ms >= 0, "a deadline is moved away, never nearer"
        for session in self.sessions.values():
            session.deadline_ms += delay_ms


class _TreePlan:
    """A transaction under way. It works on copies of the nodes that it changes, and replaces all of them at its end."""

    def __init__(self, tree: ZnodeTree, session_id: int, wall_ms: int) -> None:
        self._tree = tree
        self._session_id = session_id
        self._wall_ms = wall_ms
        self._zxid = tree.zxid + 1
        self._changed: dict[str, Replaced] = {}  # the new nodes are the plan's own until it is committed
        self._events: list[WatchEvent] = []
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
        self._tree.nodes.replace(self._changed)
        self._tree.zxid = self._zxid
        return TreeTransaction(self._zxid, self.results, self._events, sessions)

    def _create(self, operation: Create) -> str:
        path = operation.path
        if path == ROOT and not operation.sequence:
            raise NodeExistsError("the root always exists")
        parent_path = parent_of(path)
        parent = self._find(parent_path)
        if parent is None:
            raise NoNodeError(f"no node {parent_path}, so {path} cannot be created in it")
        if operation.sequence:
            path = f"{path}{parent.creations:010d}"
        if self._find(path) is not None:
            raise NodeExistsError(f"{path} exists")
        if parent.is_ephemeral:
            raise NoChildrenForEphemeralsError(f"{parent_path} is ephemeral and cannot have children")
        owner = self._session_id if operation.ephemeral else operation.kind
        zxid, wall = self._zxid, self._wall_ms
        self._replace(path, None, Znode(operation.value, zxid, zxid, zxid, 0, 0, owner, wall, wall))
        self._events.append(WatchEvent(EventType.CREATED, path))
        self._change_children(parent_path, parent, 1)
        return path

    def _set(self, operation: Set) -> Stat:
        path = operation.path
        node = self._own(path, self._checked(path, operation.version))
        assert node.mzxid <= self._zxid, "zxids only grow"
        node.value = operation.value
        node.version += 1
        node.mzxid = self._zxid
        node.modified_ms = self._wall_ms
        self._events.append(WatchEvent(EventType.CHANGED, path))
        return node.stat()

    def _delete(self, operation: Delete) -> None:
        path = operation.path
        node = self._checked(path, operation.version)
        if node.child_count:
            raise NotEmptyError(f"{path} has {node.child_count} children")
        self._replace(path, node, None)
        self._events.append(WatchEvent(EventType.DELETED, path))
        parent_path = parent_of(path)
        parent = self._find(parent_path)
        assert parent is not None, "every node but the root has a parent"
        self._change_children(parent_path, parent, -1)

    def _reap(self, operation: Reap) -> None:
        path = operation.path
        node = self._checked(path, ANY_VERSION)
        if not node.child_count and not is_due(node.stat(), self._wall_ms):
            raise BadVersionError(f"the time of {path} has not come")
        self._delete(Delete(path))

    def _find(self, path: str) -> Znode | None:
        changed = self._changed.get(path)
        return self._tree.nodes.get(path) if changed is None else changed[1]

    def _checked(self, path: str, version: int) -> Znode:
        node = self._find(path)
        if node is None:
            raise NoNodeError(f"no node {path}")
        if version not in (ANY_VERSION, node.version):
            raise BadVersionError(f"{path} has version {node.version}, not {version}")
        return node

    def _change_children(self, path: str, parent: Znode, count: int) -> None:
        parent = self._own(path, parent)
        assert parent.pzxid <= self._zxid, "zxids only grow"
        parent.pzxid = self._zxid
        parent.child_count += count
        parent.creations += max(count, 0)
        assert 0 <= parent.child_count <= parent.creations, "a child is created before it is deleted"
        self._events.append(WatchEvent(EventType.CHILD, path))

    def _own(self, path: str, node: Znode) -> Znode:
        """Return the plan's own copy of a node."""
        if path not in self._changed:
            self._changed[path] = node, node.copy()
        own = self._changed[path][1]
        assert own is not None, "the node was found"
        return own

    def _replace(self, path: str, found: Znode | None, new: Znode | None) -> None:
        changed = self._changed.get(path)
        self._changed[path] = (found if changed is None else changed[0]), new
