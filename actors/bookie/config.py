"""Settings of a bookie, and the bounds of its queues and caches with their units (I15)."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.actors.wire.frame import FRAME_BYTES_MAX, FRAME_SLACK_BYTES
from heliograph.base.errors import InvalidConfigError
from heliograph.base.guard.frame_budget import BUDGET_LEAST
from heliograph.base.guard.handshake import check_secret
from heliograph.base.guard.listener import ListenerLimits
from heliograph.base.peer import is_loopback
from heliograph.base.settings import SAME, check_limits, described, fields_added, port_setting, setting
from heliograph.base.tls.contexts import PeerTlsFiles

ENTRY_BYTES_MAX = FRAME_BYTES_MAX - FRAME_SLACK_BYTES  # so that any stored entry fits in an answer's frame
JOURNAL_BATCH_BYTES_MAX = 4 << 20  # about the most that one write and one sync carry
JOURNAL_SPARE_FILES_MAX = 3  # recycled journal files kept for the next rotations
JOURNAL_ADOPTED_FILES_MAX = 8  # spares, above which a dead entry log that was a journal file is removed
JOURNAL_QUEUE_BYTES_MAX = 64 << 20  # above it adds are refused with TOO_MANY_REQUESTS
CONNECTION_ADDS_BYTES_MAX = 16 << 20  # unanswered adds of one connection; above it the socket is not read
CONNECTION_REQUESTS_MAX = 1024  # unanswered requests other than adds of one connection; above it the socket waits
CONNECTION_BODIES_MAX = 4  # entries or batches of one connection that are read and not yet handed to its socket
BODIES_MAX = 16  # the same of all connections together
CONNECTION_OUT_BYTES_MAX = 4 << 20  # unsent answers of one connection; above it the socket is not read
SLOW_CLIENT_SECONDS_MAX = 30.0  # a client that reads no answer for this long is disconnected
RECEIVE_BYTES = 256 << 10  # read from a socket at once and processed before the event loop continues
RECEIVE_LARGE_BYTES = 512 << 10  # the same behind an incomplete large entry: a few entries, and fewer syncs for them
RECEIVE_SLAB_BYTES = 2 << 20  # memory that is read into piece by piece, while large entries stay where they were read
KEPT_BODY_BYTES_LEAST = 32 << 10  # of an entry that stays there; smaller ones are copied
GREETING_SECONDS_MAX = 10.0  # time for a client to say HELLO, and to prove that it knows the secret
GREETING_BYTES_MAX = 4096  # bytes read from a client before that
DISK_READS_MAX = 1024  # reads that wait for a thread, of all connections together
READ_BATCH_BYTES_MAX = 1 << 20  # of one answer with several entries; a larger entry comes alone
READ_AHEADS_MAX = 4  # batches read before they are asked for, of all clients together
READ_AHEAD_SECONDS_MAX = 1.0  # an unrequested one is dropped after this long
OPEN_LOGS_MAX = 64  # entry logs held open for reading

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")

assert 2 * RECEIVE_BYTES <= 2 * RECEIVE_LARGE_BYTES <= RECEIVE_SLAB_BYTES
assert JOURNAL_BATCH_BYTES_MAX + ENTRY_BYTES_MAX < JOURNAL_QUEUE_BYTES_MAX


@fields_added("disk", "local_sockets", "single_write_bytes")
@dataclass(frozen=True)
class BookieConfig:
    """Settings of one bookie.

    The identity is fixed for the bookie's life. Directories may move, and be added, from one start to the next; their
    cookies say which is which. All other settings may change with each start.
    """

    bookie_id: str = field(metadata=described("name in the metadata, recorded in the cookie", decided="bookies"))
    journal_directories: tuple[Path, ...] = field(
        metadata=described(
            "one journal in each; of a cluster: each bookie has a directory in each, default `data_directory`",
        )
    )
    data_directories: tuple[Path, ...] = field(
        metadata=described("entry logs and their index in each; of a cluster: as those of journals")
    )
    host: str = setting("127.0.0.1", "address of the listener", decided=SAME, is_of_nodes=True)
    port: int = port_setting(0, "port of the listener; 0: a free one", decided="the bookie, which takes a free port")
    rack: str = setting(
        "default", "failure domain, for placement", decided="the node label heliograph.io/rack", is_of_nodes=True
    )
    disk: str = setting(
        "",
        "directory above the bookie's directories that has to exist; empty: none",
        decided="the disks in the table [nodes.NAME.bookie]",
    )
    advertised_host: str | None = setting(None, "host that clients connect to; None: `host`")
    local_sockets: bool = setting(
        True, "clients of the same machine and user connect by a Unix socket, unless the listener has TLS"
    )
    write_cache_bytes: int = setting(64 << 20, "entries in memory between two flushes", least=4 * ENTRY_BYTES_MAX)
    read_cache_bytes: int = setting(32 << 20, "cache of entries that were read from disk", least=0)
    read_ahead_bytes: int = setting(
        256 << 10,
        "consecutive entries that one read from disk fetches at most, for a reader that goes in order",
        least=0,
    )
    read_threads: int = setting(2, "threads that read entry logs", least=1)
    journal_file_bytes: int = setting(64 << 20, "size at which a journal file is closed", least=16 << 10)
    journal_seal_ms: int = setting(
        100, "idle time after which an empty batch proves that the last one is whole", least=1
    )
    journal_loop_sync_us: int = setting(
        1_000,
        "while syncs take at most this long on average, the event loop writes small batches itself, which takes less "
        "processor time; else the journal's thread does; 0: always the thread",
        least=0,
        most=1_000_000,
    )
    single_write_bytes: int = setting(
        32 << 10,
        "entries of this size and larger are written once: they stay in their journal file, which becomes an entry "
        "log, where it is on the file system of the data directory; 0: off",
        least=0,
    )
    entry_log_bytes: int = setting(512 << 20, "size at which an entry log is closed", least=4 << 10, most=1 << 31)
    index_cache_bytes: int = setting(16 << 20, "block cache of RocksDB, which holds the locations of entries", least=0)
    flush_interval_ms: int = setting(10_000, "longest time between two flushes of the write cache", least=1)
    gc_interval_ms: int = setting(60_000, "time between two rounds of garbage collection", least=1)
    limbo_interval_ms: int = setting(
        5_000,
        "time between two looks at the ledgers that wait for their writer or for copies after a loss of storage",
        least=1,
    )
    limbo_grace_ms: int = setting(
        5_000,
        "time for the writer of an open ledger, fenced here after a loss of storage, before its recovery is requested",
        least=0,
    )
    surplus_interval_ms: int = setting(
        86_400_000, "time between two searches for entries of ledgers that the metadata places elsewhere", least=1
    )
    minor_compaction_live_share: float = setting(
        0.2, "minor compaction rewrites entry logs with a smaller share of live bytes", least=0, most=1
    )
    minor_compaction_interval_ms: int = setting(3_600_000, "time between two minor compactions", least=0)
    major_compaction_live_share: float = setting(
        0.8, "major compaction rewrites entry logs with a smaller share of live bytes", least=0, most=1
    )
    major_compaction_interval_ms: int = setting(
        86_400_000,
        "time between two major compactions; a bookie whose disk is nearly full runs one each round",
        least=0,
    )
    compaction_bytes_per_second: int = setting(32 << 20, "rate limit of compaction", least=1)
    compaction_headroom_bytes: int = setting(
        128 << 20, "free space that compaction leaves on a disk, however much it could reclaim", least=0
    )
    scrub_bytes_per_second: int = setting(
        4 << 20, "rate at which stored entries are read in the background to find damaged ones; 0: off", least=0
    )
    scrub_interval_ms: int = setting(
        604_800_000, "time between the starts of two scrubs of all entries; the first one starts after 10 min", least=1
    )
    space_check_ms: int = setting(10_000, "time between two checks of the disks' free space", least=1)
    space_report_ms: int = setting(
        60_000, "greatest age of the free space in the metadata, by which writers choose bookies", least=1
    )
    session_timeout_ms: int = setting(10_000, "timeout of the registration in the metadata", least=1, decided=SAME)
    full_share: float = setting(
        0.95,
        "used share of a disk above which the bookie turns read-only, if less than `headroom_bytes` is free",
        above=0,
        most=1,
    )
    writable_share: float = setting(
        0.92,
        "used share below which every disk must be, or have `headroom_bytes` free, for the bookie to write again",
        above=0,
        most=1,
    )
    warning_share: float = setting(
        0.85,
        "used share of a disk above which the bookie warns, if less than twice `headroom_bytes` is free",
        above=0,
        most=1,
    )
    headroom_bytes: int = setting(8 << 30, "free space with which a disk is not full, whatever its used share", least=0)
    recovery_headroom_bytes: int = setting(
        256 << 20, "free space with which a disk still accepts the adds of ledger recovery", least=0
    )
    connections_max: int = setting(4_096, "open connections; further ones are closed at once", least=1)
    connections_per_address_max: int = setting(
        2_048, "the same of one address; an IPv6 address counts by its /64", least=1
    )
    unfinished_bytes_max: int = setting(
        256 << 20,
        "bytes of frames that are not complete, of all connections; one address may have half of it. Above it sockets "
        "are not read, and connections whose frames do not go on are closed",
        least=BUDGET_LEAST,
    )
    unfinished_ms_max: int = setting(
        30_000, "time in which a frame has to arrive, and one second more for each 16 KiB of it", least=1
    )
    cluster_secret: str | None = setting(
        None, "secret that clients prove; None: loopback only, open", is_secret=True, decided=SAME
    )
    tls: PeerTlsFiles | None = setting(
        None,
        "files of mutual TLS with the other parts; None: connections are plain",
        decided="internal_tls_certificate_file, internal_tls_key_file and internal_tls_ca_file",
    )
    accept_storage_loss: bool = setting(
        False, "start on lost directories; ledgers whose entries are in doubt go into limbo"
    )

    @property
    def reserve_bytes(self) -> int:
        """The free space that each disk keeps, however small it is: a journal file and a flush of the write cache."""
        return self.journal_file_bytes + self.write_cache_bytes

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.bookie_id):
            raise InvalidConfigError(f"bookie id {self.bookie_id!r}", field="bookie_id", limit=_NAME.pattern)
        for name, directories in (
            ("journal_directories", self.journal_directories),
            ("data_directories", self.data_directories),
        ):
            if not directories or len(set(directories)) != len(directories):
                raise InvalidConfigError(f"{name} must name one or more directories, each once", field=name)
        check_limits(self)
        check_secret(self.cluster_secret)
        if self.cluster_secret is None and not is_loopback(self.host):
            raise InvalidConfigError(
                f"a bookie on {self.host} is reached from other machines: give the cluster a secret",
                field="cluster_secret",
                limit="without a secret only loopback addresses",
            )
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

    @property
    def listener(self) -> ListenerLimits:
        return ListenerLimits(
            self.connections_max, self.connections_per_address_max, self.unfinished_bytes_max, self.unfinished_ms_max
        )
