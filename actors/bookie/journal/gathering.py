"""How many large records a journal's thread waits for before it writes a batch. Pure: no thread, no clock, no file.

Each batch wakes the thread, the event loop and the client, however few records it has. So where large records come one
after the other, batches of two or three take much less processor time for each. The rule follows the load:

- It begins when records were queued while a batch was written, so a client that waits for each of its adds never waits
  longer.
- A batch waits for as many records as the last one had. If clients wait for their answers, more will not come.
- If all of them came in time, the next batch waits for one more. If not, the number that came is kept for a while.
"""

from __future__ import annotations

GATHERED_BYTES_MAX = 512 << 10  # of a batch: above it one more record saves little
GATHERED_AVERAGE_LEAST = 16 << 10  # bytes of a record; batches of smaller ones are many at once, or the event loop's
PATIENT_BATCHES = 4  # after a wait in vain, before a batch waits for more records than the last one had


class Gathering:
    """The rule of one journal."""

    def __init__(self, wait_seconds: float) -> None:
        """
        Args:
            wait_seconds: longest wait of a batch; 0: no batch waits.
        """
        assert wait_seconds >= 0, "a time is not negative"
        self.wait_seconds = wait_seconds
        self._wanted = 1  # 1 <= wanted: records that the next batch waits for
        self._held = 0  # 0 <= held <= PATIENT_BATCHES: batches before one waits for more

    def wanted(self, records: int, size: int, *, were_queued: bool) -> int:
        """Return the number of records that a batch waits for; 0 or at most ``records`` if it waits for none.

        Args:
            records: that are queued, at least 1.
            size: bytes of their payloads.
            were_queued: some of them came while the last batch was written.
        """
        if not self.wait_seconds or size >= GATHERED_BYTES_MAX or size < GATHERED_AVERAGE_LEAST * records:
            return 0
        if self._wanted == 1 and were_queued and not self._held:
            self._wanted = 2
        return self._wanted

    def note(self, records: int, size: int, wanted: int) -> None:
        """Take into account a batch that ``wanted`` so many records and has ``records`` of ``size`` bytes."""
        if self._held:
            self._held -= 1
        if not wanted:
            self._wanted = 1
        elif size >= GATHERED_BYTES_MAX:
            return
        elif records < wanted:  # in vain
            self._wanted, self._held = max(records, 1), PATIENT_BATCHES
        elif wanted > 1 and not self._held:
            self._wanted = wanted + 1
