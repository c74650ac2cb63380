"""Reads of heads: only a bookie that is known to have them is asked for them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.actors.wire.messages import REVISION, BookieOp, BookieRequest, Flag
from tests.unit.wire.range_bookie import Bookie, ok, visit


@pytest.mark.parametrize("revision", [0, REVISION - 1, REVISION])
async def test_an_older_bookie_is_asked_for_whole_entries(revision: int) -> None:
    bookie = Bookie(revision, ok)

    async with visit(bookie) as (connection, _):
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = BookieRequest(BookieOp.READ_BATCH, 0, 1, 0, Flag.HEADS | Flag.HIGH_PRIORITY)
        connection.request(request, b"", lambda tag, *_: tag.set_result(None), answered, 60_000)
        await answered
        knows = revision == REVISION
        wanted = Flag.HIGH_PRIORITY | (Flag.HEADS if knows else Flag.NONE)
        assert [request.flags for request, _ in bookie.frames] == [wanted]
