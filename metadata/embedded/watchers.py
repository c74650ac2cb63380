"""The client's standing watches: what it takes to set them again on a new connection."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass

from metadata.store import Stat, Watcher, WatchEvent
from metadata.watches import NO_NODE_ZXID, WatchKind


@dataclass(slots=True)
class _Standing:
    kind: WatchKind
    path: str
    watcher: Watcher
    confirmed: bool = False  # the server has set it
    czxid: int = NO_NODE_ZXID  # what the client knew of the node when it set the watch
    zxid: int = NO_NODE_ZXID


class Watchers:
    """All watches of one session, by the number that server and client know them by."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._standing: dict[int, _Standing] = {}

    def add(self, kind: WatchKind, path: str, watcher: Watcher) -> int:
        """A watch that is about to be asked for; it stands once confirmed."""
        watch_id = next(self._numbers)
        self._standing[watch_id] = _Standing(kind, path, watcher)
        return watch_id

    def confirm(self, watch_id: int, stat: Stat | None) -> None:
        """The server has set the watch, on the node as ``stat`` describes it (None: no node, or it does not matter)."""
        standing = self._standing.get(watch_id)
        if standing is None:
            return
        standing.confirmed = True
        if stat is not None:
            standing.czxid = stat.czxid
            standing.zxid = stat.pzxid if standing.kind is WatchKind.CHILD else stat.mzxid

    def discard(self, watch_id: int) -> bool:
        """Forget a watch; False when it fired or was forgotten already."""
        return self._standing.pop(watch_id, None) is not None

    def fire(self, watch_id: int, event: WatchEvent) -> None:
        """Call the watcher. Its failure is the loop's to report."""
        standing = self._standing.get(watch_id)
        if standing is None:
            return
        if standing.kind is not WatchKind.RECURSIVE:
            del self._standing[watch_id]
        try:
            standing.watcher(event)
        except Exception as error:
            asyncio.get_running_loop().call_exception_handler({"message": "a watcher failed", "exception": error})

    def reset_items(self) -> list[list[int | str]]:
        """What RESET_WATCHES has to say, in the order in which the watches were set."""
        return [
            [watch_id, int(standing.kind), standing.path, standing.czxid, standing.zxid]
            for watch_id, standing in self._standing.items()
            if standing.confirmed
        ]

    def clear(self) -> None:
        """Forget all: the session is over."""
        self._standing.clear()
