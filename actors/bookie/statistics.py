"""The statistics of a bookie: a flat, frozen view, the same on the wire, from the actor and as metrics."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from heliograph.base.settings import described


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """The figures of one bookie. Counters are sums since the start, sizes are bytes, times are seconds."""

    bookie_id: str
    address: str
    is_read_only: bool = field(metadata=described("1 while the bookie accepts no new entries"))
    is_registered: bool = field(metadata=described("1 while the bookie is registered in the metadata"))
    uptime_seconds: float = field(metadata=described("time since the start"))
    memory_bytes: int = field(metadata=described("memory of the process, without programs and libraries"))
    memory_budget_bytes: int = field(metadata=described("memory that the process may use, with all parts in it"))
    unsent_closed: int = field(metadata=described("connections closed because they did not read their answers"))
    connections: int = field(metadata=described("open connections"))
    connections_local: int = field(metadata=described("connections accepted over the Unix socket of this machine"))
    connections_refused: int = field(
        metadata=described("connections refused because all, or an address, had as many as they may")
    )
    unfinished_bytes: int = field(metadata=described("bytes held of frames that are not complete"))
    unfinished_closed: int = field(
        metadata=described("connections closed because a frame did not arrive in its time, or there was no room for it")
    )
    ledgers: int = field(metadata=described("ledgers with entries or a fence on this bookie"))
    entries_added: int = field(metadata=described("entries stored"))
    adds_refused: int = field(metadata=described("adds refused: read-only, overloaded, or the ledger is fenced"))
    clients_refused: int = field(metadata=described("clients that did not prove the cluster's secret"))
    journal_syncs: int = field(metadata=described("syncs of journals"))
    journal_loop_syncs: int = field(metadata=described("syncs of journals that the event loop made itself"))
    journal_records: int = field(metadata=described("records written to journals"))
    journal_bytes_fsynced: int = field(
        metadata=described("bytes written to journals and synced; divided by the syncs: the size of a batch")
    )
    journal_sync_seconds: float = field(
        metadata=described("time in syncs of journals; divided by the syncs: the time of one")
    )
    journal_sync_seconds_max: float = field(metadata=described("longest sync of a journal"))
    journal_queue_bytes: int = field(metadata=described("records that wait for a journal"))
    journal_rotations: int = field(metadata=described("journal files closed because they were full"))
    journal_last_batch_records: int = field(metadata=described("records in the latest batch of a journal"))
    write_cache_bytes: int = field(metadata=described("entries in the write cache"))
    write_cache_entries: int = field(metadata=described("entries in the write cache"))
    checkpoints: int = field(
        metadata=described("checkpoints that ended: the write cache is flushed, journal files are recycled")
    )
    checkpoint_failures: int = field(metadata=described("checkpoints that failed and are repeated"))
    checkpoint_number: int = field(metadata=described("number of the latest checkpoint that was begun"))
    bytes_flushed: int = field(metadata=described("bytes written to entry logs by flushes"))
    bytes_kept: int = field(
        metadata=described("bytes of entries that flushes left in journal files, which became entry logs")
    )
    kept_logs: int = field(metadata=described("journal files that serve as entry logs"))
    flush_seconds: float = field(metadata=described("time in flushes"))
    flush_seconds_max: float = field(metadata=described("longest flush"))
    reads: int = field(metadata=described("reads of one entry"))
    batch_reads: int = field(metadata=described("reads of several entries"))
    bytes_read: int = field(metadata=described("payload of the entries read"))
    write_cache_hits: int = field(metadata=described("entries read from the write cache"))
    read_cache_hits: int = field(metadata=described("entries read from the read cache"))
    disk_reads: int = field(metadata=described("reads of entry logs"))
    read_aheads: int = field(metadata=described("batches read before they were requested"))
    read_ahead_hits: int = field(metadata=described("batches read ahead that were requested then"))
    entries_damaged: int = field(metadata=described("entries on disk with a wrong checksum"))
    disk_reads_failed: int = field(metadata=described("reads of entry logs that failed"))
    read_cache_bytes: int = field(metadata=described("entries in the read cache"))
    gc_rounds: int = field(metadata=described("rounds of garbage collection"))
    gc_failed_rounds: int = field(metadata=described("rounds of garbage collection that failed"))
    gc_rounds_without_deletion: int = field(
        metadata=described("rounds that deleted no ledger because a restored backup was not accepted")
    )
    ledgers_deleted: int = field(metadata=described("ledgers deleted because the metadata has them no more"))
    ledgers_in_limbo: int = field(metadata=described("ledgers whose entries are in doubt after a loss of storage"))
    ledgers_emptied: int = field(
        metadata=described("ledgers whose entries were deleted because the metadata places them on other bookies")
    )
    limbo_cleared: int = field(metadata=described("ledgers that are no longer in doubt"))
    logs_removed: int = field(metadata=described("entry logs deleted because no live entry was left"))
    logs_compacted: int = field(metadata=described("entry logs rewritten"))
    logs_left_for_headroom: int = field(
        metadata=described("entry logs not rewritten because `bookie.compaction_headroom_bytes` would not be left")
    )
    minor_compactions: int = field(metadata=described("minor compactions"))
    major_compactions: int = field(metadata=described("major compactions"))
    bytes_compacted: int = field(metadata=described("live bytes that compaction rewrote"))
    scrub_passes: int = field(metadata=described("scrubs of all entries that ended; sums of scrubs outlive a restart"))
    scrub_entries: int = field(metadata=described("entries that scrubs verified"))
    scrub_bytes: int = field(metadata=described("bytes that scrubs read"))
    scrub_damaged_entries: int = field(metadata=described("entries that scrubs found damaged"))
    scrub_incomplete_ledgers: int = field(
        metadata=described("ledgers of which scrubs found entries missing that belong on the bookie")
    )
    scrub_ledgers_marked: int = field(metadata=described("ledgers that scrubs marked for repair"))
    scrub_ledgers_mended: int = field(metadata=described("ledgers that scrubs marked and that were repaired since"))
    scrub_ledgers_left: int = field(metadata=described("ledgers that the running scrub has not read yet"))
    scrub_begun_ms: int = field(metadata=described("when the latest scrub began, since the epoch; 0: never"))
    scrub_ended_ms: int = field(metadata=described("when the latest complete scrub ended, since the epoch; 0: never"))
    scrub_next_ledger: int = field(
        metadata=described("place of the running scrub: ledgers below were read; -1: none is under way")
    )
    scrub_entries_per_second: float = field(
        metadata=described("entries that the running scrub verifies in a second, or the latest one of this process did")
    )
    is_scrub_paused: bool = field(metadata=described("1 while scrubs are paused"))
    is_disk_full: bool = field(metadata=described("1 while a disk is full and the bookie is read-only for that"))
    is_disk_nearly_full: bool = field(metadata=described("1 while a disk is above `bookie.warning_share`, or full"))
    disk_used_share: float = field(metadata=described("used share of the fullest disk, 0 to 1"))
    free_bytes: int = field(metadata=described("free space of the disk that has least"))
    total_bytes: int = field(metadata=described("size of the disks"))
    replayed_files: int = field(metadata=described("journal files replayed by the start"))
    replayed_entries: int = field(metadata=described("entries replayed by the start"))
    replayed_fences: int = field(metadata=described("fences replayed by the start"))
    replay_seconds: float = field(metadata=described("time of the replay"))


# Every number and every flag is a metric too.
GAUGES = tuple(item.name for item in fields(BookieStatistics) if item.type != "str")
