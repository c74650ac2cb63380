"""Reads a whole store as it was at one moment, while clients may continue to change it.

A watch of the whole tree is set before the first read. Changed nodes are read again until no change is left after a
``sync``: then every node was read after its last change, so the copy is the store at the moment of that ``sync``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from heliograph.base.clock import wall_ms
from heliograph.base.errors import ConflictError
from heliograph.metadata import codec, paths
from heliograph.metadata.backup.file import BackupSummary, BackupWriter, read_nodes
from heliograph.metadata.backup.node import BackupNode, DigestSum, is_copied_node
from heliograph.metadata.endpoint.session.acl_directory import SAME_TRANSACTION, NodeAcl
from heliograph.metadata.errors import ConnectionLossError, NoNodeError
from heliograph.metadata.model import ClusterRecord
from heliograph.metadata.recipes.ids import last_ledger_id
from heliograph.metadata.store import EventType, MetadataStore, SessionState, Stat, WatchEvent
from heliograph.metadata.znode import ROOT, is_kind, parent_of

READS_AT_ONCE = 64  # nodes  # I15
CHANGES_MAX = 20_000  # nodes that change while a store is copied  # I15
CHANGED_BYTES_MAX = 64 << 20  # of their values  # I15
ROUNDS_MAX = 10_000  # of reading again what changed  # I15
EPHEMERALS_NAMED_MAX = 10  # paths
_APART = frozenset((paths.CLUSTER, paths.RESTORED, paths.LEDGER_IDS))


@dataclass(slots=True)
class _Reader:
    """Reads single nodes. ``acls`` are the paths that have an ACL, ``ephemerals`` some paths of ephemerals."""

    store: MetadataStore
    acls: set[str] = field(default_factory=set)
    ephemerals: list[str] = field(default_factory=list)

    async def begin(self) -> None:
        try:
            self.acls = {paths.last_part(f"/{name}") for name in await self.store.children(paths.ENDPOINT_ACLS)}
        except NoNodeError:
            self.acls = set()

    async def node(self, path: str) -> tuple[BackupNode, int] | None:
        """Return a node and the number of its children; None if it is gone or is an ephemeral."""
        try:
            value, stat = await self.store.get(path)
        except NoNodeError:
            return None
        if not is_kind(stat.ephemeral_owner):
            if len(self.ephemerals) < EPHEMERALS_NAMED_MAX:
                self.ephemerals.append(path)
            return None
        acl = await self._acl(path, stat) if path in self.acls else None
        creations = (stat.cversion + stat.num_children) // 2
        return BackupNode(path, value, stat.ephemeral_owner, creations, acl), stat.num_children

    async def _acl(self, path: str, stat: Stat) -> bytes | None:
        try:
            value, acl_stat = await self.store.get(paths.endpoint_acl(path))
        except NoNodeError:
            return None
        record = codec.decode(NodeAcl, value)
        written = acl_stat.mzxid if record.czxid == SAME_TRANSACTION else record.czxid
        return replace(record, czxid=SAME_TRANSACTION).encode() if written == stat.czxid else None


class _Changes:
    """The paths that changed since the last call that took them."""

    def __init__(self) -> None:
        self.paths: set[str] = set()
        self.acls: set[str] = set()
        self.is_connected = True

    def on_event(self, event: WatchEvent) -> None:
        path = event.path
        if path.startswith(paths.ENDPOINT_ACLS + "/"):
            path = paths.last_part(path)
            self.acls.add(path)
        if len(self.paths) > CHANGES_MAX:
            return  # too many, which the reader finds
        self.paths.add(path)
        if event.type is not EventType.CHANGED and path != ROOT:
            self.paths.add(parent_of(path))  # its counter

    def on_state(self, state: SessionState) -> None:
        self.is_connected &= state is SessionState.CONNECTED

    def take(self) -> set[str]:
        if not self.is_connected:
            raise ConnectionLossError("the connection was lost while the store was read: changes may have been missed")
        if len(self.paths) > CHANGES_MAX:
            raise ConflictError(f"more than {CHANGES_MAX} nodes changed while the store was read: try at a calmer time")
        taken, self.paths = self.paths, set()
        return taken


async def snapshot(store: MetadataStore, path: Path) -> tuple[BackupSummary, list[str]]:
    """Write all nodes of a store that live without a session into a file, as they are at one moment.

    Returns:
        The summary, and some of the ephemerals, which were left out.

    Raises:
        ConflictError: too much changed meanwhile.
        ConnectionLossError: the connection was lost; there is no file.
        RecordError: the cluster's record, or one of an ACL, is damaged.
        OSError: the file cannot be written.
    """
    changes = _Changes()
    store.add_session_listener(changes.on_state)
    watch = await store.watch(ROOT, changes.on_event)
    walk = path.with_name(path.name + ".walk")
    try:
        await store.sync()
        changes.take()
        reader = _Reader(store)
        await reader.begin()
        with BackupWriter(walk) as draft:
            async for node in _walk(reader):
                draft.add(node)
            newer, apart = await _until_quiet(reader, changes)
            draft.finish(_summary(draft, apart))
        with BackupWriter(path) as writer:
            for node in read_nodes(walk):
                current = newer.pop(node.path, node)
                if current is not None:
                    writer.add(current)
            for _, added in sorted(newer.items()):
                if added is not None:
                    writer.add(added)
            summary = _summary(writer, apart)
            writer.finish(summary)
        return summary, reader.ephemerals
    finally:
        walk.unlink(missing_ok=True)
        watch.cancel()
        store.remove_session_listener(changes.on_state)


async def digest_of(store: MetadataStore) -> tuple[int, bytes]:
    """Return the number and the digest of the nodes that a snapshot would hold. Nobody may change the store meanwhile.

    Raises:
        MetadataError: the store did not answer, or a record is damaged.
    """
    reader = _Reader(store)
    await store.sync()
    await reader.begin()
    digest = DigestSum()
    async for node in _walk(reader):
        digest.add(node)
    return digest.nodes, digest.value()


@dataclass(frozen=True, slots=True)
class _Apart:
    cluster: bytes | None
    restored: bytes | None
    last_ledger_id: int


async def _until_quiet(reader: _Reader, changes: _Changes) -> tuple[dict[str, BackupNode | None], _Apart]:
    """Read changed nodes until none changes any more. Return the newer nodes by path, None for deleted ones."""
    newer: dict[str, BackupNode | None] = {}
    held_bytes = 0
    apart: _Apart | None = None
    for _ in range(ROUNDS_MAX):
        if not changes.paths:
            await reader.store.sync()
        changed = changes.take()
        if not changed and apart is not None:
            return newer, apart
        reader.acls |= changes.acls
        if apart is None or not _APART.isdisjoint(changed):
            apart = _Apart(
                await _value(reader.store, paths.CLUSTER),
                await _value(reader.store, paths.RESTORED),
                await last_ledger_id(reader.store),
            )
        wanted = sorted(filter(is_copied_node, changed))
        for start in range(0, len(wanted), READS_AT_ONCE):
            group = wanted[start : start + READS_AT_ONCE]
            for path, found in zip(group, await asyncio.gather(*map(reader.node, group)), strict=True):
                held_bytes -= _size(newer.get(path))
                newer[path] = found[0] if found else None
                held_bytes += _size(newer[path])
        if len(newer) > CHANGES_MAX or held_bytes > CHANGED_BYTES_MAX:
            break
    raise ConflictError("the store changed too much while it was read: try at a calmer time")


def _size(node: BackupNode | None) -> int:
    return len(node.value or b"") if node else 0


async def _value(store: MetadataStore, path: str) -> bytes | None:
    try:
        return (await store.get(path))[0]
    except NoNodeError:
        return None


def _summary(writer: BackupWriter, apart: _Apart) -> BackupSummary:
    return BackupSummary(
        instance_id=codec.decode(ClusterRecord, apart.cluster).instance_id if apart.cluster is not None else "",
        created_ms=wall_ms(),
        nodes=writer.digest.nodes,
        digest=writer.digest.value(),
        last_ledger_id=max(apart.last_ledger_id, writer.greatest_ledger_id),
        cluster=apart.cluster,
        restored=apart.restored,
        ledgers=writer.ledgers,
        acls=writer.acls,
    )


async def _walk(reader: _Reader) -> AsyncIterator[BackupNode]:
    """Yield every node that is copied, parents first."""
    root = await reader.node(ROOT)
    assert root is not None, "the root always exists"
    yield root[0]
    left = [ROOT]
    while left:
        parent = left.pop()
        try:
            names = await reader.store.children(parent)
        except NoNodeError:
            continue
        prefix = "" if parent == ROOT else parent
        wanted = [path for path in (f"{prefix}/{name}" for name in names) if is_copied_node(path)]
        for start in range(0, len(wanted), READS_AT_ONCE):
            for found in await asyncio.gather(*map(reader.node, wanted[start : start + READS_AT_ONCE])):
                if found is not None:
                    node, num_children = found
                    yield node
                    if num_children:
                        left.append(node.path)
