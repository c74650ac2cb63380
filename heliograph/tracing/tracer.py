"""The tracer of this process.

``active`` is None while tracing is off, and every place that would make a span asks that first: off costs one
comparison. On, a span is made of the messages whose client has sampled them, within the configured share.
"""

from __future__ import annotations

import logging
import random
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from typing import Any, Protocol

from heliograph.base.version import heliograph_version
from heliograph.tracing.config import TracingConfig
from heliograph.tracing.context import SAMPLED, TraceContext, context_in
from heliograph.tracing.followed import FollowedEntries

SCOPE = "heliograph"  # name of the instrumentation
SYSTEM = "pulsar"  # ``messaging.system`` of OpenTelemetry's conventions, whose names attributes have
STOP_SECONDS = 5.0  # longest wait for the collector at the end

log = logging.getLogger(__name__)


class SpanKind(Enum):
    """OpenTelemetry's kinds of spans that are used here. The value is the name there."""

    INTERNAL = "INTERNAL"
    SERVER = "SERVER"
    CLIENT = "CLIENT"
    PRODUCER = "PRODUCER"
    CONSUMER = "CONSUMER"


class TraceSpan(Protocol):
    """One step on the way of a message."""

    @property
    def context(self) -> TraceContext | None:
        """Return the context for what this step causes; None if nothing is recorded."""

    def set(self, name: str, value: Any) -> None:
        """Set an attribute."""

    def end(self, error: str = "") -> None:
        """End the span now; a reason makes it a failed one. Idempotent."""


class Tracer:
    """Makes spans. Its methods are called on any thread.

    Args:
        config: the share and the bounds.
        provider: OpenTelemetry's, or one with its interface; None: spans are not recorded, only steps are noted.

    Attributes:
        followed: events of entries in this process.
        provider: as given.
    """

    def __init__(self, config: TracingConfig, provider: Any = None) -> None:
        self.config = config
        self.followed = FollowedEntries(config.followed_messages_max)
        self.provider = provider
        self._api: Any = None
        self._tracer: Any = None
        if provider is not None:
            from opentelemetry import trace

            self._api, self._tracer = trace, provider.get_tracer(SCOPE, heliograph_version())

    def context_in(self, section: bytes | memoryview) -> TraceContext | None:
        """Return the context of an entry that is to be followed; None for any other."""
        context = context_in(section)
        return context if context is not None and self.follows(context) else None

    def follows(self, context: TraceContext) -> bool:
        """Return whether what belongs to a trace is followed here."""
        return context.is_sampled and context.is_within(self.config.sampled_share)

    def current(self) -> TraceContext | None:
        """Return the context of the span that the calling task is in, of this program or of its user; else None."""
        if self._api is None:
            return None
        found = self._api.get_current_span().get_span_context()
        return _context_of(found) if found.is_valid else None

    def new_context(self) -> TraceContext:
        """Return the context of a new trace, which is sampled if it is within the share. It has no span."""
        context = TraceContext(random.getrandbits(128) or 1, random.getrandbits(64) or 1)
        return context if context.is_within(self.config.sampled_share) else context._replace(flags=0)

    def begin(
        self,
        name: str,
        kind: SpanKind,
        parent: TraceContext | None,
        attributes: Mapping[str, Any],
        *,
        began_ns: int | None = None,
    ) -> TraceSpan:
        """Begin a span.

        Args:
            parent: the span that caused it; None: it begins a trace.
            began_ns: when it began, in ns since the epoch; None: now.
        """
        if self._tracer is None:
            return _NOT_RECORDED
        api = self._api
        cause = None
        if parent is not None:
            remote = api.SpanContext(parent.trace_id, parent.span_id, True, api.TraceFlags(parent.flags))
            cause = api.set_span_in_context(api.NonRecordingSpan(remote))
        span = self._tracer.start_span(
            name, cause, getattr(api.SpanKind, kind.value), attributes=dict(attributes), start_time=began_ns
        )
        return _Recorded(api, span)

    @contextmanager
    def within(
        self, name: str, kind: SpanKind, parent: TraceContext | None, attributes: Mapping[str, Any]
    ) -> Iterator[TraceSpan]:
        """Make a span of a block; what the block sends belongs to it. An exception of the block fails the span."""
        span = self.begin(name, kind, parent, attributes)
        try:
            if isinstance(span, _Recorded):
                with self._api.use_span(span.span, record_exception=False, set_status_on_exception=False):
                    yield span
            else:
                yield span
        except BaseException as error:
            span.end(type(error).__name__)
            raise
        span.end()

    def stop(self) -> None:
        """Send what is queued, within ``STOP_SECONDS``, and record nothing from now on. It blocks."""
        if self.provider is not None and hasattr(self.provider, "shutdown"):
            self.provider.force_flush(int(STOP_SECONDS * 1000))
            self.provider.shutdown()


