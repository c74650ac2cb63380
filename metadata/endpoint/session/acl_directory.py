"""The ACLs of nodes: one record in the store for each node whose ACL is not the open ACL.

The record is at ``paths.endpoint_acl(path)``. It is valid only for the node that it was created for: its ``czxid``, or
its own mzxid when both were written in one transaction, equals the node's czxid. A node that was deleted and created
again past the endpoint therefore does not inherit an ACL. Only endpoints enforce these records: a client of the store
itself is not restricted by them.

A directory is a copy of all records, which a watch keeps current, so that checking a node without a record costs
nothing. A change by another endpoint arrives here with a delay.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from heliograph.metadata import codec
from heliograph.metadata.endpoint.limits import ACL_RECORDS_MAX, READS_AT_ONCE_MAX, RETRY_MS
from heliograph.metadata.endpoint.wire.acl import OPEN_ACL, READ_ACL, Acl, AclEntry
from heliograph.metadata.endpoint.wire.codes import ErrorCode, WireError
from heliograph.metadata.errors import BadVersionError, MetadataError, NoNodeError, RecordError
from heliograph.metadata.paths import ENDPOINT_ACLS, ZOOKEEPER_CONFIG, endpoint_acl, last_part
from heliograph.metadata.store import EventType, MetadataStore, Stat, Watch, WatchEvent
from heliograph.metadata.znode import parent_of

_FIXED = {ZOOKEEPER_CONFIG: READ_ACL}  # as in ZooKeeper, whose reconfiguration alone writes that node
SAME_TRANSACTION = 0  # the czxid of a record that was written in one transaction with its node

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeAcl:
    """The record of a node's ACL. ``version`` is the version that setACL compares."""

    path: str
    czxid: int
    version: int
    entries: list[tuple[int, str, str]]

    @classmethod
    def of(cls, path: str, czxid: int, version: int, acl: Acl) -> NodeAcl:
        return cls(path, czxid, version, [(entry.permissions, entry.scheme, entry.identity) for entry in acl])

    def encode(self) -> bytes:
        return codec.encode(self)


@dataclass(frozen=True, slots=True)
class StoredAcl:
    """A record as it was read. ``record`` is None when it is damaged: then no client has any permission."""

    record: NodeAcl | None
    stat: Stat

    @property
    def acl(self) -> Acl:
        return tuple(AclEntry(*entry) for entry in self.record.entries) if self.record else ()

    def is_for(self, node: Stat) -> bool:
        """Return whether the record was created for this node."""
        if self.record is None:
            return True
        czxid = self.record.czxid
        return node.czxid == (self.stat.mzxid if czxid == SAME_TRANSACTION else czxid)


def is_reserved(path: str) -> bool:
    """Return whether a path is hidden from clients of an endpoint."""
    return path == ENDPOINT_ACLS or path.startswith(ENDPOINT_ACLS + "/")


class AclDirectory:
    """The records of all ACLs, by the path of their nodes."""

    def __init__(self) -> None:
        self._records: dict[str, StoredAcl] = {}
        self.parent_exists = False  # whether the parent of the records exists; it is never deleted
        self._store: MetadataStore | None = None
        self._watch: Watch | None = None
        self._changed: dict[str, None] = {}
        self._refresher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._records)

    async def load(self, store: MetadataStore) -> None:
        """Read all records through ``store`` and follow their changes there, in place of an earlier store.

        Raises:
            MetadataError: the store failed; the directory must not be used then.
        """
        self.release()
        self._store = store
        self._watch = await store.watch(ENDPOINT_ACLS, self._on_event)
        await store.sync(ENDPOINT_ACLS)
        try:
            names = await store.children(ENDPOINT_ACLS)
            self.parent_exists = True
        except NoNodeError:
            names = []
            self.parent_exists = False
        paths = [last_part(f"{ENDPOINT_ACLS}/{name}") for name in names]
        for gone in self._records.keys() - set(paths):
            del self._records[gone]
        for start in range(0, len(paths), READS_AT_ONCE_MAX):
            batch = paths[start : start + READS_AT_ONCE_MAX]
            await asyncio.gather(*(self.refresh(path, store) for path in batch))

    async def sweep(self) -> None:
        """Delete the records of deleted nodes, which remain if a client of the store itself deletes a node.

        A node is created before its record or with it, so a record without a node is a leftover.
        """
        store = self._store
        assert store is not None, "loaded"
        for path, stored in list(self._records.items()):
            node = await store.exists(path)
            if stored.record is None or (node is not None and stored.is_for(node)):
                continue
            with contextlib.suppress(NoNodeError, BadVersionError):  # another endpoint deleted or changed it
                await store.delete(endpoint_acl(path), stored.stat.version)

    def release(self) -> None:
        """Stop following changes."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._refresher is not None:
            self._refresher.cancel()
            self._refresher = None
        self._changed.clear()

    def is_open(self, path: str) -> bool:
        """Return whether the node is known to be open to every client. The store is not asked."""
        return path not in self._records and path not in _FIXED

    def find(self, path: str) -> StoredAcl | None:
        """Return the record for a path, or None."""
        return self._records.get(path)

    async def of(self, path: str, store: MetadataStore) -> tuple[Acl, int]:
        """Return the present ACL of a path and its version; the open ACL for a node without a record."""
        stored = self._records.get(path)
        if stored is None:
            return (_FIXED[path], -1) if path in _FIXED else (OPEN_ACL, 0)
        node = await store.exists(path)
        if node is None or not stored.is_for(node):
            return OPEN_ACL, 0
        return stored.acl, stored.record.version if stored.record else 0

    async def refresh(self, path: str, store: MetadataStore) -> None:
        """Read one record again."""
        try:
            value, stat = await store.get(endpoint_acl(path))
        except NoNodeError:
            self._records.pop(path, None)
            return
        try:
            record: NodeAcl | None = codec.decode(NodeAcl, value)
        except RecordError as error:
            log.error("no client may access %s, its ACL record is damaged: %s", path, error)
            record = None
        known = self._records.get(path)
        if known is None or known.stat.mzxid <= stat.mzxid:
            self._records[path] = StoredAcl(record, stat)

    def check_room(self) -> None:
        """Raise WireError QUOTA_EXCEEDED when no further record may be created."""
        if len(self._records) >= ACL_RECORDS_MAX:
            raise WireError(f"at most {ACL_RECORDS_MAX} nodes may have an ACL of their own", ErrorCode.QUOTA_EXCEEDED)

    def _on_event(self, event: WatchEvent) -> None:
        if event.path == ENDPOINT_ACLS:
            self.parent_exists = event.type is not EventType.DELETED
        if parent_of(event.path) != ENDPOINT_ACLS:
            return
        self._changed[last_part(event.path)] = None
        if self._refresher is None or self._refresher.done():
            self._refresher = asyncio.get_running_loop().create_task(self._refresh_changed())

    async def _refresh_changed(self) -> None:
        assert self._store is not None, "events come from a store"
        while self._changed:
            path = next(iter(self._changed))
            del self._changed[path]
            try:
                await self.refresh(path, self._store)
            except MetadataError as error:
                # Usually the session is suspended or lost, and all records are loaded again afterwards.
                log.warning("the changed ACL of %s could not be read: %s", path, error)
                self._changed[path] = None
                await asyncio.sleep(RETRY_MS / 1000)
