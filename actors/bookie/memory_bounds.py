"""Bounds of a bookie's memory by holder; their sum is its budget (I15)."""

from __future__ import annotations

from heliograph.actors.bookie import config as bounds
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.store.index import WRITE_BUFFER_BYTES, WRITE_BUFFERS_MAX
from heliograph.actors.bookie.store.payloads import READ_BUFFER_BYTES
from heliograph.base.guard.listener import UNSENT_TOTAL_BYTES_MAX

# State of each ledger, and its bytes in each entry log: 1 kB a ledger, so 128,000 ledgers.
LEDGERS_BYTES = 128 << 20


def memory_bounds(config: BookieConfig) -> dict[str, int]:
    """Return the bytes that a bookie with these settings holds at most, by what holds them."""
    journals, stores = len(config.journal_directories), len(config.data_directories)
    one_journal = bounds.JOURNAL_QUEUE_BYTES_MAX + 2 * (bounds.JOURNAL_BATCH_BYTES_MAX + bounds.ENTRY_BYTES_MAX)
    bodies = bounds.READ_AHEADS_MAX + bounds.BODIES_MAX + bounds.CONNECTION_BODIES_MAX  # the last in this process
    return {
        "write cache": config.write_cache_bytes,
        "memory that sockets are read into": config.write_cache_bytes,  # what the cache keeps is a part of it
        "read cache": config.read_cache_bytes,
        "journal queues": journals * one_journal,
        "index": stores * (config.index_cache_bytes + WRITE_BUFFERS_MAX * WRITE_BUFFER_BYTES),
        "entries that are read and not sent": bodies * (bounds.READ_BATCH_BYTES_MAX + bounds.ENTRY_BYTES_MAX)
        + config.read_threads * READ_BUFFER_BYTES,
        "frames that are not complete": config.unfinished_bytes_max,
        "answers that clients do not read": UNSENT_TOTAL_BYTES_MAX,
        "ledgers": LEDGERS_BYTES,
    }
