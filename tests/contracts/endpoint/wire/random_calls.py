"""Random requests in ZooKeeper's protocol: the same seed sends the same to every server.

In ZooKeeper 3.8 a watch replaces one of another kind on the same node; ours does not copy that, so each kind keeps
to its own nodes: persistent watches to ``p``, recursive ones to ``r`` and the root, one-shot ones to the rest.
"""

from __future__ import annotations

import random

from heliograph.metadata.endpoint.wire.codes import OpCode as O
from heliograph.metadata.endpoint.wire.jute import string
from tests.contracts.endpoint.wire.client import (
    WireClient,
    add_watch,
    create,
    multi,
    path_and_version,
    path_and_watch,
    set_data,
    watch_query,
)
from tests.contracts.endpoint.wire.transcript import Line, Transcript

NAMES = ("a", "b", "p", "r")
CLIENTS = 3


class RandomConversation(Transcript):
    """The requests of three clients, one after the other, and what each of them receives."""

    def __init__(self, address: str, root: str, seed: int, steps: int) -> None:
        super().__init__(address, root)
        self._chance = random.Random(seed)
        self._steps = steps

    async def run(self) -> list[Line]:
        """Send all requests and return the transcript."""
        clients = [await WireClient.begin(self._address) for _ in range(CLIENTS)]
        await self._say(clients[0], "root", O.CREATE, create(self._root))
        for number in range(self._steps):
            client = self._chance.choice(clients)
            op, body = self._request()
            await self._say(client, str(number), op, body)
            for other in clients:
                if other is not client:
                    await self._say(other, "hears", O.PING, b"", -2)
        for client in clients:
            await client.close()
        return self.lines

    def _path(self, depth_min: int = 0) -> str:
        depth = max(depth_min, self._chance.choice((0, 1, 1, 1, 2, 2, 3)))
        return "/".join((self._root, *self._chance.choices(NAMES, k=depth)))

    def _may_watch(self, path: str) -> bool:
        return path != self._root and path[-1] in "ab" and self._chance.random() < 0.6

    def _request(self) -> tuple[O, bytes]:
        chance, path = self._chance, self._path()
        (kind,) = chance.choices(("change", "multi", "read", "add", "remove"), (10, 3, 12, 3, 3))
        if kind == "change":
            return self._change()
        if kind == "multi":
            return O.MULTI, multi(*(self._change(in_multi=True) for _ in range(chance.randrange(1, 5))))
        if kind == "read":
            op = chance.choice((O.EXISTS, O.GET_DATA, O.GET_CHILDREN, O.GET_CHILDREN2, O.GET_ALL_CHILDREN_NUMBER))
            if op is O.GET_ALL_CHILDREN_NUMBER:
                return op, string(path)
            return op, path_and_watch(path, self._may_watch(path))
        if kind == "add":
            persistent = chance.random() < 0.5
            below = "/".join((self._root, *chance.choices(NAMES, k=chance.randrange(2))))
            if persistent:
                return O.ADD_WATCH, add_watch(f"{below}/p", 0)
            return O.ADD_WATCH, add_watch(chance.choice((self._root, f"{below}/r")), 1)
        # Not checkWatches: in ZooKeeper 3.8 it also finds the watches of other clients.
        # Only of any kind where persistent watches are: in ZooKeeper 3.8 those also count as data and child watches.
        has_standing = path == self._root or path[-1] in "pr"
        return O.REMOVE_WATCHES, watch_query(path, 3 if has_standing else chance.choice((1, 2, 3)))

    def _change(self, *, in_multi: bool = False) -> tuple[O, bytes]:
        chance = self._chance
        version = chance.choice((-1, -1, -1, 0, 1))
        op = chance.choice((O.CREATE, O.CREATE, O.CREATE, O.SET_DATA, O.SET_DATA, O.DELETE))
        path = self._path(depth_min=0 if op is O.SET_DATA else 1)
        if op is O.CREATE:
            value, flags = b"v" * chance.randrange(3), chance.choice((0, 0, 0, 1, 2, 3))
            return op if in_multi else chance.choice((op, O.CREATE2)), create(path, value, flags)
        if op is O.SET_DATA:
            return op, set_data(path, b"w" * chance.randrange(5), version)
        return chance.choice((O.DELETE, O.CHECK)) if in_multi else O.DELETE, path_and_version(path, version)
