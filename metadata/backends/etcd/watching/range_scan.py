"""Reads of many nodes at one revision, without their values: to begin a recursive watch, and to bridge a gap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from heliograph.metadata.backends.etcd.transactions.transaction import EtcdRequests
from heliograph.metadata.backends.etcd.watching.cached_nodes import Revisions
from heliograph.metadata.backends.etcd.wire.connection import EtcdConnection
from heliograph.metadata.backends.etcd.wire.failures import CompactedError
from heliograph.metadata.backends.etcd.wire.keys import depth_of
from heliograph.metadata.backends.etcd.wire.limits import CONFLICTS_MAX, DEPTH_MAX, READS_PER_REQUEST_MAX
from heliograph.metadata.errors import ConnectionLossError


class RangeScan:
    """The scans of one connection."""

    def __init__(self, requests: EtcdRequests, connection: EtcdConnection) -> None:
        self._requests = requests
        self._connection = connection

    async def below(self, roots: Sequence[str]) -> tuple[int, dict[str, Revisions]]:
        """Return the present revision, and every node at the given paths and below at that revision.

        Raises:
            ConnectionLossError.
        """
        for _ in range(CONFLICTS_MAX):
            try:
                return await self._below(roots)
            except CompactedError:
                continue  # the revision was compacted during the scan: scan a newer one
        raise ConnectionLossError(f"etcd at {self._connection.endpoint} compacts faster than it can be read")

    async def nodes(self, paths: Iterable[str]) -> tuple[int, dict[str, Revisions]]:
        """Return the present revision, and the revisions of the given nodes that exist and of their families.

        A node may be read at a later revision than that, never at an earlier one.
        """
        wanted = sorted(set(paths))
        found: dict[str, Revisions] = {}
        revision = 0
        for first in range(0, max(1, len(wanted)), READS_PER_REQUEST_MAX):
            some = wanted[first : first + READS_PER_REQUEST_MAX]
            request = self._requests.transaction([], self._requests.lookup(some, some, some))
            answer = await self._connection.transact(request)
            revision = revision or answer.header.revision
            observed = self._requests.snapshot(answer.responses, some, some, some)
            for path in some:
                node, family = observed.nodes[path], observed.families[path]
                # Children that fell with their leases and are not accounted for yet have changed the list too.
                is_stale = family.unaccounted(observed.counts[path]) != 0
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
