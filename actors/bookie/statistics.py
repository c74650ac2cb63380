"""What a bookie says about itself: a frozen view, flat, the same on the wire, from the actor and as metrics."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """Counters are sums since the start, sizes in bytes, times in seconds."""

    bookie_id: str
    address: str
    is_read_only: bool
    is_registered: bool
    uptime_seconds: float
    connections: int
    ledgers: int
    entries_added: int
    adds_refused: int
    clients_refused: int
    journal_syncs: int
    journal_records: int
    journal_bytes_fsynced: int
    journal_sync_seconds: float
    journal_sync_seconds_max: float
    journal_queue_bytes: int
    journal_rotations: int
    journal_last_batch_records: int
    write_cache_bytes: int
    write_cache_entries: int
    checkpoints: int
    checkpoint_failures: int
    checkpoint_number: int
    bytes_flushed: int
    flush_seconds: float
    flush_seconds_max: float
    reads: int
    batch_reads: int
    bytes_read: int
    write_cache_hits: int
    read_cache_hits: int
    disk_reads: int
    read_aheads: int
    read_ahead_hits: int
    entries_damaged: int
    disk_reads_failed: int
    read_cache_bytes: int
    gc_rounds: int
    gc_failed_rounds: int
    ledgers_deleted: int
    ledgers_in_limbo: int
    ledgers_emptied: int
    limbo_cleared: int
    logs_removed: int
    logs_compacted: int
    logs_left_for_headroom: int
    minor_compactions: int
    major_compactions: int
    bytes_compacted: int
    free_bytes: int
    total_bytes: int
    replayed_files: int
    replayed_entries: int
    replayed_fences: int
    replay_seconds: float


# Everything that is a number or a yes or no is a metric too, so that no stage goes unseen.
GAUGES = tuple(field.name for field in fields(BookieStatistics) if field.type != "str")
