"""The spans of one entry in its broker: publish, a copy on each bookie, receipt, dispatch, acknowledge.

Only entries whose ``TopicEntry.trace`` is set come here. Attributes have the names of OpenTelemetry's conventions for
messaging; those of ours begin with ``heliograph.``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from typing_extensions import override

from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_entry import Publication, TopicEntry
from heliograph.base.errors import HeliographError
from heliograph.tracing import tracer as tracing
from heliograph.tracing.context import TraceContext
from heliograph.tracing.tracer import SYSTEM, SpanKind, Tracer, TraceSpan

OPEN_DELIVERIES_MAX = 1_000  # of one subscription, whose acknowledgement will be a span; the newest ones  # I15


class TracedPublication(Publication):
    """A publication that makes spans of what happens to it. It is the observer of its add, too.

    Args:
        tracer: the process's.
        parent: the context that came with the message.
        topic: its full name.
        entry: the published entry.
        publication: gets the outcome.
    """

    __slots__ = ("_answered", "_copies", "_parent", "_position", "_publication", "_span", "_topic", "_tracer")

    def __init__(
        self, tracer: Tracer, parent: TraceContext, topic: str, entry: TopicEntry, publication: Publication
    ) -> None:
        self._tracer = tracer
        self._parent = parent
        self._topic = topic
        self._publication = publication
        self._copies: dict[str, TraceSpan] = {}  # by bookie, until it has answered
        self._answered: list[tuple[str, int, str]] = []  # bookie, time in ms, error: before the position is known
        self._position: Position | None = None
        self._span = tracer.begin(
            f"publish {topic}",
            SpanKind.SERVER,
            parent,
            {
                **_of_topic("publish", topic),
                "messaging.batch.message_count": entry.messages,
                "messaging.message.body.size": len(entry.payload),
            },
        )

    # -- the observer of the add

    def sent(self, bookies: Iterable[str]) -> None:
        """Note that the entry was sent to bookies."""
        for bookie in bookies:
            attributes = {"heliograph.bookie": bookie}
            self._copies[bookie] = self._tracer.begin(f"add {bookie}", SpanKind.CLIENT, self._span.context, attributes)

    def answered(self, bookie: str, error: str) -> None:
        """Note that a bookie has the entry on its disk, or why not."""
        copy = self._copies.pop(bookie, None)
        if copy is None:
            return
        copy.end(error)
        if self._position is None:
            self._answered.append((bookie, tracing.now_ns() // 1_000_000, error))
        else:
            self._note_copy(self._position, bookie, 0, error)

    # -- the publication

    @override
    def confirmed(self, position: Position) -> None:
        self._position = position
        receipt = self._tracer.begin(f"receipt {self._topic}", SpanKind.INTERNAL, self._span.context, {})
        self._publication.confirmed(position)
        receipt.end()
        self._span.set("messaging.message.id", str(position))
        self._span.end()
        for bookie, at_ms, error in self._answered:
            self._note_copy(position, bookie, at_ms, error)
        self._answered.clear()
        self._tracer.followed.note(position, self._parent.trace_id, "receipt", topic=self._topic)

    @override
    def failed(self, error: HeliographError) -> None:
        self._publication.failed(error)
        self._span.end(type(error).__name__)

    @override
    def delayed(self, error: HeliographError) -> None:
        self._publication.delayed(error)

    def _note_copy(self, position: Position, bookie: str, at_ms: int, error: str) -> None:
        facts: dict[str, Any] = {"bookie": bookie, "error": error} if error else {"bookie": bookie}
        self._tracer.followed.note(position, self._parent.trace_id, "copy", at_ms, **facts)


def traced(topic: str, entry: TopicEntry, publication: Publication) -> Publication:
    """Return the publication that follows an entry with a ``trace``, and is the observer of its add. If tracing was
    ended meanwhile, the entry has no trace any more."""
    tracer = tracing.active
    if tracer is None or entry.trace is None:
        entry.trace = None
        return publication
    return TracedPublication(tracer, entry.trace, topic, entry, publication)


class TracedDeliveries:
    """The followed entries that one subscription has delivered. All calls on one event loop."""

    def __init__(self, topic: str, subscription: str) -> None:
        self._topic = topic
        self._subscription = subscription
        self._open: dict[Position, TraceContext] = {}  # delivered and not acknowledged
        self._settling: list[tuple[Position, TraceContext, TraceSpan]] = []  # until their acknowledgement is durable

    def dispatched(self, position: Position, context: TraceContext, consumer: str, redeliveries: int) -> None:
        """Note that an entry was written to a consumer's connection."""
        tracer = tracing.active
        if tracer is None:
            return
        attributes = {
            **_of_topic("dispatch", self._topic),
            "messaging.message.id": str(position),
            "messaging.destination.subscription.name": self._subscription,
            "messaging.consumer.name": consumer,
            "heliograph.redeliveries": redeliveries,
        }
        tracer.begin(f"dispatch {self._topic}", SpanKind.PRODUCER, context, attributes).end()
        self._note(tracer, position, context, "dispatch", consumer=consumer)
        if position not in self._open and len(self._open) >= OPEN_DELIVERIES_MAX:
            del self._open[next(iter(self._open))]
        self._open[position] = context

    def acknowledged(self, position: Position) -> None:
        """Note that an entry is acknowledged; ``settle`` says when that is durable."""
        context, tracer = self._open.pop(position, None), tracing.active
        if context is None or tracer is None:
            return
        attributes = {
            **_of_topic("settle", self._topic),
            "messaging.message.id": str(position),
            "messaging.destination.subscription.name": self._subscription,
        }
        self._settling.append(
            (position, context, tracer.begin(f"acknowledge {self._topic}", SpanKind.SERVER, context, attributes))
        )

    def acknowledged_before(self, position: Position) -> None:
        """Note that every entry before a position is acknowledged."""
        for each in [known for known in self._open if known < position]:
            self.acknowledged(each)

    def settle(self, done: asyncio.Future[None] | None) -> None:
        """End the spans of new acknowledgements once they are durable; None: nothing has to be waited for."""
        if not self._settling:
            return
        settling, self._settling = self._settling, []

        def settled(done: asyncio.Future[None] | None) -> None:
            failure = None if done is None or done.cancelled() else done.exception()
            error = "" if failure is None else type(failure).__name__
            tracer = tracing.active
            for position, context, span in settling:
                span.end(error)
                if tracer is not None and not error:
                    self._note(tracer, position, context, "acknowledge")

        if done is None or done.done():
            settled(done)
        else:
            done.add_done_callback(settled)

    def _note(self, tracer: Tracer, position: Position, context: TraceContext, step: str, **facts: Any) -> None:
        facts = {"topic": self._topic, "subscription": self._subscription, **facts}
        tracer.followed.note(position, context.trace_id, step, **facts)


def _of_topic(operation: str, topic: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }
