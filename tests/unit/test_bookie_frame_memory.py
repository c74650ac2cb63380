"""Memory that large frames are received into: used again only when nobody has a part of it, and bounded."""

from __future__ import annotations

import pytest

from actors.bookie.config import ENTRY_BYTES_MAX, JOURNAL_BATCH_BYTES_MAX, RECEIVING_FRAMES_MAX, SEGMENT_BYTES
from actors.bookie.frame_memory import LARGE_FRAME_BYTES, SEGMENT_FRAME_BYTES_MAX, FrameMemory
from actors.bookie.journal_batch import BatchMemory
from actors.bookie.journal_format import Kind, encode_file_header
from actors.bookie.journal_scan import scan_bytes
from actors.bookie.receiving import FrameReceiver
from actors.wire.entry import encode_entry
from actors.wire.frame import FRAME_BYTES_MAX, encode_request
from actors.wire.messages import Op, Request


def frame(number: int, size: int) -> tuple[bytes, bytes]:
    body = bytes([number % 251 + 1]) * size
    return encode_request(Request(Op.ADD, number, 1, number), body), body


def feed(receiver: FrameReceiver, data: bytes) -> list[tuple[bytes | memoryview, memoryview]]:
    """What is kept of each frame, and its body as it was handed out."""
    kept = []
    while data:
        memory = receiver.buffer()
        count = min(len(memory), len(data))
        memory[:count] = data[:count]
        kept += [(receiver.keep(body), body) for _, body in receiver.received(count)]
        data = data[count:]
    return kept


def test_what_is_kept_of_frames_is_not_touched_by_later_ones() -> None:
    """Large and small frames in turns, through more memory than is ever free at once, half of them let go of."""
    receiver = FrameReceiver(FrameMemory(), FRAME_BYTES_MAX)
    kept: dict[int, tuple[bytes | memoryview, bytes]] = {}
    sizes = [
        100,
        LARGE_FRAME_BYTES,
        131_000,
        40,
        20_000,
        SEGMENT_FRAME_BYTES_MAX - 100,
        60_000,
        SEGMENT_FRAME_BYTES_MAX,
    ]
    for number in range(400):
        data, body = frame(number, sizes[number % len(sizes)])
        more, next_body = frame(number + 1000, 10)  # comes with the end of the one before
        found = feed(receiver, data + more)
        assert [bytes(view) for _, view in found[-1:]] == [next_body]
        kept[number] = (found[0][0], body)
        kept.pop(number - 20, None)
        if number % 3 == 0:
            kept.pop(number - 7, None)
    for held, body in kept.values():
        assert held == body


def test_a_large_frame_stays_where_it_was_received() -> None:
    memory = FrameMemory()
    receiver = FrameReceiver(memory, FRAME_BYTES_MAX)
    feed(receiver, frame(0, 131_072)[0][:1000])
    ((held, body),) = feed(receiver, frame(0, 131_072)[0][1000:])
    assert held is body, "not copied"
    assert len(receiver.buffer()) < LARGE_FRAME_BYTES, "the next head is read alone"
    assert receiver.buffer().obj is memory.shared.obj


def test_segments_are_used_again_when_nobody_has_a_part_of_them() -> None:
    memory = FrameMemory()
    first = memory.take(SEGMENT_FRAME_BYTES_MAX)
    assert first is not None
    first[:5] = b"first"
    part = first[:5]
    taken = [first]
    del first
    while len(taken) < 3 * SEGMENT_BYTES // SEGMENT_FRAME_BYTES_MAX:
        more = memory.take(SEGMENT_FRAME_BYTES_MAX)
        assert more is not None
        more[:5] = b"other"
        taken.append(more)
    taken.clear()
    assert part == b"first", "a view of a view keeps its segment"
    assert memory.free_segments == 1, "the newest one is in use"
    del part
    assert memory.free_segments == 2


def test_frames_that_never_end_hold_a_bounded_number_of_segments() -> None:  # I15
    memory = FrameMemory()
    receivers = [FrameReceiver(memory, FRAME_BYTES_MAX) for _ in range(2 * RECEIVING_FRAMES_MAX)]
    beginning = frame(0, 131_072)[0][:500]
    for receiver in receivers:
        assert feed(receiver, beginning) == []
    assert memory.take(131_072) is None, "no more are lent"
    whole, body = frame(0, 131_072)
    for receiver in receivers:  # memory or none, each frame comes whole
        ((held, _),) = feed(receiver, whole[500:])
        assert held == body
    unfinished = FrameReceiver(memory, FRAME_BYTES_MAX)
    feed(unfinished, beginning)
    unfinished.close()  # the connection was lost
    unfinished.close()
    for _ in range(RECEIVING_FRAMES_MAX):
        assert memory.take(131_072) is not None
    assert memory.take(131_072) is None


@pytest.mark.parametrize("size", [LARGE_FRAME_BYTES - 1, SEGMENT_FRAME_BYTES_MAX + 1, FRAME_BYTES_MAX])
def test_other_frames_go_elsewhere(size: int) -> None:
    assert FrameMemory().take(size) is None


def test_a_batch_is_gathered_in_any_steps_up_to_its_bound() -> None:  # I15
    payloads = [encode_entry(1, n, n - 1, n, bytes([n]) * (n * 40_000)) for n in range(12)]
    records = [(Kind.ENTRY, payload) for payload in payloads]
    memory = BatchMemory()
    for count in range(1, len(records) + 1):
        memory.gather(records[:count], memory.records)
    data, _ = memory.finish(b"", records, 5, 1, 1)
    _, batches = scan_bytes(encode_file_header(5, 1, 0) + data, 5, "x")
    assert [[bytes(record.payload) for record in batch.records] for batch in batches] == [payloads]

    largest = (Kind.ENTRY, encode_entry(1, 1, 0, 1, bytes(ENTRY_BYTES_MAX - 40)))
    memory.gather([largest, largest], 0)
    assert memory.records == 1, "one that is above the bound goes alone"
    memory.clear()
    quarter = (Kind.ENTRY, encode_entry(1, 1, 0, 1, bytes(JOURNAL_BATCH_BYTES_MAX // 4)))
    memory.gather([quarter] * 9, 0)
    assert memory.records == 3
