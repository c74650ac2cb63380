"""Where the ACLs of nodes are kept: a side record per node whose ACL is not the open one, in the store itself.

A record stands at ``paths.endpoint_acl(path)``. It counts for the node only while that is the node it was made for:
its ``czxid`` is the node's, or, when both were written in one transaction, its own mzxid is. So a node that was deleted
and made again past the endpoint does not inherit an ACL. Only endpoints look at these records: whoever has the store
itself is not held up by them.

A directory is a copy of all records, kept up to date by a watch, so that a node without a record costs nothing to
check. Another endpoint's change is known here a moment after it was made.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from metadata import codec
from metadata.endpoint.acl import OPEN_ACL, Acl, AclEntry
from metadata.endpoint.codes import ErrorCode, WireError
from metadata.endpoint.limits import ACL_RECORDS_MAX, READS_AT_ONCE_MAX, RETRY_MS
from metadata.errors import BadVersionError, MetadataError, NoNodeError, RecordError
from metadata.paths import ENDPOINT_ACLS, endpoint_acl, last_part
from metadata.store import EventType, MetadataStore, Stat, Watch, WatchEvent
from metadata.znode import parent_of

SAME_TRANSACTION = 0  # as a record's czxid

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class NodeAcl:
    """The record. ``version`` is the ACL's own, which setACL compares."""

    path: str
    czxid: int
    version: int
    entries: list[tuple[int, str, str]]

    @classmethod
    def of(cls, path: str, czxid: int, version: int, acl: Acl) -> NodeAcl:
        """The record of an ACL."""
        return cls(path, czxid, version, [(entry.permissions, entry.scheme, entry.identity) for entry in acl])

    def encode(self) -> bytes:
        """The value of its node."""
        return codec.encode(self)


@dataclass(frozen=True, slots=True)
class KeptAcl:
    """A record as it was read. ``record`` is None when it is damaged: then nobody may do anything."""

    record: NodeAcl | None
    stat: Stat

    @property
    def acl(self) -> Acl:
        """The ACL that the record keeps."""
        return tuple(AclEntry(*entry) for entry in self.record.entries) if self.record else ()

    def is_for(self, node: Stat) -> bool:
        """Was it made for the node as it is now?"""
        if self.record is None:
            return True
        czxid = self.record.czxid
        return node.czxid == (self.stat.mzxid if czxid == SAME_TRANSACTION else czxid)


def is_reserved(path: str) -> bool:
    """Is this a place that clients of an endpoint must not see?"""
    return path == ENDPOINT_ACLS or path.startswith(ENDPOINT_ACLS + "/")


class AclDirectory:
    """All records, by the path of the node that they are for."""

    def __init__(self) -> None:
        self._kept: dict[str, KeptAcl] = {}
        self.stands = False  # whether the node of the records exists; once made it stays
        self._store: MetadataStore | None = None
        self._watch: Watch | None = None
        self._changed: dict[str, None] = {}
        self._refresher: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._kept)

    async def load(self, store: MetadataStore) -> None:
        """Read everything through ``store`` and keep it up to date through it, in place of an earlier one.

        Raises:
            MetadataError: of the store; the directory is not to be relied on then.
        """
        self.release()
        self._store = store
        self._watch = await store.watch(ENDPOINT_ACLS, self._on_event)
        await store.sync(ENDPOINT_ACLS)
        try:
            names = await store.children(ENDPOINT_ACLS)
            self.stands = True
        except NoNodeError:
            names = []
            self.stands = False
        paths = [last_part(f"{ENDPOINT_ACLS}/{name}") for name in names]
        for gone in self._kept.keys() - set(paths):
            del self._kept[gone]
        for start in range(0, len(paths), READS_AT_ONCE_MAX):
            batch = paths[start : start + READS_AT_ONCE_MAX]
            await asyncio.gather(*(self.refresh(path, store) for path in batch))

    async def sweep(self) -> None:
        """Delete the records whose nodes are gone, which happens when a node is deleted past the endpoints.

        A node is never younger than its record, so a record that is seen without its node has outlived it.
        """
        store = self._store
        assert store is not None, "loaded"
        for path, kept in list(self._kept.items()):
            node = await store.exists(path)
            if kept.record is None or (node is not None and kept.is_for(node)):
                continue
            with contextlib.suppress(NoNodeError, BadVersionError):  # somebody else was here first
                await store.delete(endpoint_acl(path), kept.stat.version)

    def release(self) -> None:
        """Stop keeping up to date."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._refresher is not None:
            self._refresher.cancel()
            self._refresher = None
        self._changed.clear()

    def find(self, path: str) -> KeptAcl | None:
        """The record for a path, or None."""
        return self._kept.get(path)

    async def of(self, path: str, store: MetadataStore) -> tuple[Acl, int]:
        """The ACL that holds for a path now and its version; the open one for a node without a record."""
        kept = self._kept.get(path)
        if kept is None:
            return OPEN_ACL, 0
        node = await store.exists(path)
        if node is None or not kept.is_for(node):
            return OPEN_ACL, 0
        return kept.acl, kept.record.version if kept.record else 0

    async def refresh(self, path: str, store: MetadataStore) -> None:
        """Read one record again."""
        try:
            value, stat = await store.get(endpoint_acl(path))
        except NoNodeError:
            self._kept.pop(path, None)
            return
        try:
            record: NodeAcl | None = codec.decode(NodeAcl, value)
        except RecordError as error:
            _log.error("nobody may use %s, its ACL cannot be read: %s", path, error)
            record = None
        known = self._kept.get(path)
        if known is None or known.stat.mzxid <= stat.mzxid:
            self._kept[path] = KeptAcl(record, stat)

    def check_room(self) -> None:
        """Raise WireError QUOTA_EXCEEDED when no further record may be made."""
        if len(self._kept) >= ACL_RECORDS_MAX:
            raise WireError(f"at most {ACL_RECORDS_MAX} nodes may have an ACL of their own", ErrorCode.QUOTA_EXCEEDED)

    def _on_event(self, event: WatchEvent) -> None:
        if event.path == ENDPOINT_ACLS:
            self.stands = event.type is not EventType.DELETED
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
                # Most likely the session is suspended or lost, and everything will be loaded again.
                _log.warning("the ACL of %s could not be read again: %s", path, error)
                self._changed[path] = None
                await asyncio.sleep(RETRY_MS / 1000)
