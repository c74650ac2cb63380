"""Counts of all topics of a broker together, for its metrics."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from heliograph.actors.broker.limits.rates import RateWindow
from heliograph.metrics.metric import SIZE_BOUNDS, Histogram

TIMED_TURN = 8  # one turn of dispatch in so many is timed


class Traffic:
    """Sums since the start of the broker. They stay when a topic is unloaded, as counters have to.

    The paths of publishing and delivery add to the fields themselves: a call for each entry costs more than the adding.

    Attributes:
        entry_bytes: counts alone; their sum is ``bytes_in``.
        dispatch_duration: of the turns in which subscriptions deliver, of some of them.
        acknowledgement_latency: of writes to the ledgers of cursors.
        read_latency: of reads from bookies.
        metadata_latency: of calls to the metadata store.
        fenced: open topics that another broker took over.
        taken_over: topics that were loaded without an orderly end at the broker before.
    """

    __slots__ = (
        *("acknowledgement_latency", "bytes_in", "bytes_out", "delivery_latency", "dispatch_duration", "entry_bytes"),
        *("fenced", "messages_in", "messages_out", "metadata_latency", "publish_latency", "read_latency", "taken_over"),
        *("_minute", "_turns"),
    )

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0
        self.fenced = self.taken_over = 0
        self._turns = 0  # of dispatch
        self.publish_latency = Histogram()
        self.delivery_latency = Histogram()
        self.dispatch_duration = Histogram()
        self.acknowledgement_latency = Histogram()
        self.read_latency = Histogram()
        self.metadata_latency = Histogram()
        self.entry_bytes = Histogram(SIZE_BOUNDS)
        self._minute = RateWindow(time.monotonic(), len(self._counts()))

    def dispatch(self, turn: Callable[[], None]) -> None:
        """Run a turn of dispatch, and time it if its number says so."""
        self._turns += 1
        if self._turns % TIMED_TURN:
            turn()
            return
        began = time.perf_counter()
        turn()
        self.dispatch_duration.observe(time.perf_counter() - began)

    def sample(self, now: float) -> None:
        """Note the histograms of entries, for what ``of_a_minute`` returns later."""
        self._minute.sample(now, *self._counts())

    def of_a_minute(self, now: float) -> dict[str, list[float]]:
        """Return how many entries each bucket took in a minute, over the last one: what Pulsar's own metrics have."""
        found = [rate * 60 for rate in self._minute.rates(now, *self._counts())]
        width = len(self.publish_latency.counts)
        return {"publish_latency": found[:width], "entry_bytes": found[width:]}

    def told(self) -> dict[str, Any]:
        """Return these figures for the broker's statistics."""
        return {
            "publish_latency": self.publish_latency.told(),
            "delivery_latency": self.delivery_latency.told(),
            "dispatch_duration": self.dispatch_duration.told(),
            "acknowledgement_latency": self.acknowledgement_latency.told(),
            "read_latency": self.read_latency.told(),
            "metadata_latency": self.metadata_latency.told(),
            "entry_bytes": {**self.entry_bytes.told(), "sum": self.bytes_in},
            "topics_fenced": self.fenced,
            "topics_taken_over": self.taken_over,
            "messages_in": self.messages_in,
            "entries_in": sum(self.publish_latency.counts),
            "bytes_in": self.bytes_in,
            "messages_out": self.messages_out,
            "bytes_out": self.bytes_out,
        }

    def _counts(self) -> list[int]:
        return [*self.publish_latency.counts, *self.entry_bytes.counts]


NOT_EXPORTED = Traffic()  # counts what belongs to no broker, as ledgers in tests
