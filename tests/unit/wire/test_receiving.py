"""Answers out of the memory of a socket: in any pieces, as themselves, and never changed by what comes after them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.errors import FrameError
from heliograph.actors.wire.frame import FRAME_BYTES_MAX, decode_answer, encode_answer
from heliograph.actors.wire.messages import Answer, Status
from heliograph.actors.wire.receiving import RECEIVE_BYTES, AnswerReceiver


def fed(receiver: AnswerReceiver, data: bytes, sizes: list[int]) -> list[tuple[Answer, memoryview]]:
    """Feed bytes in reads of some sizes, over and over, each cut to the buffer."""
    found, at, turn = [], 0, 0
    while at < len(data):
        memory = receiver.get_buffer(-1)
        count = min(len(memory), len(data) - at, sizes[turn % len(sizes)])
        memory[:count] = data[at : at + count]
        found += [(decode_answer(header), body) for header, body in receiver.received(count)]
        at, turn = at + count, turn + 1
    return found


@given(
    st.lists(st.sampled_from([0, 1, 100, RECEIVE_BYTES, 3 * RECEIVE_BYTES + 1]), min_size=1, max_size=6),
    st.lists(st.sampled_from([1, 3, 13, 1_000, RECEIVE_BYTES - 1, 1 << 20]), min_size=1, max_size=3).filter(
        lambda sizes: max(sizes) > 100
    ),
)
def test_answers_in_any_pieces(bodies: list[int], reads: list[int]) -> None:
    answers = [
        (Answer(number, Status.OK, number), bytes([number + 1]) * size) for number, size in enumerate(bodies, start=1)
    ]
    found = fed(AnswerReceiver(), b"".join(encode_answer(*one) for one in answers), reads)
    assert [(answer, bytes(body)) for answer, body in found] == answers


def test_the_rest_of_a_large_answer_is_read_into_its_own_memory() -> None:
    receiver = AnswerReceiver()
    whole = encode_answer(Answer(1, Status.OK, 0), b"x" * (1 << 20))
    first = len(receiver.get_buffer(-1))
    assert fed(receiver, whole[:first], [first]) == []
    assert len(receiver.get_buffer(-1)) == len(whole) - first  # nothing of the next answer comes into it
    ((_, body),) = fed(receiver, whole[first:], [1 << 20])
    assert len(receiver.get_buffer(-1)) == first
    assert bytes(body) == b"x" * (1 << 20)


def test_a_frame_above_the_limit_costs_no_memory() -> None:
    receiver = AnswerReceiver()
    with pytest.raises(FrameError, match="limit"):
        fed(receiver, (FRAME_BYTES_MAX + 1).to_bytes(4, "big") + bytes(6), [10])  # I15


def test_small_answers_outlive_the_next_read() -> None:
    receiver, found = AnswerReceiver(), []
    for number in range(1, 6):
        found += fed(receiver, encode_answer(Answer(number, Status.OK, number), bytes([number]) * 100), [1 << 20])
    assert [bytes(body) for _, body in found] == [bytes([number]) * 100 for number in range(1, 6)]
