"""The port that the rest of Heliograph coordinates through: ZooKeeper's semantics, async and typed (DESIGN D4).

Nodes form a tree. Each has a value (bytes), a version that starts at 0 and grows by one with every ``set``, and a
stat. A node may be ephemeral (it lives as long as the session that made it), and may be made with a sequence number
appended to its name (ten digits, growing per parent, never re-used).

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
changed nothing. Whoever creates a node and may have to ask whether it was he puts a token into it: something of his
own making in the value (``LedgerMetadata.creator_token``) or in the name (``metadata/election.py``); an ephemeral is
known by its owner's session id (``metadata/claim.py``).
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

ANY_VERSION = -1  # "whatever the version is"
VALUE_BYTES_MAX = 1 << 20  # of one node; more is refused with ValueTooLargeError


class SessionState(enum.Enum):
    """CONNECTED: calls work. SUSPENDED: not connected, ephemerals still stand. LOST: they are gone for good (I13)."""

    CONNECTED = "connected"
    SUSPENDED = "suspended"
    LOST = "lost"


class EventType(enum.Enum):
    """What happened to a watched node."""

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
    """What is known of a node besides its value. ``czxid`` and ``mzxid`` order changes over the whole store."""

    czxid: int
    mzxid: int
    version: int
    cversion: int
    ephemeral_owner: int  # session id, 0 when persistent
    data_length: int
    num_children: int
    pzxid: int = 0  # the last change of the list of children
    created_ms: int = field(default=0, compare=False)  # wall clock of the store, milliseconds since the epoch
    modified_ms: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Create:
    """An operation of ``multi``."""

    path: str
    value: bytes = b""
    ephemeral: bool = False
    sequence: bool = False


@dataclass(frozen=True, slots=True)
class Set:
    """An operation of ``multi``."""

    path: str
    value: bytes
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Delete:
    """An operation of ``multi``."""

    path: str
    version: int = ANY_VERSION


@dataclass(frozen=True, slots=True)
class Check:
    """An operation of ``multi``: the node must exist, with that version."""

    path: str
    version: int = ANY_VERSION


Operation = Create | Set | Delete | Check
Watcher = Callable[[WatchEvent], None]
SessionListener = Callable[[SessionState], None]


class Watch(Protocol):
    """A standing watch."""

    def cancel(self) -> None:
        """No event is delivered after this returns."""


class MetadataStore(Protocol):
    """One session with the store. All methods are called on one event loop; watchers and listeners run on it too.

    Every method may raise ConnectionLossError and SessionExpiredError besides the errors that it names.
    """

    @property
    def session_id(self) -> int:
        """The session's id: the ``ephemeral_owner`` of the ephemerals it makes."""

    @property
    def session_token(self) -> str:
        """What ``end_session`` needs to end this session from elsewhere."""

    @property
    def session_timeout_ms(self) -> int:
        """What the store granted: so long after it last heard of this session it may end it, and no sooner."""

    @property
    def state(self) -> SessionState:
        """The session's state now."""

    def add_session_listener(self, listener: SessionListener) -> None:
        """Have ``listener`` called with each new state, LOST at the latest when the store may drop the ephemerals.

        Listeners are called in the order in which they were added, before any call fails because of the new state.
        """

    def remove_session_listener(self, listener: SessionListener) -> None:
        """Undo one ``add_session_listener``: it is not called from now on. Nothing happens if it was not added."""

    async def create(
        self, path: str, value: bytes = b"", *, ephemeral: bool = False, sequence: bool = False, parents: bool = False
    ) -> str:
        """Create a node and return its path (with the number, for a sequence).

        Args:
            parents: create missing parents (persistent, empty) first; these are separate writes.

        Raises:
            NodeExistsError, NoNodeError (no parent), NoChildrenForEphemeralsError, InvalidPathError.
        """

    async def get(self, path: str, watcher: Watcher | None = None) -> tuple[bytes, Stat]:
        """Value and stat. ``watcher`` is called once, at the next CHANGED or DELETED of the node.

        Raises:
            NoNodeError: and no watch is left.
        """

    async def set(self, path: str, value: bytes, version: int = ANY_VERSION) -> Stat:
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
        """The stat, or None. ``watcher`` is called once, at the next CREATED, CHANGED or DELETED of the path."""

    async def children(self, path: str, watcher: Watcher | None = None) -> list[str]:
        """Names (not paths) of the children, sorted. ``watcher`` is called once, at the next CHILD or DELETED.

        Raises:
            NoNodeError: and no watch is left.
        """

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        """All operations or none: the created path, the new stat, or None, for each in turn.

        Raises:
            InvalidPathError, ValueTooLargeError: of the first operation that no store would do; else
            the error of the first operation that cannot be done. Nothing has changed then, and the error's
            ``operation_index`` says which operation it was.
        """

    async def watch(self, path: str, watcher: Watcher) -> Watch:
        """Have ``watcher`` called with every CREATED, CHANGED and DELETED of ``path`` and below, until cancelled.

        After a lost connection the watch is set again; events missed in between are not made up for, so a watcher
        re-reads what it cares for when the session is CONNECTED again.
        """

    async def sync(self, path: str = "/") -> None:
        """Return when this client would see every change that was complete before the call."""

    async def end_session(self, token: str) -> None:
        """End another session at once, removing its ephemerals; nothing happens if it is over already.

        Raises:
            BadRequestError: no token of this store; or one with a wrong password, where the store can tell that from a
                session that is over (ZooKeeper cannot: nothing happens then).
        """

    async def close(self) -> None:
        """End this session, removing its ephemerals. Idempotent."""
