"""Direct readers with a grant at a bookie that has the cluster's secret: their ledgers, for reading, until the end."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.ledger.driver import DetachedReader, LedgerClient, LedgerClientConfig
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.entry import encode_entry
from heliograph.actors.wire.grant import make_grants
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Flag, Status
from heliograph.base import clock
from heliograph.base.clock import wall_ms
from heliograph.base.errors import AuthenticationError
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from tests.cluster.support.bookie_peer import small_config

SECRET = "a secret that is long enough"


async def asked(connection: BookieConnection, request: BookieRequest, body: bytes = b"") -> Any:
    """Return the bookie's answer to one request."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    connection.request(request, body, lambda tag, found, _: answer.set_result(found), None, 60_000)
    return await answer


async def test_a_grant_reads_its_ledgers_and_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.actors.bookie.bookie import Bookie

    url = "memory://bookie-grants"
    await initialise(await connect_store(url))
    bookie = Bookie(small_config(tmp_path, bookie_id="b1", cluster_secret=SECRET), await connect_store(url))
    await bookie.start()
    client = await LedgerClient.start(await connect_store(url), LedgerClientConfig(cluster_secret=SECRET))
    ledgers = []
    for _ in range(2):
        writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
        await asyncio.gather(*[writer.add(b"%d" % n) for n in range(10)])
        await writer.close()
        ledgers.append((await client.open(writer.ledger_id)).metadata)
    ours, other = ledgers
    (grant,) = make_grants(SECRET, [ours.ledger_id], wall_ms() + 60_000)

    reader = DetachedReader({"b1": bookie.address}, grant=grant.text)
    assert [entry.payload for entry in await reader.read(ours, 0, 9)] == [b"%d" % n for n in range(10)]
    await reader.close()

    loop = asyncio.get_running_loop()
    connection = BookieConnection("b1", bookie.address, lambda: int(loop.time() * 1000), secret=grant)
    ours_id, other_id = ours.ledger_id, other.ledger_id
    entry = encode_entry(ours_id, 10, 9, 20, b"forged")
    for request, body in (
        (BookieRequest(BookieOp.READ, 0, other_id, 0), b""),
        (BookieRequest(BookieOp.READ_BATCH, 0, other_id, 0, Flag.NONE, 1 << 20, 9), b""),
        (BookieRequest(BookieOp.LIST_ENTRIES, 0, other_id, 0), b""),
        (BookieRequest(BookieOp.READ, 0, ours_id, 0, Flag.FENCE), b""),
        (BookieRequest(BookieOp.ADD, 0, ours_id, 10), entry),
        (BookieRequest(BookieOp.ADD, 0, ours_id, 10, Flag.RECOVERY), entry),
        (BookieRequest(BookieOp.WRITE_LAC, 0, ours_id, 9), b""),
        (BookieRequest(BookieOp.STATISTICS, 0), b""),
    ):
        answer = await asked(connection, request, body)
        assert isinstance(answer, Answer)
        assert answer.status is Status.UNAUTHORIZED, request
    read = BookieRequest(BookieOp.READ, 0, ours_id, 0)
    assert (await asked(connection, read)).status is Status.OK
    ahead = wall_ms() + 120_000
    monkeypatch.setattr("heliograph.actors.bookie.server.connection.wall_ms", lambda: ahead)
    assert (await asked(connection, read)).text == "the grant has expired"
    connection.close()
    await client.close()
    await bookie.stop()


async def test_a_reader_says_that_its_grant_has_ended() -> None:
    (late,) = make_grants(SECRET, [1], clock.wall_ms() - 1)
    with pytest.raises(AuthenticationError, match="plan the read again"):
        DetachedReader({}, grant=late.text)
    with pytest.raises(AuthenticationError, match="no grant"):
        DetachedReader({}, grant="nonsense")
