"""The statistics of a bookie: a flat, frozen view, the same on the wire, from the actor and as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BookieStatistics:
    """The figures of one bookie, whose meaning is in ``heliograph/metrics/bookie.py``: each number is a metric.

    Counters are sums since the start, sizes are bytes, times are seconds.
    """

    bookie_id: str
    address: str
    is_read_only: bool
    is_registered: bool
    uptime_seconds: float
    memory_bytes: int
    memory_budget_bytes: int
    unsent_closed: int
    connections: int
    connections_local: int
    connections_refused: int
    unfinished_bytes: int
    unfinished_closed: int
    ledgers: int
    entries_added: int
    adds_refused: int
    clients_refused: int
    journal_syncs: int
    journal_loop_syncs: int
    journal_records: int
    journal_bytes_fsynced: int
    journal_sync_seconds: float
    journal_sync_seconds_max: float
    journal_sync_latency: Mapping[str, Any]
    read_latency: Mapping[str, Any]
    journal_queue_bytes: int
    journal_rotations: int
    journal_last_batch_records: int
    write_cache_bytes: int
    write_cache_entries: int
    checkpoints: int
    checkpoint_failures: int
    checkpoint_number: int
    bytes_flushed: int
    bytes_kept: int
    kept_logs: int
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
    gc_rounds_without_deletion: int
    gc_metadata_reads: int
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
    scrub_passes: int
    scrub_entries: int
    scrub_bytes: int
    scrub_damaged_entries: int
    scrub_incomplete_ledgers: int
    scrub_ledgers_marked: int
    scrub_ledgers_mended: int
    scrub_ledgers_left: int
    scrub_begun_ms: int
    scrub_ended_ms: int
    scrub_next_ledger: int
    scrub_entries_per_second: float
    is_scrub_paused: bool
    is_disk_full: bool
    is_disk_nearly_full: bool
    disk_used_share: float
    free_bytes: int
    total_bytes: int
    replayed_files: int
    replayed_entries: int
    replayed_fences: int
    replay_seconds: float
    certificate_end_timestamp_seconds: float  # since the epoch; 0: no TLS
