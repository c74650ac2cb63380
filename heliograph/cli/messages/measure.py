"""Measurements of a run of messages: latencies in constant space, and payloads that identify each message. Pure."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, field
from typing import Any

_BUCKETS_PER_DECADE = 400  # a percentile is right within 0.6 %
_LOWEST_MS = 0.001
_DECADES = 8  # up to 100,000 s
_BUCKETS = _BUCKETS_PER_DECADE * _DECADES
_SCALE = _BUCKETS_PER_DECADE / math.log(10)

_HEAD = struct.Struct(">8sQQQ")  # magic, and the fields of MessageStamp
_MAGIC = b"helioprf"
PAYLOAD_BYTES_MIN = _HEAD.size
MESSAGES_MAX = 50_000_000  # of one run
RUNS_MAX = 1000  # in one topic


class Latencies:
    """A histogram with buckets of equal ratio: counts are exact, times are within 0.6 %, the size is constant."""

    def __init__(self) -> None:
        self._counts = [0] * _BUCKETS
        self.count = 0
        self.longest_ms = 0.0

    def add(self, milliseconds: float) -> None:
        """Add one latency."""
        ratio = max(milliseconds, _LOWEST_MS) / _LOWEST_MS
        self._counts[min(int(math.log(ratio) * _SCALE), _BUCKETS - 1)] += 1
        self.count += 1
        if milliseconds > self.longest_ms:
            self.longest_ms = milliseconds

    def percentile(self, share: float) -> float:
        """Return the latency in ms that ``share`` (0 to 1) of the latencies did not exceed; 0 if there are none."""
        assert 0 <= share <= 1, "a share"
        rank = max(1, math.ceil(self.count * share))
        seen = 0
        for index, count in enumerate(self._counts):
            seen += count
            if count and seen >= rank:
                return min(_LOWEST_MS * math.exp((index + 0.5) / _SCALE), self.longest_ms)
        return 0.0

    def summary(self) -> dict[str, float]:
        """Return the usual percentiles, in ms."""
        named = {"p50_ms": 0.5, "p95_ms": 0.95, "p99_ms": 0.99, "p999_ms": 0.999}
        return {
            **{name: round(self.percentile(share), 3) for name, share in named.items()},
            "max_ms": round(self.longest_ms, 3),
        }


@dataclass(slots=True)
class MeasuredRun:
    """The measurements of one run."""

    messages: int = 0
    bytes: int = 0
    errors: int = 0
    retries: int = 0
    seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    last_error: str = ""

    def report(self) -> dict[str, Any]:
        """Return the figures by the names that ``--json`` prints."""
        seconds = max(self.seconds, 1e-9)
        return {
            "messages": self.messages,
            "seconds": round(self.seconds, 3),
            "msgs_per_s": round(self.messages / seconds, 1),
            "mb_per_s": round(self.bytes / seconds / 1e6, 3),
            **self.latencies.summary(),
            "errors": self.errors,
            "retries": self.retries,
            "last_error": self.last_error or None,
        }


class Arrivals:
    """The messages that arrived, of several runs, each counted once, repetitions apart. It takes a byte per message."""

    def __init__(self) -> None:
        self._runs: dict[int, bytearray] = {}
        self.distinct = 0
        self.duplicates = 0
        self.foreign = 0  # not made by helio perf produce, or beyond the bounds

    def take(self, made: MessageStamp | None) -> None:
        """Count an arrival; None stands for a message that ``helio perf produce`` did not make."""
        if made is None or made.index >= MESSAGES_MAX or (made.run not in self._runs and len(self._runs) >= RUNS_MAX):
            self.foreign += 1
            return
        seen = self._runs.setdefault(made.run, bytearray())
        if made.index >= len(seen):
            seen.extend(bytes(made.index + 1 - len(seen)))
        if seen[made.index]:
            self.duplicates += 1
        else:
            seen[made.index] = 1
            self.distinct += 1

    def report(self) -> dict[str, int]:
        """Return the counts by the names that ``--json`` prints."""
        names = ("distinct", "duplicates", "missing", "foreign")
        return {name: getattr(self, name) for name in names}

    @property
    def missing(self) -> int:
        """Return the number of messages that did not arrive although a later one of their run did."""
        return sum(seen.count(0) for seen in self._runs.values())


@dataclass(frozen=True, slots=True)
class MessageStamp:
    """The head of the payload, which identifies a message of ``helio perf produce``."""

    run: int
    index: int
    sent_ns: int  # since the epoch


def make_payload(made: MessageStamp, filler: bytes) -> bytes:
    """Return a payload: ``PAYLOAD_BYTES_MIN`` bytes and the filler."""
    return _HEAD.pack(_MAGIC, made.run, made.index, made.sent_ns) + filler


def read_payload(payload: bytes) -> MessageStamp | None:
    """Return the arguments of ``make_payload``, or None for another message."""
    if len(payload) < _HEAD.size or not payload.startswith(_MAGIC):
        return None
    return MessageStamp(*_HEAD.unpack_from(payload)[1:])
