"""Which batches of a journal the event loop writes and syncs itself. Pure: no thread, no clock, no file.

Passing a batch to the journal's thread and its outcome back costs more processor time than the write and the sync of a
small batch. So while batches are light, the event loop commits them; the adds that arrive meanwhile wait in the sockets
and form the next batch. A batch is light if it has few records and few bytes and syncs are short on average: a single
slow one, as any disk has, would not be shorter on the thread. One batch that is not light returns the journal to its
thread, until enough batches in a row were light again.
"""

from __future__ import annotations

LOOP_RECORDS_MAX = 8  # records of a light batch
LOOP_BYTES_MAX = 64 << 10  # of a light batch in the file
LIGHT_BATCHES_LEAST = 8  # light batches in a row, before the event loop commits one
AVERAGED_SYNCS = 8  # that the average follows; one of them counts as so many times the bound at most


class LoopCommits:
    """The rule of one journal. It starts without the permission, so the first batches measure the disk."""

    def __init__(self, sync_seconds_max: float) -> None:
        """
        Args:
            sync_seconds_max: longest average sync of light batches, in seconds; 0: the event loop commits nothing.
        """
        assert sync_seconds_max >= 0, "a time is not negative"
        self._sync_seconds_max = sync_seconds_max
        self._sync_seconds = 0.0  # the average
        self._light_batches = 0  # 0 <= light batches <= LIGHT_BATCHES_LEAST

    def note(self, records: int, size: int, sync_seconds: float) -> None:
        """Take into account a batch that is durable, of the loop or the thread: records, bytes, seconds of its sync."""
        most = self._sync_seconds_max
        counted = sync_seconds if sync_seconds < AVERAGED_SYNCS * most else AVERAGED_SYNCS * most
        self._sync_seconds += (counted - self._sync_seconds) / AVERAGED_SYNCS
        if self._sync_seconds > most or not most or records > LOOP_RECORDS_MAX or size > LOOP_BYTES_MAX:
            self._light_batches = 0
        elif self._light_batches < LIGHT_BATCHES_LEAST:
            self._light_batches += 1

    def permits(self, records: int, size: int) -> bool:
        """Return whether the event loop may commit a batch of so many records and bytes."""
        is_small = records <= LOOP_RECORDS_MAX and size <= LOOP_BYTES_MAX
        return is_small and self._light_batches >= LIGHT_BATCHES_LEAST
