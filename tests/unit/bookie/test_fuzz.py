"""Anything at all in sockets and journals: typed errors or sound results, and memory that does not grow with claims."""

from __future__ import annotations

import contextlib
import shutil
import struct
import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.bookie.config import RECEIVE_BYTES, BookieConfig
from heliograph.actors.bookie.disk.blocks import BLOCK_BYTES
from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.journal.format import Kind, batch_bytes, encode_batch, encode_file_header
from heliograph.actors.bookie.journal.scan import WINDOW_BYTES, JournalRecord, scan, scan_bytes
from heliograph.actors.bookie.recovery.replay import StorageReplay
from heliograph.actors.bookie.server.receiving import FrameReceiver, ReceiveMemory
from heliograph.actors.bookie.store.data_directory import DataDirectory
from heliograph.actors.bookie.store.storage import BookieStorage
from heliograph.actors.errors import FrameError, JournalCorruptError
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.frame import FRAME_BYTES_MAX, BookieFrameDecoder, decode_request, encode_request
from heliograph.actors.wire.messages import BookieOp, BookieRequest, Flag
from tests.examples import examples

TAG = b"\xff" * 8


class Socket:
    """Feeds a receiver as an event loop does."""

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.receiver = FrameReceiver(ReceiveMemory(8), frame_bytes_max)
        self.fed = 0

    def feed(self, data: bytes) -> list[tuple[list[object], bytes]]:
        frames = []
        while data:
            memory = self.receiver.get_buffer(-1)
            assert len(memory) > 0, "a socket with no room to read into would look closed"
            count = min(len(memory), len(data))
            memory[:count] = data[:count]
            self.fed += count
            frames += [(header, bytes(body)) for header, body in self.receiver.received(count)]
            assert self.receiver.buffered <= max(2 * self.fed, RECEIVE_BYTES)  # I15
            data = data[count:]
        return frames


requests = st.builds(
    BookieRequest,
    st.sampled_from(BookieOp),
    st.integers(0, 1 << 40),
    st.integers(0, 1 << 62),
    st.integers(-1, 1 << 62),
    st.sampled_from([Flag.NONE, Flag.FENCE, Flag.RECOVERY]),
    st.just(0),
    st.just(-1),
)


@settings(max_examples=examples(80), deadline=None)
@given(
    frames=st.lists(st.tuples(requests, st.integers(0, 600_000) | st.integers(0, 50)), min_size=1, max_size=6),
    cuts=st.lists(st.integers(1, 20) | st.integers(1, 700_000), max_size=7),
)
def test_frames_come_whole_however_they_are_cut(frames: list[tuple[BookieRequest, int]], cuts: list[int]) -> None:
    stream = b"".join(encode_request(request, bytes([n]) * size) for n, (request, size) in enumerate(frames))
    expected = [(header, bytes(body)) for header, body in BookieFrameDecoder().feed(stream)]
    cuts.append(300_000)  # not byte by byte for ever
    socket, found, start, turn = Socket(), [], 0, 0
    while start < len(stream):
        end = start + cuts[turn % len(cuts)]
        found += socket.feed(stream[start:end])
        start, turn = end, turn + 1
    assert found == expected
    assert [decode_request(header) for header, _ in found] == [request for request, _ in frames]


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.binary(max_size=200) | st.builds(encode_request, requests, st.binary(max_size=50)), max_size=6))
def test_any_bytes_from_a_socket_are_frames_or_a_frame_error(pieces: list[bytes]) -> None:
    socket = Socket()
    try:
        for piece in pieces:
            for header, _ in socket.feed(piece):
                decode_request(header)
    except FrameError:
        return


def test_a_claimed_length_takes_no_memory() -> None:  # I15
    claim = struct.pack(">IHI", FRAME_BYTES_MAX - 4, 10, 0)
    tracemalloc.start()
    try:
        sockets = [Socket() for _ in range(3)]
        before = tracemalloc.get_traced_memory()[0]
        for socket in sockets:
            socket.feed(claim)
        grown = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert grown < len(sockets) * 2 * RECEIVE_BYTES
    with pytest.raises(FrameError, match="limit is 4096 bytes"):
        Socket(4096).feed(claim)


