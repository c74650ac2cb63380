"""The W3C trace context, as clients put it into the properties of a message (pure).

Pulsar's Java client and the instrumentation of OpenTelemetry write the property ``traceparent``; so do our handles.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

TRACEPARENT = "traceparent"  # name of the property, and of the header of HTTP
SAMPLED = 0x01  # the flag of a trace that its beginner records
SCANNED_BYTES_MAX = 64 << 10  # of an entry, in which its context is looked for  # I15
_TEXT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
# A key and a value of Pulsar's ``KeyValue``: field 1 with 11 bytes, field 2 with 55. It stands so in the metadata of an
# entry and, in a batch that is not compressed, before each of its messages.
_PROPERTY = re.compile(rb"\x0a\x0btraceparent\x12\x37(00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2})")


class TraceContext(NamedTuple):
    """The span that a message was sent in. Both ids are above 0."""

    trace_id: int  # 128 bits
    span_id: int  # 64 bits
    flags: int = SAMPLED

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & SAMPLED)

    def is_within(self, share: float) -> bool:
        """Return whether the trace is among a share of all traces. Every process decides alike, as OpenTelemetry's
        ``TraceIdRatioBased`` does: by the lower half of the id."""
        return self.trace_id & (1 << 64) - 1 < share * (1 << 64)

    def __str__(self) -> str:
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{self.flags:02x}"


def parsed(text: str) -> TraceContext | None:
    """Return the context in a ``traceparent``; None if it is malformed. Fields of later versions are passed over."""
    found = _TEXT.fullmatch(text)
    if found is None or found[1] == "ff" or (found[1] == "00" and found[5]):
        return None
    context = TraceContext(int(found[2], 16), int(found[3], 16), int(found[4], 16))
    return context if context.trace_id and context.span_id else None


def context_of(properties: Mapping[str, str]) -> TraceContext | None:
    """Return the context in the properties of a message; None if there is none."""
    text = properties.get(TRACEPARENT)
    return None if text is None else parsed(text)


def context_in(section: bytes | memoryview) -> TraceContext | None:
    """Return the first sampled context in the bytes of an entry, within its first ``SCANNED_BYTES_MAX``.

    A batch has one for each message that carries one; its entry is followed by the first. The messages of a compressed
    batch are not looked at.
    """
    for found in _PROPERTY.finditer(section, 0, SCANNED_BYTES_MAX):
        context = parsed(found[1].decode("ascii"))
        if context is not None and context.is_sampled:
            return context
    return None