class _NotRecorded:
    """A span that goes nowhere."""

    context: TraceContext | None = None

    def set(self, name: str, value: Any) -> None:
        """Forget it."""

    def end(self, error: str = "") -> None:
        """Forget it."""


class _Recorded:
    """A span of OpenTelemetry."""

    def __init__(self, api: Any, span: Any) -> None:
        self.span = span
        self._api = api

    @property
    def context(self) -> TraceContext | None:
        return _context_of(self.span.get_span_context())

    def set(self, name: str, value: Any) -> None:
        self.span.set_attribute(name, value)

    def end(self, error: str = "") -> None:
        if error:
            self.span.set_attribute("error.type", error)
            self.span.set_status(self._api.Status(self._api.StatusCode.ERROR, error))
        self.span.end()


_NOT_RECORDED = _NotRecorded()
active: Tracer | None = None
_own: Tracer | None = None  # of ``of_program``
_users = 0  # parts of this process that use ``active``


def start(config: TracingConfig, provider: Any = None) -> Tracer | None:
    """Begin to trace in this process, and return its tracer; None if the configuration says that nothing is followed.

    Of several parts in one process the first one's settings count, until each has called ``stop``.

    Args:
        provider: a provider of spans to use; None: one of our own that sends to ``config.endpoint``, if there is one.
    """
    global active, _users  # one tracer a process, as OpenTelemetry has it
    if not config.sampled_share:
        return None
    _users += 1
    if active is None:
        active = Tracer(config, provider or _provider_of(config))
    return active


def stop(tracer: Tracer | None) -> None:
    """End what ``start`` returned. It blocks until queued spans are sent, for ``STOP_SECONDS`` at most."""
    global active, _users
    if tracer is None:
        return
    _users -= 1
    if not _users and active is tracer:
        active = None
        tracer.stop()


def of_program() -> Tracer:
    """Return the tracer of a program that uses handles or tables: ``active``, or one that sends spans where the
    program's own OpenTelemetry does, if it has loaded that."""
    global _own
    if active is not None:
        return active
    loaded = sys.modules.get("opentelemetry.trace")
    provider = None if loaded is None else loaded.get_tracer_provider()
    if _own is None or _own.provider is not provider:
        _own = Tracer(TracingConfig(sampled_share=1.0), provider)
    return _own


@contextmanager
def table_span(
    operation: str, topic: str, attributes: Mapping[str, Any], cause: TraceContext | None = None
) -> Iterator[TraceSpan]:
    """Make a span of the reading or writing of a table, within the span of the calling task if it has one.

    It is not the current span meanwhile: a generator may end in another context than it began in.

    Args:
        cause: what the span belongs to where the task has none, such as what its program was doing.
    """
    tracer = of_program()
    named = {"messaging.system": SYSTEM, "messaging.operation.name": operation, "messaging.destination.name": topic}
    span = tracer.begin(
        f"{operation} {topic}".rstrip(), SpanKind.CLIENT, tracer.current() or cause, {**named, **attributes}
    )
    try:
        yield span
    except BaseException as error:
        span.end("" if isinstance(error, GeneratorExit) else type(error).__name__)
        raise
    span.end()


def now_ns() -> int:
    """Return the time in ns since the epoch, in which spans begin and end."""
    return time.time_ns()


def _context_of(found: Any) -> TraceContext:
    return TraceContext(found.trace_id, found.span_id, int(found.trace_flags) & SAMPLED)


def _provider_of(config: TracingConfig) -> Any:
    """Return a provider whose spans wait in a bounded queue for the collector; None if there is no collector."""
    if not config.endpoint:
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    except ImportError as error:
        log.error("no spans are sent to %s: install the extra `tracing` (%s)", config.endpoint, error)
        return None
    resource = Resource.create({"service.name": SCOPE, "service.version": heliograph_version()})
    provider = TracerProvider(resource=resource, sampler=ParentBased(TraceIdRatioBased(config.sampled_share)))
    batch = min(512, config.queued_spans_max)
    exporter = OTLPSpanExporter(endpoint=config.endpoint)
    provider.add_span_processor(
        BatchSpanProcessor(exporter, max_queue_size=config.queued_spans_max, max_export_batch_size=batch)
    )
    return provider
