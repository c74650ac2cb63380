"""The interceptor that puts a trace into messages, as that of Pulsar's Java client does."""

from __future__ import annotations

from typing_extensions import override

from heliograph.base.errors import HeliographError
from heliograph.client.aio.producer.interceptors import OutgoingMessage, ProducerInterceptor
from heliograph.protocol.message_id import MessageId
from heliograph.tracing import tracer as tracing
from heliograph.tracing.context import TRACEPARENT, context_of
from heliograph.tracing.tracer import SYSTEM, SpanKind, TraceSpan

OPEN_SPANS_MAX = 10_000  # of one interceptor: messages without an outcome; the oldest ends first  # I15


class TracingInterceptor(ProducerInterceptor):
    """Makes a span of each message that is sent, and writes its context into the property ``traceparent``.

    The span belongs to the span that the caller is in, or else to the context that the message has already. Spans go
    where the program's own OpenTelemetry is configured to send them. In a program without OpenTelemetry, the messages
    get contexts all the same, by which brokers and ``helio trace`` follow them.

    Args:
        destination: the topic, for the name of the spans.
    """

    def __init__(self, destination: str = "") -> None:
        self._destination = destination
        self._open: dict[str, TraceSpan] = {}  # by the property

    @override
    def before_send(self, message: OutgoingMessage) -> OutgoingMessage:
        tracer = tracing.of_program()
        properties = dict(message.properties or {})
        parent = tracer.current() or context_of(properties)
        attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": "send",
            "messaging.destination.name": self._destination,
        }
        span = tracer.begin(f"send {self._destination}".rstrip(), SpanKind.PRODUCER, parent, attributes)
        text = properties[TRACEPARENT] = str(span.context or parent or tracer.new_context())
        if span.context is not None:
            if len(self._open) >= OPEN_SPANS_MAX:
                self._open.pop(next(iter(self._open))).end("unknown outcome")
            self._open[text] = span
        return message.replace(properties=properties)

    @override
    def on_send_acknowledged(
        self, message: OutgoingMessage, message_id: MessageId | None, error: HeliographError | None
    ) -> None:
        span = self._open.pop((message.properties or {}).get(TRACEPARENT, ""), None)
        if span is None:
            return
        if message_id is not None:
            span.set("messaging.message.id", str(message_id))
        span.end("" if error is None else type(error).__name__)

    def __reduce__(self) -> tuple[type[TracingInterceptor], tuple[str]]:
        return TracingInterceptor, (self._destination,)
