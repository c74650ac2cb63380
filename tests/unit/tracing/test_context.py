"""The trace context of messages, and the memory of what was followed."""

from __future__ import annotations

import sys

import pytest

from heliograph.protocol.batch import encode_entry_of
from heliograph.tracing.context import SCANNED_BYTES_MAX, TraceContext, context_in, context_of, parsed
from heliograph.tracing.followed import BYTES_MAX, STEPS_MAX, FollowedEntries

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


def test_a_context_is_what_it_was_made_of() -> None:
    text = f"00-{TRACE}-{SPAN}-01"
    context = parsed(text)
    assert context == TraceContext(int(TRACE, 16), int(SPAN, 16), 1)
    assert str(context) == text
    assert context_of({"traceparent": text, "a": "b"}) == context
    assert context_of({}) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_a_malformed_context_is_none(text: str) -> None:
    assert parsed(text) is None


def test_fields_of_a_later_version_are_passed_over() -> None:
    assert parsed(f"01-{TRACE}-{SPAN}-01-more") == parsed(f"00-{TRACE}-{SPAN}-01")


def test_a_share_is_decided_by_the_trace_alone() -> None:
    low, high = TraceContext(1, 1), TraceContext((1 << 128) - 1, 1)
    assert low.is_within(0.001)
    assert not high.is_within(0.999)
    assert high.is_within(1.0)
    assert not low.is_within(0.0)


def test_only_the_beginning_of_an_entry_is_looked_at() -> None:
    own = b"\x0a\x0btraceparent\x12\x37" + f"00-{TRACE}-{SPAN}-01".encode()
    assert context_in(b"x" * 100 + own) == parsed(f"00-{TRACE}-{SPAN}-01")
    assert context_in(memoryview(b"x" * 100 + own)) is not None
    assert context_in(b"x" * SCANNED_BYTES_MAX + own) is None
    assert context_in(encode_entry_of("p", 0, 1, [b"traceparent"], None)) is None


def test_the_oldest_entry_is_forgotten_first_and_an_entry_keeps_its_first_steps() -> None:
    followed = FollowedEntries(2)
    for number in range(STEPS_MAX + 10):
        followed.note((1, 0), 7, "dispatch", number + 1)
    followed.note((1, 1), 7, "receipt", topic="t")
    followed.note((1, 0), 7, "acknowledge")  # so that the other one is the oldest
    followed.note((1, 2), 8, "receipt")
    assert len(followed) == 2
    assert [step["at_ms"] for step in followed.steps((1, 0))] == list(range(1, STEPS_MAX + 1))
    assert followed.steps((1, 1)) == []
    assert followed.trace_of((1, 1)) == ""
    assert followed.entries_of(7) == [(1, 0)]
    assert followed.trace_of((1, 2)) == f"{8:032x}"


def test_followed_entries_have_a_bound_in_bytes_and_a_trace_is_found_without_a_walk() -> None:
    followed = FollowedEntries(1_000_000)
    for number in range(2_000):
        for step in range(STEPS_MAX):
            followed.note((1, number), number % 2, "copy", step + 1, bookie="b" * 100)
    assert len(followed) > 500
    assert BYTES_MAX * 0.9 < followed.bytes <= BYTES_MAX
    assert followed.steps((1, 0)) == []
    assert len(followed.steps((1, 1_999))) == STEPS_MAX
    kept = [*followed.entries_of(0), *followed.entries_of(1)]
    assert sorted(kept) == [(1, number) for number in range(2_000 - len(followed), 2_000)]
    held = sum(map(sys.getsizeof, followed.steps((1, 1_999)))) + sys.getsizeof(followed.steps((1, 1_999)))
    assert held <= followed.bytes / len(followed), "the estimate is no less than what is held"
