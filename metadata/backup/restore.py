"""Filling an empty store from the file of a backup.

The cluster's record is written last. Bookies refuse to serve with a store that lacks it. So an unfinished restore
leaves nothing usable, and has to be repeated into an empty store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from heliograph.base.clock import wall_ms
from heliograph.base.errors import ConflictError
from heliograph.metadata import codec, paths
from heliograph.metadata.backup.file import BackupSummary, read_nodes, read_summary
from heliograph.metadata.backup.node import BackupNode
from heliograph.metadata.backup.snapshot import digest_of
from heliograph.metadata.endpoint.session.acl_directory import NodeAcl
from heliograph.metadata.errors import NoNodeError, RecordError
from heliograph.metadata.model import ClusterRecord
from heliograph.metadata.operator_records import LedgerIdBase, RestoredMark
from heliograph.metadata.store import Create, Delete, MetadataStore, Operation
from heliograph.metadata.znode import ROOT

# More ids than a store gives between a backup and its loss: a year of 60 a second.
LEDGER_ID_JUMP = 1 << 31
OPERATIONS_AT_ONCE = 16  # of one write; etcd takes 128 changes at once, and a node is up to four  # I15
BYTES_AT_ONCE = 256 << 10  # of the values of one write, but for a single larger one  # I15
COUNTER_STEPS_MAX = 100_000  # children made and deleted to advance one counter  # I15


async def require_empty(store: MetadataStore, instance_id: str) -> None:
    """Raise ConflictError if a store holds more than ZooKeeper's own nodes.

    Args:
        instance_id: of the cluster that is to be written there.
    """
    await store.sync()
    names = [name for name in await store.children(ROOT) if f"/{name}" != paths.ZOOKEEPER]
    if not names:
        return
    try:
        holder = codec.decode(ClusterRecord, (await store.get(paths.CLUSTER))[0]).instance_id
    except (NoNodeError, RecordError):
        whose = f"it holds {', '.join(names[:5])}, and no cluster's record"
    else:
        whose = f"it holds this cluster, {holder}" if holder == instance_id else f"it holds another cluster, {holder}"
    raise ConflictError(f"the store is not empty: {whose}. Name an empty one", field="to")


async def restore(path: Path, store: MetadataStore) -> tuple[BackupSummary, list[str]]:
    """Fill an empty store from a backup. It leaves a mark there: bookies delete nothing until the mark is removed.

    Ledger ids continue LEDGER_ID_JUMP above the last one of the backup, so no id that was assigned since is assigned
    again.

    Returns:
        The summary of the backup, and the nodes whose counters are too far behind to be advanced.

    Raises:
        ConflictError: the store is not empty.
        RecordError: the file is damaged, or is of no cluster: nothing was written. Or the written nodes read back
            differently.
        MetadataError: the store did not answer; it holds a part of the backup and has to be emptied.
    """
    summary = read_summary(path)
    if summary.cluster is None:
        raise RecordError(f"{path} is of a store that held no cluster")
    mark = RestoredMark(backup_ms=summary.created_ms, restored_ms=wall_ms())
    return summary, await fill(path, summary, store, summary.last_ledger_id + LEDGER_ID_JUMP, codec.encode(mark))


async def fill(
    path: Path, summary: BackupSummary, store: MetadataStore, last_ledger_id: int, mark: bytes | None
) -> list[str]:
    """Write all nodes of a file into an empty store, compare them, and make the store the cluster's.

    Args:
        last_ledger_id: only greater ids are assigned from then on.
        mark: the value of the mark of a restored store; None: it has none.

    Returns:
        The nodes of other programs whose counters are more than COUNTER_STEPS_MAX behind: sequence numbers below them
        will be assigned again.

    Raises:
        ConflictError, RecordError, MetadataError: as ``restore``.
    """
    await require_empty(store, summary.instance_id)
    if summary.acls:
        await store.create(paths.ENDPOINT_ACLS)
    await _write_nodes(read_nodes(path), store)
    behind = [
        node.path
        for node in read_nodes(path)
        if node.creations and node.path != ROOT and not paths.is_own(node.path) and not await _advance(node, store)
    ]
    if await digest_of(store) != (summary.nodes, summary.digest):
        raise RecordError("the store holds other nodes than were written to it: empty it and begin again")
    if mark is not None and await store.exists(paths.WISHES) is not None:
        for name in await store.children(paths.WISHES):  # what was asked for before the loss is not done after it
            await store.delete(f"{paths.WISHES}/{name}")
    last: list[Operation] = []
    if await store.exists(paths.LEDGER_IDS) is not None:
        last.append(Create(paths.LEDGER_ID_BASE, codec.encode(LedgerIdBase(last_ledger_id))))
    if summary.cluster is not None:
        last.append(Create(paths.CLUSTER, summary.cluster))
        if mark is not None:
            last.append(Create(paths.RESTORED, mark))
    if last:
        await store.multi(last)
    await store.sync()
    return behind


async def _write_nodes(nodes: Iterable[BackupNode], store: MetadataStore) -> None:
    batch: list[Operation] = []
    size = 0
    for node in nodes:
        if node.path == ROOT:
            await _write_root(node, store)
            continue
        made: list[Operation] = [Create(node.path, node.value, kind=node.kind)]
        if node.acl is not None:  # in one write with its node, which makes it valid
            made.append(Create(paths.endpoint_acl(node.path), node.acl))
        grown = len(node.value or b"") + len(node.acl or b"")
        if batch and (len(batch) + len(made) > OPERATIONS_AT_ONCE or size + grown > BYTES_AT_ONCE):
            await store.multi(batch)
            batch, size = [], 0
        batch += made
        size += grown
    if batch:
        await store.multi(batch)


async def _write_root(node: BackupNode, store: MetadataStore) -> None:
    value, stat = await store.get(ROOT)
    if value != node.value:
        await store.set(ROOT, node.value)
    if node.acl is not None:
        record = replace(codec.decode(NodeAcl, node.acl), czxid=stat.czxid)
        await store.create(paths.endpoint_acl(ROOT), record.encode())


async def _advance(node: BackupNode, store: MetadataStore) -> bool:
    """Advance the counter of a node's sequence numbers to its old value. Return False if it is too far behind."""
    stat = await store.exists(node.path)
    assert stat is not None, "the node was written"
    missing = node.creations - (stat.cversion + stat.num_children) // 2
    if missing > COUNTER_STEPS_MAX:
        return False
    step = f"{node.path}/heliograph-step"
    while missing > 0:
        count = min(missing, OPERATIONS_AT_ONCE // 2)
        await store.multi([Create(step), Delete(step)] * count)
        missing -= count
    return True


async def missing_ledgers(path: Path, store: MetadataStore, instance_id: str) -> list[int]:
    """Return the ledgers of a backup that a cluster's store does not name: they were deleted since, or never were its
    own.

    Raises:
        ConflictError: the store belongs to another cluster than the backup, or to none.
        RecordError: the file is damaged.
        MetadataError: the store did not answer.
    """
    await store.sync()
    try:
        holder = codec.decode(ClusterRecord, (await store.get(paths.CLUSTER))[0]).instance_id
    except NoNodeError:
        holder = ""
    if holder != instance_id:
        raise ConflictError(f"the backup is of cluster {instance_id}, the store of {holder or 'none'}", field="store")
    ids = (node.ledger_id() for node in read_nodes(path))
    return [one for one in ids if one and await store.exists(paths.ledger(one)) is None]
