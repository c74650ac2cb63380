"""What a broker counts of all its topics together, for its metrics."""

from __future__ import annotations

from heliograph.metrics.metric import Histogram


class Traffic:
    """Sums since the start of the broker. They stay when a topic is unloaded, as counters have to.

    The paths of publishing and delivery add to the fields themselves: a call for each entry costs more than the adding.
    """

    __slots__ = ("bytes_in", "bytes_out", "delivery_latency", "messages_in", "messages_out", "publish_latency")

    def __init__(self) -> None:
        self.messages_in = self.bytes_in = self.messages_out = self.bytes_out = 0
        self.publish_latency = Histogram()
        self.delivery_latency = Histogram()


NOT_EXPORTED = Traffic()  # counts what belongs to no broker, as ledgers in tests
