"""Messages whose checksums are right and whose fields are not: the connection ends, the bookie does not."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.server.connection import quiet
from heliograph.actors.wire.frame import encode_head
from heliograph.actors.wire.messages import PROTOCOL_VERSION, BookieOp, BookieRequest, Status
from heliograph.base.guard.quiet_log import LINES_PER_MINUTE_MAX
from tests.cluster.support.bookie_peer import BookiePeer, entry_bytes, serving, small_config
from tests.unit.wire.test_types import WRONG


async def end_of(bookie: Bookie, header: list[Any], body: bytes) -> None:
    """Send one message after a HELLO and wait until the bookie has closed the connection."""
    host, port = bookie.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    hello = list(BookieRequest(BookieOp.HELLO, 0, PROTOCOL_VERSION))
    writer.write(encode_head(hello, 0) + encode_head(header, len(body)) + body)
    async with asyncio.timeout(30):
        try:
            while await reader.read(1 << 16):
                pass
        except ConnectionResetError:
            pass
    writer.close()


def test_a_field_of_another_type_ends_the_connection_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with serving(small_config(tmp_path)) as (bookie, peer):
            await peer.add(7, 1, b"good")
            float_id = BookieRequest(BookieOp.ADD, 5, 7, 2)._replace(ledger_id=2.0)  # type: ignore[arg-type]
            await end_of(bookie, list(float_id), entry_bytes(7, 2, b"x"))
            for op in BookieOp:
                body = entry_bytes(7, 2, b"x") if op is BookieOp.ADD else b""
                for field in BookieRequest._fields:
                    for value in (*WRONG.values(), 2**63, [[]] * 3):
                        if value == 2**63 and field not in {"request_id", "flags"}:
                            continue
                        await end_of(bookie, list(BookieRequest(op, 5, 7, 2)._replace(**{field: value})), body)
            assert await peer.status(BookieOp.READ, 7, 2) is Status.NO_ENTRY, "none of them was stored"
            await bookie.checkpoint()
            assert bookie.failure is None
            assert (await peer.add(7, 2, b"good"))[0].status is Status.OK

    quiet._kinds.clear()
    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert len(caplog.records) <= 2 * LINES_PER_MINUTE_MAX, "hundreds of connections were closed"
    assert any(
        record.getMessage().startswith("b1 closed the connection from 127.0.0.1:")
        and record.getMessage().endswith(": ADD has ledger_id 2.0, an integer is required")
        for record in caplog.records
    )


@pytest.mark.parametrize(
    ("entry_id", "lac"), [(2, -(1 << 63)), (2, -2), (2, 2), (2, 1 << 62), (1 << 48, 1), ((1 << 63) - 1, 1), (-1, -1)]
)
async def test_an_add_with_numbers_that_cannot_be_is_refused(tmp_path: Path, entry_id: int, lac: int) -> None:
    async with serving(small_config(tmp_path)) as (_, peer):
        answer, _ = await peer.add(7, entry_id, b"x", lac=lac)
        assert answer.status is Status.BAD_REQUEST
        assert f"LAC {lac}: -1 <= LAC < entry id < 2**48 is required" in answer.text
        assert await peer.status(BookieOp.READ_LAC, 7) is Status.NO_LEDGER


async def test_an_explicit_lac_that_cannot_be_is_refused(tmp_path: Path) -> None:
    async def ask(peer: BookiePeer, lac: int) -> str:
        answer, _ = await peer.call(BookieOp.WRITE_LAC, 7, lac)
        assert answer.status is Status.BAD_REQUEST
        return answer.text

    async with serving(small_config(tmp_path)) as (_, peer):
        for lac in (-(1 << 63), -1, 1 << 48, 1 << 62, (1 << 64) - 1):
            assert await ask(peer, lac) == f"WRITE_LAC has entry_id {lac}, from 0 to 2**48 - 1 is required"
        assert await peer.status(BookieOp.READ_LAC, 7) is Status.NO_LEDGER
