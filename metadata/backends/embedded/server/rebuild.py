"""Rebuilds the index of a store from its nodes, if it is missing or stale.

This is needed at the first start after an upgrade from a release without an index, and after such a release has written
the store. Every node is read twice and none is kept in memory. It blocks, and belongs on a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby, islice

from rocksdict import BottommostLevelCompaction, CompactOptions, Rdict, RdictIter, WriteBatch, WriteOptions

from heliograph.base.errors import ResourceError
from heliograph.metadata.backends.embedded.server.index import (
    CHILD_PREFIX,
    INDEX_FAMILY,
    INDEX_STATE_KEY,
    IndexChange,
    child_key,
    encode_count,
    encode_index_state,
    listed_key,
)
from heliograph.metadata.backends.embedded.server.record import NODE_PREFIX, decode_node, node_key
from heliograph.metadata.errors import RecordError
from heliograph.metadata.znode import ROOT, is_kind

BATCH_CHANGES = 4_096  # of the index, in one write


def rebuild_index(database: Rdict, index: Rdict, zxid: int, sessions: set[int]) -> int:
    """Fill an empty index from the nodes as of transaction ``zxid``, durably. Return the number of nodes.

    A crash leaves an index without a state, which the next start replaces.

    Raises:
        RecordError: a node is damaged, newer than ``zxid``, or lacks its parent or the session that it belongs to.
        ResourceError: the disk failed.
    """
    assert INDEX_STATE_KEY not in index, "the index is empty"
    options = CompactOptions()
    options.set_bottommost_level_compaction(BottommostLevelCompaction.force())
    database.compact_range(None, None, options)  # what an earlier release wrote has no filters, and large indexes
    _write(database, _lists(database, zxid, sessions))
    nodes = 1  # the root, which no node lists
    child_keys = (key for key, _ in _records(index, CHILD_PREFIX))
    for parent, keys in groupby(child_keys, key=lambda key: key[: key.index(b"\0")]):
        count, changes = _count(database, parent, keys)
        nodes += count
        _write(database, changes)
    index.flush()
    index[INDEX_STATE_KEY] = encode_index_state(zxid, nodes)
    database.flush_wal(sync=True)
    return nodes


def _lists(database: Rdict, zxid: int, sessions: set[int]) -> Iterator[IndexChange]:
    """Return the index entries that list each node, as if no node had children."""
    for key, value in _records(database, NODE_PREFIX):
        path, node = decode_node(key, value)
        if node.is_ephemeral and node.ephemeral_owner not in sessions:
            raise RecordError(f"the session of {path} is missing")
        if not node.is_ephemeral and not is_kind(node.ephemeral_owner):
            raise RecordError(f"{path} is of a kind that this program does not know: upgrade it")
        if node.last_zxid > zxid:
            raise RecordError(f"{path} is newer than the store's last transaction")
        if path != ROOT:
            yield child_key(path), b""
        listed = listed_key(path, node)
        if listed is not None:
            yield listed, b""


def _count(database: Rdict, parent: bytes, keys: Iterator[bytes]) -> tuple[int, list[IndexChange]]:
    """Count the children of a node. Return the number, and the index changes that follow from it."""
    path, first = parent[len(CHILD_PREFIX) :].decode(), next(keys)
    count = 1 + sum(1 for _ in keys)
    changes: list[IndexChange] = [(parent, encode_count(parent, count))]
    record = database.get(node_key(path))
    if record is None:
        if path != ROOT:
            raise RecordError(f"the parent of {path}/{first[len(parent) + 1 :].decode()} is missing")
        return count, changes
    assert isinstance(record, bytes), "the database is opened in raw mode"
    listed = listed_key(path, decode_node(node_key(path), record)[1])
    if listed is not None:
        changes.append((listed, None))
    return count, changes


def _records(family: Rdict, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Return keys and values whose keys begin with ``prefix``, as they are at the first step."""
    place = family.iter()
    place.seek(prefix)
    while place.valid() and place.key().startswith(prefix):
        yield place.key(), place.value()
        place.next()
    check_cursor(place)


def check_cursor(place: RdictIter) -> None:
    """Raise ResourceError if a cursor ended because the disk failed and not because its keys ended."""
    try:
        place.status()
    except Exception as error:
        raise ResourceError(f"cannot read metadata: {error}", field="directory") from error


def _write(database: Rdict, changes: Iterable[IndexChange]) -> None:
    """Write changes, not durably: they count only once all of them are written."""
    unlogged, rest = WriteOptions(), iter(changes)
    unlogged.disable_wal = True  # type: ignore[method-assign, assignment]  # a field, whatever its stub says
    while part := list(islice(rest, BATCH_CHANGES)):
        batch = WriteBatch(raw_mode=True)
        batch.set_default_column_family(database.get_column_family_handle(INDEX_FAMILY))
        for key, value in part:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        database.write(batch, unlogged)