@contextmanager
def replaying() -> Iterator[StorageReplay]:
    home = Path(tempfile.mkdtemp())
    try:
        config = BookieConfig("b1", (home / "journal",), (home / "data",))
        config.data_directories[0].mkdir()
        directory = DataDirectory(RealDisk(), config.data_directories[0], 1 << 20, 1 << 20)
        replay = StorageReplay(BookieStorage(RealDisk(), config, [directory]))
        try:
            yield replay
            replay.finish()
        finally:
            directory.close()
    finally:
        shutil.rmtree(home)


heads = st.tuples(st.integers(-(1 << 63), (1 << 63) - 1), st.integers(-(1 << 63), (1 << 63) - 1))
payloads = (
    st.binary(max_size=60)
    | st.builds(lambda head: encode_entry(head[0], head[1], -1, 0, b"x"), heads)
    | st.builds(lambda head: struct.pack(">qq", *head), heads)
    | st.builds(lambda head: struct.pack(">q", head[0]), heads)
)


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(st.tuples(st.sampled_from([Kind.ENTRY, Kind.FENCE, Kind.LAC]), payloads), max_size=30))
def test_sound_records_of_any_content_are_applied_or_refused(records: list[tuple[Kind, bytes]]) -> None:
    """What is applied can be flushed, too."""
    with replaying() as replay:
        for kind, payload in records:
            with contextlib.suppress(JournalCorruptError):
                replay.apply([JournalRecord(kind, 0, memoryview(payload))])
        replay._storage.flush_now(moves_mark=False)


@settings(max_examples=examples(60), deadline=None)
@given(
    blocks=st.lists(st.integers(0, 11), min_size=1, max_size=30),
    noise=st.lists(st.tuples(st.integers(0, 30 * BLOCK_BYTES), st.integers(0, 255)), max_size=5),
)
def test_blocks_of_a_journal_in_any_order_are_batches_or_damage(
    blocks: list[int], noise: list[tuple[int, int]]
) -> None:
    """Sound blocks shuffled, repeated and spoiled: what is found is a beginning of what was written."""
    whole, sequence, sent = bytearray(encode_file_header(5, TAG, 0)), 1, []
    for number in range(1, 6):
        records = [(Kind.ENTRY, b"%d " % number * 600 * number)]
        data = bytearray(batch_bytes(records))
        _, sequence = encode_batch(data, 0, records, TAG, sequence, number)
        whole += data
        sent.append(records[0][1])
    pieces = [whole[start : start + BLOCK_BYTES] for start in range(0, len(whole), BLOCK_BYTES)]
    content = bytearray().join(pieces[number % len(pieces)] for number in [0, *blocks])
    for place, value in noise:
        content[place % len(content)] = value
    try:
        found = [bytes(record.payload) for batch in scan_bytes(bytes(content), 5, "x")[1] for record in batch.records]
    except JournalCorruptError:
        return
    assert found == sent[: len(found)]


def test_a_large_journal_is_scanned_in_little_memory(tmp_path: Path) -> None:  # I15
    content, sequence = bytearray(encode_file_header(5, TAG, 0)), 1
    for number in range(1, 9):
        records = [(Kind.ENTRY, bytes(1000)) for _ in range(1000)]
        data = bytearray(batch_bytes(records))
        _, sequence = encode_batch(data, 0, records, TAG, sequence, number)
        content += data
    path = tmp_path / "x"
    path.write_bytes(content)
    with path.open("r+b") as grown:
        grown.truncate(48 << 20)
    del content, data, records
    file = RealDisk().open(path)
    tracemalloc.start()
    try:
        count = sum(len(batch.records) for batch in scan(file, 5)[1])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        file.close()
    assert count == 8000
    assert peak < 6 * WINDOW_BYTES
