"""Reading nodes at one revision, without their values: what a recursive watch begins with, and what bridges a gap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from metadata.errors import ConnectionLossError
from metadata.etcd.connection import Connection
from metadata.etcd.failures import CompactedError
from metadata.etcd.keys import depth_of
from metadata.etcd.limits import CONFLICTS_MAX, DEPTH_MAX, READS_PER_REQUEST_MAX
from metadata.etcd.shadow import Revisions
from metadata.etcd.transaction import Requests


class Survey:
    """Reads of one connection."""

    def __init__(self, requests: Requests, connection: Connection) -> None:
        self._requests = requests
        self._connection = connection

    async def below(self, roots: Sequence[str]) -> tuple[int, dict[str, Revisions]]:
        """The revision now, and every node at the given paths and below as it was then.

        Raises:
            ConnectionLossError.
        """
        for _ in range(CONFLICTS_MAX):
            try:
                return await self._below(roots)
            except CompactedError:
                continue  # while we were reading: begin anew
        raise ConnectionLossError(f"etcd at {self._connection.endpoint} compacts faster than it can be read")

    async def nodes(self, paths: Iterable[str]) -> tuple[int, dict[str, Revisions]]:
        """The revision now, and those of the given nodes that exist, with the revisions of their families.

        What is read later may be newer than the revision; it never is older.
        """
        wanted = sorted(set(paths))
        found: dict[str, Revisions] = {}
        revision = 0
        for first in range(0, max(1, len(wanted)), READS_PER_REQUEST_MAX):
            some = wanted[first : first + READS_PER_REQUEST_MAX]
            request = self._requests.transaction([], self._requests.lookup(some, some, some))
            answer = await self._connection.transact(request)
            revision = revision or answer.header.revision
            seen = self._requests.snapshot(answer.responses, some, some, some)
            for path in some:
                node, family = seen.nodes[path], seen.families[path]
                # Children that fell with their leases and were not accounted for yet have changed the list, too.
                is_stale = family.unaccounted(seen.counts[path]) != 0
                pzxid = answer.header.revision if is_stale else family.mod_revision
                if node.mod_revision:
                    found[path] = Revisions(node.create_revision, node.mod_revision, pzxid)
        return revision, found

    async def _below(self, roots: Sequence[str]) -> tuple[int, dict[str, Revisions]]:
        revision = 0
        found: dict[str, Revisions] = {}
        for root in roots:
            levels = (self._requests.keys.below(root, depth) for depth in range(depth_of(root) + 1, DEPTH_MAX + 1))
            for ends in chain([(self._requests.keys.node(root), b"")], levels):
                answer = await self._range(ends, revision)
                revision = revision or answer.header.revision
                if not answer.kvs:
                    break  # nodes have parents: nothing lies deeper
                for kv in answer.kvs:
                    path = self._requests.keys.path_of(kv.key)
                    assert path is not None, "only nodes lie in the range of nodes"
                    found[path] = Revisions(kv.create_revision, kv.mod_revision)
        return revision, found

    async def _range(self, ends: tuple[bytes, bytes], revision: int) -> Any:
        request = self._connection.api.RangeRequest(key=ends[0], range_end=ends[1], keys_only=True, revision=revision)
        return await self._connection.read(request)
