"""The frames of one turn of the loop are written together, in order, and within the bound of the outbox."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from heliograph.protocol.outbox import OUTBOX_BYTES_MAX, Outbox


class Socket:
    """A socket that keeps what is written, write by write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.writes_in_parts = 0

    def write(self, data: bytes | memoryview, /) -> None:
        self.writes.append(bytes(data))

    def writelines(self, list_of_data: Iterable[bytes | memoryview], /) -> None:
        self.writes.append(b"".join(list_of_data))
        self.writes_in_parts += 1


def outbox(socket: Socket) -> Outbox:
    return Outbox(socket, asyncio.get_running_loop().call_soon)


async def test_frames_of_one_turn_are_one_write() -> None:
    socket = Socket()
    box = outbox(socket)
    for frame in (b"one", b"two"):
        box.put(frame)
    box.put(b"head", b"payload")
    assert socket.writes == []
    await asyncio.sleep(0)
    assert socket.writes == [b"onetwoheadpayload"]
    box.put(b"next turn")
    await asyncio.sleep(0)
    assert socket.writes[1:] == [b"next turn"]


async def test_no_more_is_held_than_the_bound() -> None:
    """I15: the limit of the socket's own buffer takes effect only on what is written to it."""
    socket = Socket()
    box = outbox(socket)
    large = bytes(OUTBOX_BYTES_MAX)
    box.put(b"small")
    box.put(b"head", large)
    assert socket.writes == [b"small" + b"head" + large]
    box.put(b"behind")
    await asyncio.sleep(0)
    assert socket.writes[1:] == [b"behind"]


async def test_large_frames_of_a_turn_are_one_write_without_a_copy_and_small_ones_with() -> None:
    for payload, in_parts in ((bytes(100_000), 1), (bytes(1_000), 0)):
        socket = Socket()
        box = Outbox(socket, asyncio.get_running_loop().call_soon, 4 * OUTBOX_BYTES_MAX)
        count = 2 * OUTBOX_BYTES_MAX // len(payload)
        for _ in range(count):
            box.put(b"head", payload)
        assert socket.writes == []
        await asyncio.sleep(0)
        assert socket.writes == [(b"head" + payload) * count]
        assert socket.writes_in_parts == in_parts


async def test_nothing_is_written_to_a_socket_that_is_gone() -> None:
    socket = Socket()
    box = outbox(socket)
    box.put(b"late")
    box.drop()
    box.put(b"later")
    box.flush()
    await asyncio.sleep(0)
    assert socket.writes == []


async def test_what_is_held_leaves_before_a_close() -> None:
    socket = Socket()
    box = outbox(socket)
    box.put(b"last words")
    box.flush()
    box.drop()
    await asyncio.sleep(0)
    assert socket.writes == [b"last words"]


async def test_the_last_frame_of_a_turn_takes_the_others_with_it() -> None:
    socket = Socket()
    box = outbox(socket)
    box.put_last(b"alone")
    assert socket.writes == [b"alone"]
    box.put(b"one")
    box.put_last(b"two")
    assert socket.writes[1:] == [b"onetwo"]
    box.put(b"after all")
    await asyncio.sleep(0)
    assert socket.writes[2:] == [b"after all"]
    box.put_last(b"head", b"payload")
    box.put(b"one")
    box.put_last(b"head", memoryview(b"payload"))
    assert socket.writes[3:] == [b"headpayload", b"oneheadpayload"]
    box.drop()
    box.put_last(b"late")
    assert len(socket.writes) == 5


async def test_a_socket_that_closed_in_this_turn_ends_the_outbox() -> None:
    """A transport of uvloop raises from the moment when a peer is gone, and tells of the loss later in the turn."""

    class Gone(Socket):
        def write(self, data: bytes | memoryview, /) -> None:
            raise RuntimeError("the handler is closed")

    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    for last in (False, True):
        box = outbox(Gone())
        (box.put_last if last else box.put)(b"frame")
        await asyncio.sleep(0)
        box.put(b"another")
        box.flush()
        await asyncio.sleep(0)
    assert failures == []
