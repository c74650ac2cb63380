"""The tree's durable copy in RocksDB. Every method blocks on the disk and belongs on a thread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rocksdict import DBRecoveryMode, Options, Rdict, WriteBatch, WriteOptions

from heliograph.base.errors import ResourceError
from heliograph.metadata.backends.embedded.server.record import (
    NODE_PREFIX,
    SESSION_PREFIX,
    STATE_KEY,
    decode_node,
    decode_session,
    decode_state,
)
from heliograph.metadata.errors import RecordError
from heliograph.metadata.tree import TreeSession, ZnodeTree
from heliograph.metadata.znode import ROOT, Znode, is_kind, parent_of

Change = tuple[bytes, bytes | None]  # key, and value or None to delete

WRITE_BUFFER_BYTES = 8 << 20
INFO_LOG_FILES_MAX = 2


class TreeStorage:
    """One RocksDB database. After a failed write it refuses all others: only a new open shows what is on the disk."""

    def __init__(self, directory: Path) -> None:
        """Open or create the database.

        Raises:
            ResourceError: RocksDB cannot use the directory.
        """
        try:
            self._database = Rdict(str(directory), _options())
        except Exception as error:
            raise ResourceError(f"cannot open the metadata in {directory}: {error}", field="directory") from error
        self._synced = WriteOptions()
        self._synced.sync = True
        self._failed = False

    def load(self) -> ZnodeTree:
        """Return the tree as of the last write; an empty tree for a new database.

        Raises:
            RecordError: a record is damaged, missing or of a newer version.
        """
        zxid = 0
        nodes: list[tuple[str, Znode]] = []
        sessions: list[TreeSession] = []
        for key, value in self._database.items():
            assert isinstance(key, bytes), "the database is opened in raw mode"
            assert isinstance(value, bytes), "the database is opened in raw mode"
            if key.startswith(NODE_PREFIX):
                nodes.append(decode_node(key, value))
            elif key.startswith(SESSION_PREFIX):
                sessions.append(decode_session(key, value))
            elif key == STATE_KEY:
                zxid = decode_state(value)
            else:
                raise RecordError(f"unknown record {key!r}: written by a newer version?")
        _check_links(zxid, dict(nodes), {session.session_id for session in sessions})
        return ZnodeTree.restored(zxid, nodes, sessions)

    def write(self, changes: Sequence[Change]) -> None:
        """Make all changes durable, or none.

        Raises:
            ResourceError: the disk failed; whether the changes are on it is unknown.
        """
        assert not self._failed, "nothing is written after a failed write"
        assert changes, "there is something to write"
        batch = WriteBatch(raw_mode=True)
        for key, value in changes:
            if value is None:
                batch.delete(key)
            else:
                batch.put(key, value)
        try:
            self._database.write(batch, self._synced)
        except Exception as error:
            self._failed = True
            raise ResourceError(f"cannot write metadata: {error}", field="directory") from error

    def close(self) -> None:
        """Close the database."""
        self._database.close()


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    # Only the end of the log may be torn (by the crash that cut it); damage before it is an error, not an old state.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_keep_log_file_num(INFO_LOG_FILES_MAX)
    return options


def _check_links(zxid: int, nodes: dict[str, Znode], sessions: set[int]) -> None:
    for path, node in nodes.items():
        if path != ROOT and parent_of(path) not in nodes and parent_of(path) != ROOT:
            raise RecordError(f"the parent of {path} is missing")
        if node.is_ephemeral and node.ephemeral_owner not in sessions:
            raise RecordError(f"the session of {path} is missing")
        if not node.is_ephemeral and not is_kind(node.ephemeral_owner):
            raise RecordError(f"{path} is of a kind that this program does not know: upgrade it")
        if node.last_zxid > zxid:
            raise RecordError(f"{path} is newer than the store's last transaction")
