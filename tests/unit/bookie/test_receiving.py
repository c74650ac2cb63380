"""Large entries stay in the memory that they were read into, and are never overwritten there."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.actors.bookie.config import (
    KEPT_BODY_BYTES_LEAST,
    RECEIVE_BYTES,
    RECEIVE_LARGE_BYTES,
    RECEIVE_SLAB_BYTES,
)
from heliograph.actors.bookie.server.receiving import FrameReceiver, ReceiveMemory
from heliograph.actors.wire.frame import FRAME_BYTES_MAX, encode_request
from heliograph.actors.wire.messages import BookieOp, BookieRequest
from tests.examples import examples

LARGE = 100_000
SLABS_MAX = 4


class Sockets:
    """Connections that share the memory of a server, and a keeper of views of their large bodies."""

    def __init__(self, count: int) -> None:
        self.memory = ReceiveMemory(SLABS_MAX)
        self.receivers = [FrameReceiver(self.memory, FRAME_BYTES_MAX) for _ in range(count)]
        self.unread = [bytearray() for _ in range(count)]
        self.held: list[tuple[bytes, bytes | memoryview]] = []
        self._sent: list[list[bytes]] = [[] for _ in range(count)]
        self._numbers = 0

    def send(self, socket: int, size: int) -> None:
        """Put an add of a size into a socket, whose body differs from all others."""
        self._numbers += 1
        body = self._numbers.to_bytes(4) * (size // 4)
        self._sent[socket].append(body)
        self.unread[socket] += encode_request(BookieRequest(BookieOp.ADD, self._numbers, 1, 1), body)

    def read(self, socket: int, count: int) -> None:
        """Read at most so many bytes as an event loop does, and keep the bodies."""
        receiver, unread = self.receivers[socket], self.unread[socket]
        room = receiver.get_buffer(-1)
        assert len(room) > 0, "a socket with no room to read into would look closed"
        count = min(len(room), len(unread), count)
        room[:count] = unread[:count]
        del unread[:count]
        for _, body in receiver.received(count):
            self.held.append((self._sent[socket].pop(0), receiver.held(body)))

    def check(self) -> None:
        """Compare what is held with what was sent."""
        assert all(sent == body for sent, body in self.held), "a body that is held was overwritten"


sizes = st.sampled_from([4, 1_000, KEPT_BODY_BYTES_LEAST, LARGE, RECEIVE_BYTES, 3 * RECEIVE_BYTES])
reads = st.tuples(st.integers(0, 2), st.sampled_from([3, 11, 5_000, LARGE, RECEIVE_BYTES, 2 * RECEIVE_LARGE_BYTES]))


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), sizes), max_size=60), st.lists(reads, max_size=60), st.randoms())
def test_no_body_that_is_held_is_overwritten(
    sent: list[tuple[int, int]], turns: list[tuple[int, int]], rng: Random
) -> None:
    sockets = Sockets(3)
    for socket, size in sent:
        sockets.send(socket, size)
    for socket, count in turns:
        sockets.read(socket, count)
        if rng.random() < 0.1:
            sockets.check()
            sockets.held.clear()  # a flush
        if rng.random() < 0.1:
            sockets.memory.trim()
    while any(sockets.unread):
        sockets.read(rng.choice([n for n, unread in enumerate(sockets.unread) if unread]), RECEIVE_BYTES)
    sockets.check()


@pytest.mark.parametrize("piece", [RECEIVE_BYTES, 50_000])
@pytest.mark.parametrize("size", [40_000, LARGE, 128 << 10, 200_000])
def test_large_bodies_fill_slabs_without_gaps_and_slabs_are_used_again(size: int, piece: int) -> None:
    sockets = Sockets(1)
    for _ in range(20):
        for _ in range(RECEIVE_SLAB_BYTES // size):
            sockets.send(0, size)
        while sockets.unread[0]:
            sockets.read(0, piece)
        assert all(isinstance(body, memoryview) for _, body in sockets.held)
        sockets.check()
        sockets.held.clear()
        assert sockets.memory.slabs <= 3
    sockets.memory.trim()
    sockets.memory.trim()
    assert sockets.memory.slabs == 1, "idle memory is freed"


@pytest.mark.parametrize(("size", "room"), [(LARGE, LARGE // 2 + RECEIVE_LARGE_BYTES), (1_000, RECEIVE_BYTES)])
def test_one_read_brings_more_behind_a_large_body_only(size: int, room: int) -> None:  # I15: many small ones take long
    sockets = Sockets(1)
    sockets.send(0, size)
    begun = len(sockets.unread[0]) - size // 2
    sockets.read(0, begun)
    buffer = sockets.receivers[0].get_buffer(-1)
    assert len(buffer) <= room
    assert len(buffer) == room or size < KEPT_BODY_BYTES_LEAST


def test_slabs_that_are_held_are_not_watched_above_the_bound() -> None:  # I15
    sockets = Sockets(1)
    for _ in range((SLABS_MAX + 4) * RECEIVE_SLAB_BYTES // LARGE):
        sockets.send(0, LARGE)
        sockets.read(0, RECEIVE_BYTES)
    sockets.check()
    assert sockets.memory.slabs <= SLABS_MAX + 1


def test_a_large_body_among_many_small_ones_is_copied() -> None:  # I15: its view would hold all of them
    sockets = Sockets(1)
    for size in (*[1_000] * 100, KEPT_BODY_BYTES_LEAST, *[1_000] * 100):
        sockets.send(0, size)
    while sockets.unread[0]:
        sockets.read(0, RECEIVE_BYTES)
    assert all(isinstance(body, bytes) for _, body in sockets.held)
    sockets.check()
