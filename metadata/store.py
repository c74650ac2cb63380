"""The port through which the rest of Heliograph uses the metadata store: ZooKeeper's semantics, async and typed.

Nodes form a tree. Each has a value (bytes, or None: null is kept apart from empty, as ZooKeeper does), a version that
starts at 0 and grows by one with every ``set``, and a stat. A node may be ephemeral (it lives as long as the session
that made it), and may be made with a sequence number appended to its name (ten digits, growing per parent, never
re-used).

Ordering that every backend keeps:
- the writes of one client happen in the order in which it called them;
- a client sees a watch event before it can see (by ``get``, ``exists`` or ``children``) the state that caused it;
- events of one client arrive in the order of the changes, which is also the order within a ``multi``: for each of its
  operations CREATED, CHANGED or DELETED of the node, then CHILD of its parent;
- the watchers of one event are called in the order in which they were set, ``get``'s and ``exists``' first, then
  ``children``'s, then ``watch``'s;
- a one-shot watch that missed its event while the session was SUSPENDED is told of it before the session is CONNECTED
  again.

A call that raises ConnectionLossError may or may not have happened. A call that raises any other MetadataError has
changed nothing. A caller that must know after such a loss whether it created a node itself puts a token into the node:
a random one in the value (``LedgerMetadata.creator_token``) or in the name (``metadata/recipes/election.py``). An
ephemeral is recognised by its owner's session id (``metadata/recipes/lock.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

ANY_VERSION = -1  # any version will do
VALUE_BYTES_MAX = 1 << 20  # of one node; more is refused with ValueTooLargeError
CHILDREN_PAGE_MAX = 1_000  # names in one page of children


class SessionState(enum.Enum):
    """The state of a session. It begins when it is CONNECTED for the first time; a closed one is LOST."""

    SUSPENDED = "suspended"
    CONNECTED = "connected"
    LOST = "lost"


class EventType(enum.Enum):
    """The kinds of changes that watches report."""

    CREATED = "created"
    DELETED = "deleted"
    CHANGED = "changed"
    CHILD = "child"


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change, as a watch reports it."""

    type: EventType
    path: str


@dataclass(frozen=True, slots=True)
class Stat:
    """A node's stat: everything but its value. ``czxid`` and ``mzxid`` order changes over the whole store.

    ``ephemeral_owner`` is the id of an ephemeral's session, 0 for a persistent node, and the ``kind`` (``Create``) of a
    container or a node with a time to live. ZooKeeper does not show kinds: there it is 0.
    """

    czxid: int
    mzxid: int
    version: int
    cversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int = 0  # the last change of the list of children
    created_ms: int = field(default=0, compare=False)  # wall clock of the store, milliseconds since the epoch
    modified_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Create:
    """The operation of ``multi`` that creates a node.

    ``kind`` is 0, ``znode.CONTAINER`` or ``znode.ttl_kind(...)``; for an ephemeral it is 0. ``Reap`` deletes nodes of
    kinds other than 0 when they are due.
    """

    path: str
    value: bytes | None = b""
    ephemeral: bool = False
    sequence: bool = False
    kind: int = 0


@dataclass(frozen=True, slots=True)
class Set:
    """The operation of ``multi`` that replaces a node's value."""

    path: str
    value: bytes | None
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """The operation of ``multi`` that deletes a node."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """The operation of ``multi`` that requires a node to exist, with that version."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Reap:
    """The operation of ``multi`` that deletes a container or a node with a time to live if it is due.

    A container is due when it had children and has none; a node with a time to live, when it has no children and was
    not set for that time, by the clock of the writer. BadVersionError: it is not due, or is of another kind.
    """

    path: str


Operation = Create | Set | Delete | Check | Reap
Watcher = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionState], None]


def is_connected(store: MetadataStore) -> bool:
    return store.state is SessionState.CONNECTED


class Watch(Protocol):
    """A standing watch."""

    def cancel(self) -> None:
        """Remove the watch. Its watcher is not called after this returns."""


