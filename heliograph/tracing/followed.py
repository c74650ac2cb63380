"""Events of followed entries, in the memory of the process that caused them."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from heliograph.base.clock import wall_ms

STEPS_MAX = 64  # remembered of one entry: the first ones  # I15
BYTES_MAX = 32 << 20  # of all entries and their steps, as they are estimated  # I15
FOUND_MAX = 1_000  # entries of one trace that are shown: the first ones  # I15
_ENTRY_BYTES = 700  # of an entry in all tables
_STEP_BYTES = 450  # of a step without its texts

Entry = tuple[int, int]  # ids of the ledger and of the entry


@dataclass(slots=True)
class _Followed:
    """The remembered events of an entry; ``size`` is their estimated bytes."""

    trace_id: int
    size: int = _ENTRY_BYTES
    steps: list[dict[str, Any]] = field(default_factory=list)


class FollowedEntries:
    """The steps of the entries that were followed last. All calls on one event loop.

    Args:
        entries_max: entries that are remembered; the one whose last step is the oldest goes first.
    """

    def __init__(self, entries_max: int) -> None:
        self.bytes = 0  # the sum of ``size`` of all entries
        self._max = entries_max
        self._entries: OrderedDict[Entry, _Followed] = OrderedDict()
        self._traces: dict[int, dict[Entry, None]] = {}  # the entries of each trace; together the keys of ``_entries``

    def note(self, entry: Entry, trace_id: int, step: str, at_ms: int = 0, **facts: Any) -> None:
        """Note a step of an entry.

        Args:
            at_ms: when it was, by this machine's clock; 0: now.
            facts: of the step, such as a subscription.
        """
        found = self._entries.get(entry)
        if found is None:
            if len(self._entries) >= self._max:
                self._forget_oldest()
            found = self._entries[entry] = _Followed(trace_id)
            self._traces.setdefault(trace_id, {})[entry] = None
            self.bytes += found.size
        else:
            self._entries.move_to_end(entry)
        if len(found.steps) < STEPS_MAX:
            found.steps.append({"step": step, "at_ms": at_ms or wall_ms(), **facts})
            size = _STEP_BYTES + sum(len(value) for value in facts.values() if isinstance(value, str))
            found.size += size
            self.bytes += size
        while self.bytes > BYTES_MAX and len(self._entries) > 1:
            self._forget_oldest()

    def steps(self, entry: Entry) -> list[dict[str, Any]]:
        """Return the steps of an entry in their order; none if it is not remembered."""
        found = self._entries.get(entry)
        return [] if found is None else list(found.steps)

    def trace_of(self, entry: Entry) -> str:
        """Return the trace of an entry in hexadecimal; empty if it is not remembered."""
        found = self._entries.get(entry)
        return "" if found is None else f"{found.trace_id:032x}"

    def entries_of(self, trace_id: int) -> list[Entry]:
        """Return the remembered entries of a trace, ``FOUND_MAX`` at most."""
        return list(islice(self._traces.get(trace_id, ()), FOUND_MAX))

    def _forget_oldest(self) -> None:
        entry, found = self._entries.popitem(last=False)
        self.bytes -= found.size
        of_trace = self._traces[found.trace_id]
        del of_trace[entry]
        if not of_trace:
            del self._traces[found.trace_id]

    def __len__(self) -> int:
        return len(self._entries)
