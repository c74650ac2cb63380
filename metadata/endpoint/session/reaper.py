"""Deletes containers and nodes with a time to live, as ZooKeeper's leader does.

One endpoint of a store does it at a time: the endpoint that the claim names. The claim is the value of the ACLs'
parent. It only saves work: concurrent reaping does no harm, because each deletion is conditional (``Reap``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from dataclasses import dataclass

from heliograph.base.clock import wall_ms
from heliograph.metadata import codec
from heliograph.metadata.endpoint.limits import REAPS_AT_ONCE_MAX, EndpointLimits
from heliograph.metadata.endpoint.session.acl_directory import AclDirectory, is_reserved
from heliograph.metadata.errors import BadVersionError, NodeExistsError, NoNodeError, NotEmptyError, RecordError
from heliograph.metadata.paths import ENDPOINT_ACLS, endpoint_acl
from heliograph.metadata.store import Delete, MetadataStore, Operation, Reap

CLAIM_INTERVALS = 3  # how long a claim holds, in intervals between two searches

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReaperClaim:
    """The claim of an endpoint to reap alone, until a time in milliseconds since the epoch."""

    endpoint: str
    until_ms: int


class ContainerReaper:
    """The reaper of one endpoint."""

    def __init__(self, directory: AclDirectory, limits: EndpointLimits) -> None:
        self._directory = directory
        self._limits = limits
        self._name = secrets.token_hex(8)
        self.reaped = 0  # since the start

    async def reap(self, store: MetadataStore) -> None:
        """Delete the nodes that are due, unless another endpoint holds the claim.

        Raises:
            MetadataError: the store failed; the next call finds the remaining nodes.
        """
        due = [path for path in await store.reapable(REAPS_AT_ONCE_MAX) if not is_reserved(path)]
        if not due or not await self._claim(store):
            return
        for path in due:
            if await self._reap_node(store, path):
                self.reaped += 1
            await asyncio.sleep(60 / self._limits.containers_per_minute_max)

    async def _reap_node(self, store: MetadataStore, path: str) -> bool:
        stored = self._directory.find(path)
        operations: list[Operation] = [Reap(path)]
        if stored is not None:
            operations.append(Delete(endpoint_acl(path), stored.stat.version))
        try:
            await store.multi(operations)
        except (NoNodeError, NotEmptyError, BadVersionError) as error:
            log.debug("%s is not deleted: %s", path, error)
            return False
        log.info("deleted %s, a container without children or a node whose time to live is over", path)
        return True

    async def _claim(self, store: MetadataStore) -> bool:
        """Return whether this endpoint may reap now: it holds the claim, or has just made it."""
        with contextlib.suppress(NodeExistsError):
            await store.create(ENDPOINT_ACLS)
        self._directory.parent_exists = True
        value, stat = await store.get(ENDPOINT_ACLS)
        now_ms, held_ms = wall_ms(), CLAIM_INTERVALS * self._limits.container_check_ms
        try:
            claim = codec.decode(ReaperClaim, value)
        except RecordError:  # there was none yet
            claim = ReaperClaim("", 0)
        # A claim that reaches too far was written by a clock that is wrong.
        if claim.endpoint != self._name and now_ms < claim.until_ms <= now_ms + held_ms:
            return False
        try:
            await store.set(ENDPOINT_ACLS, codec.encode(ReaperClaim(self._name, now_ms + held_ms)), stat.version)
        except BadVersionError:
            return False  # another endpoint was faster
        return True