class MetadataStore(Protocol):
    """One session with the store. All methods are called on one event loop; watchers and listeners run on it too.

    Every method may raise ConnectionLossError and SessionExpiredError besides the errors that it names.
    """

    @property
    def session_id(self) -> int:
        """The session's id: the ``ephemeral_owner`` of the ephemerals it makes."""

    @property
    def session_token(self) -> str:
        """The token by which another session can end this one (``end_session``)."""

    @property
    def session_timeout_ms(self) -> int:
        """The granted timeout, in milliseconds.

        The store waits at least that long after the session's last message before it ends it.
        """

    @property
    def state(self) -> SessionState:
        """The session's state now."""

    @property
    def silent_seconds(self) -> float:
        """The time since the latest answered request was sent. It is small while the store answers."""

    @property
    def is_in_doubt(self) -> bool:
        """Whether the session may have ended at the store, or is LOST: the store was silent for most of its timeout."""

    def add_session_listener(self, listener: SessionListener) -> None:
        """Call ``listener`` with each new state; with LOST when the store says that the session is over.

        While the store is silent the session stays SUSPENDED: its ephemerals may be gone when it ``is_in_doubt``.
        No write of a session that is over changes anything.

        Listeners are called in the order in which they were added, before any call fails because of the new state.
        """

    def remove_session_listener(self, listener: SessionListener) -> None:
        """Undo one ``add_session_listener``. Nothing happens if it was not added."""

    async def create(
        self,
        path: str,
        value: bytes | None = b"",
        *,
        ephemeral: bool = False,
        sequence: bool = False,
        parents: bool = False,
    ) -> str:
        """Create a node and return its path (with the number, for a sequence).

        Args:
            parents: create missing parents (persistent, empty) first, each in a write of its own.

        Raises:
            NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError, InvalidPathError.
        """

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes | None, Stat]:
        """Return the value and the stat. ``watcher`` is called once, at the next CHANGED or DELETED of the node.

        The value is None only if a client has stored null, which Heliograph itself never does.

        Raises:
            NoNodeError: and no watch is left.
        """

    async def set(self, path: str, value: bytes | None, version: int = ANY_VERSION) -> Stat:
        """Replace the value if the node has ``version``.

        Raises:
            NoNodeError, BadVersionError.
        """

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        """Delete the node if it has ``version`` and no children.

        Raises:
            NoNodeError, BadVersionError, NotEmptyError.
        """

    async def exists(self, path: str, watcher: Watcher | None = None) -> Stat | None:
        """Return the stat, or None. ``watcher`` is called once, at the next CREATED, CHANGED or DELETED of the path."""

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """Return the names (not paths) of the children, sorted. ``watcher`` is called once, at the next CHILD or
        DELETED.

        Raises:
            NoNodeError: no watch is set then.
        """

    async def children_from(self, path: str, start: str = "", limit: int = CHILDREN_PAGE_MAX) -> list[str]:
        """Return the sorted names of the first ``limit`` children at or after ``start``, by code points.

        The cost does not grow with the number of other children, except in ZooKeeper, whose protocol has no pages. No
        child needs to have the name ``start``: ``name + "\0"`` begins right after ``name``. Pages read in turn
        (``metadata/parents.py``) miss no child that exists all the time.

        Args:
            limit: 1 to CHILDREN_PAGE_MAX names.

        Raises:
            NoNodeError.
        """

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """Apply all operations or none. Return the created path, the new stat or None for each operation.

        Raises:
            InvalidPathError, ValueTooLargeError: the error of the first operation that no store accepts; else the error
            of the first operation that cannot be done. Nothing has changed then, and the error's ``operation_index`` is
            the number of the operation.
        """

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """Call ``watcher`` with every CREATED, CHANGED and DELETED of ``path`` and below, until the watch is cancelled.

        After a lost connection the watch is set again. Events in between may be missed, so the owner of the watch has
        to read its nodes again when the session is CONNECTED again.
        """

    async def sync(self, path: str = "/") -> None:
        """Wait until this client sees every change that was complete before the call."""

    async def reapable(self, count_max: int) -> list[str]:
        """Return at most ``count_max`` paths of nodes that a ``Reap`` would delete now.

        A store that reaps by itself, as ZooKeeper does, returns none.
        """

    async def end_session(self, token: str) -> None:
        """End another session at once and remove its ephemerals. Nothing happens if it is over already.

        Raises:
            BadRequestError: the token is malformed, or its password is wrong. (ZooKeeper does not tell a wrong password
                from a session that is over: nothing happens then.)
        """

    async def close(self) -> None:
        """End this session and remove its ephemerals, unless another client has taken it over. Idempotent."""

    async def detach(self) -> None:
        """Give this object up and leave the session: it ends at its timeout, unless it is taken over. Idempotent.

        ``connect_store`` with the session's token takes it over. The object is LOST from then on, as is that of a
        session that was taken over meanwhile.
        """
