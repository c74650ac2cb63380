"""The watches of one client, and the order of its events. No I/O except by the store's calls that are passed in.

There are two layers. A *wanted* watch is one that the client set on its connection; it ends with the connection. An
*armed* watch is the watch in the store for it: a one-shot watch there cannot be cancelled, so it stays armed over
connections and is not set twice.

Order of events: requests are answered one after the other, and
- an event of a watch that the present request sets waits for that request's answer, and so do all events after it;
- every other event is sent immediately, so before the answer to any request that may show its cause.

One change is sent once, however many watches it matches: where a persistent watch covers a path, only its stream sends
events of that path, also those of one-shot watches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from heliograph.metadata.endpoint.limits import EVENTS_HELD_MAX, STANDING_WATCHES_MAX, WATCHES_PER_SESSION_MAX
from heliograph.metadata.endpoint.wire.codes import AddWatchMode, ErrorCode, WatcherType, WireError
from heliograph.metadata.session.watches import WatchKind
from heliograph.metadata.store import EventType, Watch, Watcher, WatchEvent
from heliograph.metadata.znode import ROOT, parent_of

T = TypeVar("T")
Key = tuple[WatchKind, str]
Tell = Callable[[WatchEvent], None]
_MODES: dict[WatcherType, tuple[AddWatchMode, ...]] = {
    WatcherType.PERSISTENT: (AddWatchMode.PERSISTENT,),
    WatcherType.PERSISTENT_RECURSIVE: (AddWatchMode.PERSISTENT_RECURSIVE,),
    WatcherType.ANY: tuple(AddWatchMode),
}


@dataclass(eq=False, slots=True)
class _EndpointWatch:
    """A persistent watch; it is active from its first event or its confirmation, whichever comes first."""

    mode: AddWatchMode
    path: str
    active: bool = False
    watch: Watch | None = None

    def covers(self, path: str) -> bool:
        return self.path in (ROOT, path) or path.startswith(self.path + "/")

    def reports(self, event: WatchEvent) -> bool:
        is_recursive = self.mode is AddWatchMode.PERSISTENT_RECURSIVE
        if not (self.covers(event.path) if is_recursive else event.path == self.path):
            return False
        return event.type is not EventType.CHILD or not is_recursive


class EndpointWatchTable:
    """The watches of one session."""

    def __init__(self) -> None:
        self._armed: dict[Key, object] = {}
        self._wanted: set[Key] = set()
        self._standing: dict[tuple[AddWatchMode, str], _EndpointWatch] = {}
        self._pending: Key | _EndpointWatch | None = None  # the watch that the present request sets
        self._held: list[WatchEvent] = []
        self._tell: Tell | None = None
        self._cut_off: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._wanted) + len(self._standing)

    def attach(self, tell: Tell, cut_off: Callable[[], None]) -> None:
        """Begin a connection.

        Args:
            tell: sends an event to the client.
            cut_off: closes the connection, because too many events wait for an answer.
        """
        self.detach()
        self._tell, self._cut_off = tell, cut_off

    def detach(self) -> None:
        """End the connection, and with it the wanted watches."""
        self._tell = self._cut_off = None
        self._wanted.clear()
        self._held.clear()
        self._pending = None
        for standing in self._standing.values():
            if standing.watch is not None:
                standing.watch.cancel()
        self._standing.clear()

    async def read(self, kind: WatchKind, path: str, read: Callable[[Watcher | None], Awaitable[T]]) -> T:
        """Run a read that sets a one-shot watch when it succeeds. The caller must call ``answered`` after its answer.

        Args:
            read: a read of the store that takes a watcher.

        Raises:
            WireError: SYSTEM_ERROR, the session has too many watches.
            Exception: the error of the read; no watch is set.
        """
        key = (kind, path)
        while True:
            is_held = (
                key not in self._armed and key not in self._wanted
            )  # an event during the read waits for the answer
            result = await self._read_armed(key, read)
            if is_held or key in self._armed:
                self._pending = key
                return result
            # An older watch fired during the read, maybe for a change after it, so the watch must be set again.

    async def _read_armed(self, key: Key, read: Callable[[Watcher | None], Awaitable[T]]) -> T:
        token: object | None = None
        watcher: Watcher | None = None
        if key not in self._armed:
            if len(self._armed) >= WATCHES_PER_SESSION_MAX:
                raise WireError(f"a session has at most {WATCHES_PER_SESSION_MAX} watches", ErrorCode.SYSTEM_ERROR)
            token = self._armed[key] = object()
            self._pending = key
            watcher = partial(self._on_shot, key, token)
        try:
            return await read(watcher)
        except BaseException:
            if token is not None and self._armed.get(key) is token:
                del self._armed[key]
            self._pending = None
            self._release()
            raise

    async def add_standing(
        self, mode: AddWatchMode, path: str, watch: Callable[[str, Watcher], Awaitable[Watch]]
    ) -> None:
        """Set a persistent watch. The caller must call ``answered`` after its answer.

        Raises:
            WireError: SYSTEM_ERROR, the session has too many of them.
            Exception: the error of ``watch``; no watch is set.
        """
        standing = self._standing.get((mode, path))
        if standing is not None:
            return
        if len(self._standing) >= STANDING_WATCHES_MAX:
            raise WireError(f"a session has at most {STANDING_WATCHES_MAX} standing watches", ErrorCode.SYSTEM_ERROR)
        standing = _EndpointWatch(mode, path)
        self._standing[mode, path] = self._pending = standing
        try:
            standing.watch = await watch(path, lambda event: self._on_stream(standing, event))
        except BaseException:
            self._standing.pop((mode, path), None)
            self._pending = None
            self._release()
            raise
        if self._standing.get((mode, path)) is not standing:  # the connection ended meanwhile
            standing.watch.cancel()
        standing.active = True

    def answered(self) -> None:
        """Note that the present request was answered: its watch counts, and the events that waited are sent."""
        if isinstance(self._pending, tuple):
            self._wanted.add(self._pending)
        self._pending = None
        self._release()

    def has(self, path: str, kind: WatcherType) -> bool:
        return bool(self._one_shots(path, kind)) or any(self._standing_at(path, kind))

    def remove(self, path: str, kind: WatcherType) -> bool:
        """Remove the client's watches of this kind on the path. Return False if there were none."""
        one_shots, persistent = self._one_shots(path, kind), list(self._standing_at(path, kind))
        self._wanted -= one_shots
        for standing in persistent:
            del self._standing[standing.mode, path]
            if standing.watch is not None:
                standing.watch.cancel()
        return bool(one_shots or persistent)

    def missed(self, event: WatchEvent) -> None:
        """Send an event that happened while the client was disconnected; it consumes the matching one-shot watches."""
        self._wanted -= _keys(event)
        if self._tell is not None:
            self._tell(event)

    def _one_shots(self, path: str, kind: WatcherType) -> set[Key]:
        keys: set[Key] = set()
        if kind in (WatcherType.DATA, WatcherType.ANY):
            keys.add((WatchKind.DATA, path))
        if kind in (WatcherType.CHILDREN, WatcherType.ANY):
            keys.add((WatchKind.CHILD, path))
        return keys & self._wanted

    def _standing_at(self, path: str, kind: WatcherType) -> Iterator[_EndpointWatch]:
        """Yield the persistent watches of this kind on the path: as in ZooKeeper 3.9, DATA and CHILDREN are none."""
        for mode in _MODES.get(kind, ()):
            standing = self._standing.get((mode, path))
            if standing is not None:
                yield standing

    def _on_shot(self, key: Key, token: object, event: WatchEvent) -> None:
        if self._armed.get(key) is not token:
            return
        del self._armed[key]
        if not any(standing.active and standing.covers(event.path) for standing in self._standing.values()):
            self._emit(event)

    def _on_stream(self, standing: _EndpointWatch, event: WatchEvent) -> None:
        if self._standing.get((standing.mode, standing.path)) is not standing:
            return
        standing.active = True
        speaker = next(other for other in self._standing.values() if other.active and other.covers(event.path))
        if speaker is not standing:
            return
        self._emit(event)
        if event.type is EventType.CHANGED or event.path == ROOT:
            return
        parent = parent_of(event.path)
        if any(other.active and other.covers(parent) for other in self._standing.values()):
            self._emit(WatchEvent(EventType.CHILD, parent))

    def _emit(self, event: WatchEvent) -> None:
        if not self._concerns(event):
            return
        if not self._held and not self._waits(event):
            self._deliver(event)
        elif len(self._held) < EVENTS_HELD_MAX:
            self._held.append(event)
        elif self._cut_off is not None:  # I15
            self._cut_off()

    def _concerns(self, event: WatchEvent) -> bool:
        """Return whether the event matches a watch of the client, or the watch that the present request sets."""
        keys = _keys(event)
        return (
            not keys.isdisjoint(self._wanted)
            or self._pending in keys
            or any(standing.reports(event) for standing in self._standing.values())
        )

    def _waits(self, event: WatchEvent) -> bool:
        if isinstance(self._pending, _EndpointWatch):
            return self._pending.reports(event)
        # A watch that the client already has may fire before the answer, and must: the answer may show the change.
        return self._pending is not None and self._pending in _keys(event) and self._pending not in self._wanted

    def _release(self) -> None:
        held, self._held = self._held, []
        for event in held:
            self._emit(event)

    def _deliver(self, event: WatchEvent) -> None:
        keys = _keys(event) & self._wanted
        self._wanted -= keys
        if self._tell is not None and (keys or any(s.reports(event) for s in self._standing.values())):
            self._tell(event)


def _keys(event: WatchEvent) -> set[Key]:
    match event.type:
        case EventType.CHILD:
            return {(WatchKind.CHILD, event.path)}
        case EventType.DELETED:
            return {(WatchKind.DATA, event.path), (WatchKind.CHILD, event.path)}
        case _:
            return {(WatchKind.DATA, event.path)}
