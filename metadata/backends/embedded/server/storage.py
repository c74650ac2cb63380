"""The store in RocksDB. Methods that may read the disk belong on a thread, unless they say how long they take."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rocksdict import (
    BlockBasedIndexType,
    BlockBasedOptions,
    Cache,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
)

from heliograph.base.errors import HeliographError, ResourceError
from heliograph.metadata.backends.embedded.limits import BLOCK_CACHE_BYTES
from heliograph.metadata.backends.embedded.server.index import (
    INDEX_FAMILY,
    INDEX_STATE_KEY,
    IndexChange,
    count_key,
    decode_index_state,
)
from heliograph.metadata.backends.embedded.server.nodes import Change, NotInMemory
from heliograph.metadata.backends.embedded.server.rebuild import check_cursor, rebuild_index
from heliograph.metadata.backends.embedded.server.record import (
    NODE_PREFIX,
    SESSION_PREFIX,
    STATE_KEY,
    decode_session,
    decode_state,
    node_key,
)
from heliograph.metadata.errors import RecordError
from heliograph.metadata.tree import TreeSession
from heliograph.metadata.znode import ROOT

WRITE_BUFFER_BYTES = 8 << 20
INDEX_WRITE_BUFFER_BYTES = 2 << 20  # deleted keys in it are skipped one by one where their neighbours are listed
LOG_BYTES_MAX = 32 << 20  # replayed at a start
BLOCK_BYTES = 16 << 10
PAGE_KEYS_MAX = 1_024  # of a listing that are read together; fewer at first, since few may be wanted
BLOOM_BITS = 10  # of each key: one lookup in a hundred of what is missing reads a block
INFO_LOG_FILES_MAX = 2
_NODES_END = bytes((NODE_PREFIX[0] + 1,))


@dataclass(frozen=True, slots=True)
class StoredState:
    """The state that a start reads: the last transaction, the sessions, and the number of nodes."""

    zxid: int
    sessions: list[TreeSession]
    nodes: int
    is_rebuilt: bool  # the index was missing or stale, so every node was read


class TreeStorage:
    """One RocksDB database. After a failed write it refuses all further ones: only reopening shows the state of the
    disk."""

    def __init__(self, directory: Path) -> None:
        """Open or create the database.

        Raises:
            ResourceError: RocksDB cannot use the directory.
        """
        self._cache = Cache(BLOCK_CACHE_BYTES)
        options = _options(self._cache)
        try:
            self._database = Rdict(str(directory), options, column_families={INDEX_FAMILY: self._index_options()})
        except Exception as error:
            raise ResourceError(f"cannot open the metadata in {directory}: {error}", field="directory") from error
        self._index = self._database.get_column_family(INDEX_FAMILY)
        self._failed = False
        self.keys_read = 0  # by all reads since the open

    def load(self) -> StoredState:
        """Return the state that a start needs. It reads the sessions and a few keys, unless the index has to be
        rebuilt.

        Raises:
            RecordError: a record is damaged, missing or of a newer version.
            ResourceError: the disk failed.
        """
        zxid, sessions = 0, list[TreeSession]()
        place = self._database.iter()
        place.seek_to_first()
        while place.valid():
            key, value = place.key(), place.value()
            self.keys_read += 1
            if key.startswith(NODE_PREFIX):
                place.seek(_NODES_END)
                continue
            if key.startswith(SESSION_PREFIX):
                sessions.append(decode_session(key, value))
            elif key == STATE_KEY:
                zxid = decode_state(value)
            else:
                raise RecordError(f"unknown record {key!r}: written by a newer version?")
            place.next()
        check_cursor(place)
        nodes = decode_index_state(self._value(self._index, INDEX_STATE_KEY), zxid)
        if nodes is not None:
            return StoredState(zxid, sessions, nodes, is_rebuilt=False)
        try:
            self._database.drop_column_family(INDEX_FAMILY)
            self._index = self._database.create_column_family(INDEX_FAMILY, self._index_options())
            nodes = rebuild_index(self._database, self._index, zxid, {session.session_id for session in sessions})
        except HeliographError:
            raise
        except Exception as error:
            raise ResourceError(f"cannot make the index of the metadata: {error}", field="directory") from error
        self.keys_read += nodes
        return StoredState(zxid, sessions, nodes, is_rebuilt=True)

    def lookup(self, path: str, *, waits: bool) -> tuple[bytes | None, bytes | None]:
        """Look a node up (``NodeStorage``). It takes about 3 us, or with ``waits`` the time of a read of the disk."""
        record = self._looked_up(self._database, node_key(path), waits=waits)
        if record is None and path != ROOT:  # which has no record before it changes
            return None, None
        return record, self._looked_up(self._index, count_key(path), waits=waits)

    def warm(self, paths: Sequence[str]) -> None:
        """Let RocksDB read the records of nodes into its cache, without holding the interpreter's lock.

        Raises:
            ResourceError: the disk failed.
        """
        self.keys_read += 2 * len(paths)
        try:
            self._database.get([node_key(path) for path in paths])
            self._index.get([count_key(path) for path in paths])
        except Exception as error:
            raise _read_failure(error) from error

    def key_pages(self, prefix: bytes, start: bytes) -> Iterator[list[bytes]]:
        """List keys of the index (``NodeStorage``). Each takes about 0.2 us, and each some hundred may read a block."""
        place = self._index.iter()
        place.seek(start)
        return self._pages_from(place, prefix)

    def write(self, records: Sequence[Change], index: Sequence[IndexChange] = ()) -> None:
        """Make all changes durable, or none.

        Raises:
            ResourceError: the disk failed; whether the changes are on it is unknown.
        """
        assert not self._failed, "nothing is written after a failed write"
        assert records, "there is something to write"
        batch = WriteBatch(raw_mode=True)
        family = self._database.get_column_family_handle(INDEX_FAMILY)
        for key, value in records:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        for key, value in index:
            if value is None:
                batch.delete(key, family)
            else:
                batch.put(key, value, family)
        try:
            # Two steps, because ``write`` holds the interpreter's lock, also for a sync that it does itself.
            self._database.write(batch)
            self._database.flush_wal(sync=True)
        except Exception as error:
            self._failed = True
            raise ResourceError(f"cannot write metadata: {error}", field="directory") from error

    @property
    def memory_bytes(self) -> int:
        """The bytes of RocksDB's blocks and write buffers in memory."""
        buffers = (family.property_int_value("rocksdb.size-all-mem-tables") for family in (self._database, self._index))
        return self._cache.get_usage() + sum(size or 0 for size in buffers)

    def close(self) -> None:
        self._index.close()
        self._database.close()
        del self._index, self._database  # the last references to it, which hold its lock

    def _index_options(self) -> Options:
        options = _family_options(self._cache, INDEX_WRITE_BUFFER_BYTES)
        # A file in which half of 1,024 neighbours are deletions is compacted: a list would skip them one by one.
        options.add_compact_on_deletion_collector_factory(1_024, 512, 0)
        return options

    def _looked_up(self, family: Rdict, key: bytes, *, waits: bool) -> bytes | None:
        self.keys_read += 1
        # It looks at memory only. Where that has neither the key nor the proof that there is none, it says that the key
        # may exist, with an empty value if it is a block of the file's own index that is missing. No record is empty.
        if not family.key_may_exist(key):  # where there is none, rocksdict loses 32 bytes of memory if it is to fetch
            return None
        answer: Any = family.key_may_exist(key, fetch=True)
        may_exist, value = answer
        if value or not may_exist:
            found: bytes | None = value
            return found
        if not waits:
            raise NotInMemory
        return self._value(family, key)

    @staticmethod
    def _value(family: Rdict, key: bytes) -> bytes | None:
        try:
            value: Any = family.get(key)
        except Exception as error:
            raise _read_failure(error) from error
        assert value is None or isinstance(value, bytes), "the database is opened in raw mode"
        return value

    def _pages_from(self, place: RdictIter, prefix: bytes) -> Iterator[list[bytes]]:
        key_here, step, size = place.key, place.next, 1
        while page := [key for _ in range(size) if (key := key_here()) is not None and step() is None]:
            is_last = not page[-1].startswith(prefix)
            if is_last:
                page = [key for key in page if key.startswith(prefix)]
            self.keys_read += len(page)
            yield page
            if is_last:
                return
            size = min(2 * size, PAGE_KEYS_MAX)
        check_cursor(place)


def _options(cache: Cache) -> Options:
    options = _family_options(cache, WRITE_BUFFER_BYTES)
    # Only the end of the log may be torn (by the crash that cut it); damage before it is an error, no old state.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_max_total_wal_size(LOG_BYTES_MAX)
    options.set_keep_log_file_num(INFO_LOG_FILES_MAX)
    options.create_missing_column_families(True)
    return options


def _family_options(cache: Cache, write_buffer_bytes: int) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(write_buffer_bytes)
    blocks = BlockBasedOptions()
    blocks.set_block_cache(cache)
    blocks.set_block_size(BLOCK_BYTES)
    blocks.set_bloom_filter(BLOOM_BITS, False)
    # The cache bounds the files' own indexes and filters, too. They are in pieces: a large one as a whole has no room.
    blocks.set_cache_index_and_filter_blocks(True)
    blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
    blocks.set_partition_filters(True)
    blocks.set_pin_top_level_index_and_filter(True)
    options.set_block_based_table_factory(blocks)
    return options


def _read_failure(error: Exception) -> ResourceError:
    return ResourceError(f"cannot read metadata: {error}", field="directory")
