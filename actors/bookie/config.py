"""Settings of one bookie, and every bound of its queues and caches with its unit (I15)."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path

from actors.wire.frame import FRAME_BYTES_MAX, FRAME_SLACK_BYTES
from actors.wire.handshake import check_secret
from heliograph.errors import InvalidConfigError

ENTRY_BYTES_MAX = FRAME_BYTES_MAX - FRAME_SLACK_BYTES  # so that any stored entry fits in an answer's frame
JOURNAL_BATCH_BYTES_MAX = 4 << 20  # one write and one sync carry about this much at most
JOURNAL_SPARE_FILES_MAX = 3  # recycled journal files kept for the next rotations
JOURNAL_QUEUE_BYTES_MAX = 64 << 20  # above it adds are refused with TOO_MANY_REQUESTS
CONNECTION_ADDS_BYTES_MAX = 16 << 20  # unanswered adds of one connection; above it the socket is not read
CONNECTION_REQUESTS_MAX = 1024  # unanswered requests other than adds of one connection; above it the socket waits
CONNECTION_BODIES_MAX = 4  # entries or batches of one connection that are read and not yet handed to its socket
CONNECTION_OUT_BYTES_MAX = 4 << 20  # unsent answers of one connection; above it the socket is not read
SLOW_CLIENT_SECONDS_MAX = 30.0  # a client that takes no answer for so long is disconnected
RECEIVE_BYTES = 256 << 10  # taken from a socket at once, and worked off before the event loop goes on
GREETING_SECONDS_MAX = 10.0  # a client that has not proved by then that it knows the secret is disconnected
GREETING_BYTES_MAX = 4096  # bytes taken from a client before that
CONNECTIONS_MAX = 4096  # sockets; the next one is closed at once
DISK_READS_MAX = 1024  # reads that wait for a thread, of all connections together
LONG_POLL_MS_MAX = 60_000
READ_BATCH_BYTES_MAX = 1 << 20  # of one answer with several entries; a larger entry comes alone
READ_AHEADS_MAX = 4  # batches read before they are asked for, of all clients together
READ_AHEAD_SECONDS_MAX = 1.0  # one that nobody asks for is dropped after so long
OPEN_LOGS_MAX = 64  # entry logs held open for reading

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

assert JOURNAL_BATCH_BYTES_MAX + ENTRY_BYTES_MAX < JOURNAL_QUEUE_BYTES_MAX


@dataclass(frozen=True)
class BookieConfig:
    """One bookie. Identity and directories hold for its life (its cookie keeps them), the rest is free per start.

    ``full_share`` and ``writable_share`` are used shares of a disk: a data or journal disk above the first, with less
    than ``headroom_bytes`` free, makes the bookie read-only until all are below the second or have that much free.
    """

    bookie_id: str
    journal_directories: tuple[Path, ...]
    data_directories: tuple[Path, ...]
    host: str = "127.0.0.1"
    port: int = 0
    rack: str = "default"
    advertised_host: str | None = None  # what others connect to, when it is not `host`
    write_cache_bytes: int = 64 << 20
    read_cache_bytes: int = 32 << 20
    read_ahead_bytes: int = 256 << 10
    read_threads: int = 2
    journal_file_bytes: int = 64 << 20
    journal_seal_ms: int = 100  # idle time after which the last batch is proved to be whole by an empty one behind it
    entry_log_bytes: int = 512 << 20
    index_cache_bytes: int = 16 << 20
    flush_interval_ms: int = 10_000
    gc_interval_ms: int = 60_000
    surplus_interval_ms: int = 86_400_000  # between two looks for entries of ledgers that metadata places elsewhere
    minor_compaction_live_share: float = 0.2  # entry logs with a smaller share of live bytes are rewritten
    minor_compaction_interval_ms: int = 3_600_000
    major_compaction_live_share: float = 0.8
    major_compaction_interval_ms: int = 86_400_000  # while the disk is nearly full: every round
    compaction_bytes_per_second: int = 32 << 20
    compaction_headroom_bytes: int = 128 << 20  # compaction leaves so much of a disk free, whatever it could win
    space_check_ms: int = 10_000
    space_report_ms: int = 60_000  # the free space in metadata, by which writers choose bookies, is not older
    session_timeout_ms: int = 10_000  # of the registration in metadata: after it others take the bookie for gone
    full_share: float = 0.95
    writable_share: float = 0.92
    headroom_bytes: int = 8 << 30
    recovery_headroom_bytes: int = 256 << 20  # recovery adds go on while a disk has this much free
    cluster_secret: str | None = field(default=None, repr=False)  # None: anybody may connect, from this machine only
    accept_storage_loss: bool = False  # start on lost directories: every doubtful ledger goes into limbo

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.bookie_id):
            raise InvalidConfigError(f"bookie id {self.bookie_id!r}", field="bookie_id", limit=_NAME.pattern)
        for name, directories in (
            ("journal_directories", self.journal_directories),
            ("data_directories", self.data_directories),
        ):
            if not directories or len(set(directories)) != len(directories):
                raise InvalidConfigError(f"{name} must name one or more directories, each once", field=name)
        self._check_at_least("write_cache_bytes", 4 * ENTRY_BYTES_MAX)
        self._check_at_least("journal_file_bytes", 16 << 10)
        self._check_at_least("journal_seal_ms", 1)
        self._check_at_least("entry_log_bytes", 4 << 10)
        self._check_at_least("read_threads", 1)
        self._check_at_least("flush_interval_ms", 1)
        self._check_at_least("gc_interval_ms", 1)
        self._check_at_least("space_check_ms", 1)
        self._check_at_least("space_report_ms", 1)
        self._check_at_least("surplus_interval_ms", 1)
        if self.entry_log_bytes > 1 << 31:
            raise InvalidConfigError("entry logs are at most 2 GiB", field="entry_log_bytes", limit="2147483648 bytes")
        check_secret(self.cluster_secret)
        if self.cluster_secret is None and not _is_loopback(self.host):
            raise InvalidConfigError(
                f"a bookie on {self.host} is reached from other machines: give the cluster a secret",
                field="cluster_secret",
                limit="without a secret only loopback addresses",
            )
        self._check_at_least("compaction_bytes_per_second", 1)
        if not 0 <= self.minor_compaction_live_share <= self.major_compaction_live_share <= 1:
            raise InvalidConfigError(
                "live shares must satisfy 0 <= minor_compaction_live_share <= major_compaction_live_share <= 1",
                field="minor_compaction_live_share,major_compaction_live_share",
            )
        if not 0 < self.writable_share <= self.full_share <= 1:
            raise InvalidConfigError(
                "disk shares must satisfy 0 < writable_share <= full_share <= 1", field="full_share,writable_share"
            )
        if self.recovery_headroom_bytes > self.headroom_bytes:
            raise InvalidConfigError(
                "recovery needs less headroom than ordinary adds", field="recovery_headroom_bytes,headroom_bytes"
            )

    def _check_at_least(self, field: str, least: int) -> None:
        if getattr(self, field) < least:
            raise InvalidConfigError(f"{field} is {getattr(self, field)}", field=field, limit=f"at least {least}")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
