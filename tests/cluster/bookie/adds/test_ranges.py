"""Adds in ranges on a real bookie: one frame, one answer for each sync, refusals one by one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.wire.entry import encode_entry_head
from heliograph.actors.wire.frame import BookieFrameDecoder, decode_answer, encode_request
from heliograph.actors.wire.greeting import hello, revision_in
from heliograph.actors.wire.lacs import encode_lacs
from heliograph.actors.wire.messages import REVISION, Answer, BookieOp, BookieRequest, Flag, Status
from heliograph.actors.wire.ranges import OutgoingEntry, decode_run, encode_adds, is_run
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config


class RangePeer(asyncio.Protocol):
    """A connection that says its revision and keeps the answers, a run as its first and last request id."""

    def __init__(self) -> None:
        self.answers: list[Answer | tuple[int, int]] = []
        self.bodies: list[bytes] = []
        self.is_lost = False
        self._decoder = BookieFrameDecoder()
        self._news = asyncio.Event()

    @classmethod
    async def connect(cls, address: str, revision: int = REVISION) -> RangePeer:
        host, port = address.rsplit(":", 1)
        _, peer = await asyncio.get_running_loop().create_connection(cls, host, int(port))
        peer.write(encode_request(hello()._replace(entry_id=revision)))
        await peer.wait(1)
        return peer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._news.set()

    def data_received(self, data: bytes) -> None:
        for header, body in self._decoder.feed(data):
            self.answers.append(decode_run(header) if is_run(header) else decode_answer(header))
            self.bodies.append(bytes(body))
        self._news.set()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    async def wait(self, count: int) -> list[Answer | tuple[int, int]]:
        """Wait for that many answers or the end of the connection; return them and forget them."""
        async with asyncio.timeout(60):
            while len(self.answers) < count and not self.is_lost:
                self._news.clear()
                await self._news.wait()
        found, self.answers = self.answers, []
        return found


@asynccontextmanager
async def running(home: Path, **changes: object) -> AsyncIterator[tuple[Bookie, BookiePeer, RangePeer]]:
    async with serving(small_config(home, **changes)) as (bookie, peer):
        ranges = await RangePeer.connect(bookie.address)
        yield bookie, peer, ranges
        ranges.transport.abort()


def entry(ledger_id: int, entry_id: int, *, lac: int | None = None) -> bytes:
    payload = b"p%d" % entry_id
    head = encode_entry_head(ledger_id, entry_id, entry_id - 1 if lac is None else lac, len(payload), payload)
    made = OutgoingEntry(ledger_id, entry_id, head, payload).in_range()
    assert made is not None
    return made


def damaged(ledger_id: int, entry_id: int) -> bytes:
    made = bytearray(entry(ledger_id, entry_id))
    made[-1] ^= 1
    return bytes(made)


def flat(answers: list[Answer | tuple[int, int]]) -> dict[int, Any]:
    """Return the status of each request id; those of runs are OK."""
    found: dict[int, Any] = {}
    for answer in answers:
        if isinstance(answer, Answer):
            found[answer.request_id] = answer.status
        else:
            found.update(dict.fromkeys(range(answer[0], answer[1] + 1), Status.OK))
    return found


async def test_a_frame_of_several_ledgers_is_answered_by_one_run(tmp_path: Path) -> None:
    async with running(tmp_path) as (bookie, peer, ranges):
        ranges.write(encode_adds(1, [entry(5, 0), entry(6, 0), entry(5, 1), entry(6, 1)]))
        assert await ranges.wait(1) == [(1, 4)]
        for ledger_id in (5, 6):
            assert await peer.status(BookieOp.READ, ledger_id, 1) is Status.OK
        assert bookie.statistics()["entries_added"] == 4


async def test_a_refused_entry_is_answered_alone_and_is_in_no_run(tmp_path: Path) -> None:  # I1 I4
    async with running(tmp_path) as (_bookie, peer, ranges):
        await peer.call(BookieOp.READ_LAC, 6, flags=Flag.FENCE)
        frame = [entry(5, 0), entry(6, 0), entry(5, 1), damaged(5, 2), entry(5, 3), entry(5, 4, lac=4), b"\0\0\0\0"]
        ranges.write(encode_adds(1, frame))
        answers = await ranges.wait(7)
        assert flat(answers) == {
            1: Status.OK,
            2: Status.FENCED,
            3: Status.OK,
            4: Status.DAMAGED,
            5: Status.OK,
            6: Status.BAD_REQUEST,
            7: Status.DAMAGED,
        }
        assert [answer for answer in answers if not isinstance(answer, Answer)] == [(1, 1), (3, 3), (5, 5)]
        assert await peer.status(BookieOp.READ, 5, 2) is Status.NO_ENTRY  # I6
        assert await peer.status(BookieOp.READ, 6, 0) is Status.NO_LEDGER


@pytest.mark.parametrize("revision", [-1, 0])
async def test_a_client_that_says_no_revision_is_told_none(tmp_path: Path, revision: int) -> None:
    async with running(tmp_path) as (bookie, peer, ranges):
        assert [revision_in(body) for body in ranges.bodies] == [REVISION]
        old = await RangePeer.connect(bookie.address, revision)
        assert old.bodies == [b""]
        assert (await peer.add(5, 0, b"x"))[0].status is Status.OK
        old.transport.abort()


async def test_single_adds_of_a_new_client_have_single_answers(tmp_path: Path) -> None:
    async with running(tmp_path) as (_bookie, _peer, ranges):
        for request_id in (1, 2):
            body = entry(5, request_id)[4:]
            ranges.write(encode_request(BookieRequest(BookieOp.ADD, request_id, 5, request_id), body))
        assert await ranges.wait(2) == [Answer(1, Status.OK), Answer(2, Status.OK)]


@pytest.mark.parametrize("cut", [1, 20])
async def test_a_frame_whose_lengths_do_not_add_up_ends_the_connection_and_stores_nothing(
    tmp_path: Path, cut: int
) -> None:
    async with running(tmp_path) as (_bookie, peer, ranges):
        ranges.write(encode_adds(1, [entry(5, 0), entry(5, 1)[:-cut]]))
        assert await ranges.wait(1) == []
        assert ranges.is_lost
        assert await peer.status(BookieOp.READ, 5, 0) is Status.NO_LEDGER


async def test_lacs_of_several_ledgers_are_stored_and_those_of_fenced_ones_ignored(tmp_path: Path) -> None:
    async with running(tmp_path) as (_bookie, peer, ranges):
        ranges.write(encode_adds(1, [entry(ledger_id, 0) for ledger_id in (5, 6, 7)]))
        assert await ranges.wait(1) == [(1, 3)]
        assert await peer.status(BookieOp.READ_LAC, 6, flags=Flag.FENCE) is Status.OK
        ranges.write(b"".join(encode_lacs(4, {5: 0, 6: 0, 7: 0})) + encode_adds(5, [entry(5, 1, lac=-1)]))
        assert await ranges.wait(1) == [(5, 5)], "LACS is not answered"
        assert [(await peer.call(BookieOp.READ_LAC, n, -1))[0].last_add_confirmed for n in (5, 6, 7)] == [0, -1, 0]

    async with running(tmp_path) as (_bookie, peer, _ranges):
        assert [(await peer.call(BookieOp.READ_LAC, n, -1))[0].last_add_confirmed for n in (5, 6, 7)] == [0, -1, 0]
