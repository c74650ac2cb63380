"""Ledgers with an unknown digest and records of a newer version: refused before anything is fenced."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import crc32c
import pytest

from heliograph.actors.errors import LedgerClosedError, NoSuchEntryError, NoSuchLedgerError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.actors.wire.messages import Flag
from heliograph.base.errors import HeliographError, MessageTooLargeError, UnsupportedError
from heliograph.metadata.codec import decode, encode
from heliograph.metadata.errors import RecordError
from heliograph.metadata.model import LedgerMetadata, LedgerState, Segment
from heliograph.metadata.paths import ledger as ledger_path
from heliograph.metadata.recipes.update_loop import update
from tests.cluster.support.ledger_cluster import LedgerCluster, ledger_cluster


async def with_one_entry(client: LedgerClient) -> int:
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
    assert await writer.add(b"entry") == 0
    return writer.ledger_id


def openings(client: LedgerClient, ledger_id: int) -> list[Awaitable[object]]:
    return [client.open(ledger_id), client.recover(ledger_id), client.repair(ledger_id, ["b1"])]


async def state(client: LedgerClient, ledger_id: int) -> LedgerState:
    return (await client.metadata(ledger_id)).record.state


def was_fenced(cluster: LedgerCluster) -> bool:
    return any(request.flags & Flag.FENCE for bookie in cluster.bookies.values() for request in bookie.requests)


async def test_a_digest_that_this_version_does_not_know() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        ledger_id = await with_one_entry(client)

        def newer(record: LedgerMetadata) -> LedgerMetadata | None:
            return None if record.digest == "sha3" else replace(record, digest="sha3")

        await update(cluster.store, ledger_path(ledger_id), LedgerMetadata, newer)
        for opening in openings(client, ledger_id):
            with pytest.raises(UnsupportedError, match="upgrade") as refused:
                await opening
            assert refused.value.field == "digest"
        assert await state(client, ledger_id) is LedgerState.OPEN
        assert not was_fenced(cluster)


async def test_a_record_that_a_newer_version_wrote() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        ledger_id = await with_one_entry(client)
        value = encode((await client.metadata(ledger_id)).record)
        await cluster.store.set(ledger_path(ledger_id), value.replace(b" v1 ", b" v2 ", 1), -1)
        for opening in openings(client, ledger_id):
            with pytest.raises(RecordError, match="upgrade"):
                await opening
        assert not was_fenced(cluster)


@pytest.mark.parametrize("password", [{}, {"password_hash": ""}, {"password_hash": "scrypt-16384-8-1:00:00"}])
def test_records_of_earlier_versions_are_read(password: dict[str, str]) -> None:
    """The first version wrote no digest; later ones wrote the hash of a password."""
    record = LedgerMetadata(7, 1, 1, 1, (Segment(0, ("b1",)),))
    fields = json.loads(encode(record).partition(b"\n")[2])
    body = json.dumps({name: fields[name] for name in fields if name != "digest"} | password).encode()
    assert decode(LedgerMetadata, b"heliograph LedgerMetadata v1 %08x\n%s" % (crc32c.crc32c(body), body)) == record


async def test_errors_say_what_to_do_next() -> None:
    async with ledger_cluster() as cluster:
        client = await cluster.client()
        writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.add(b"entry")
        reader = await client.open(writer.ledger_id)

        async def said(kind: type[HeliographError], call: Callable[[], Awaitable[object]]) -> str:
            with pytest.raises(kind) as caught:
                await call()
            return str(caught.value)

        assert "wait for last_add_confirmed" in await said(NoSuchEntryError, lambda: reader.read(0, 5))  # I3
        assert "its id is wrong" in await said(NoSuchLedgerError, lambda: client.open(999))
        assert "split it" in await said(MessageTooLargeError, lambda: writer.add(bytes((5 << 20) + 1)))
        await writer.close()
        await reader.refresh()
        assert "closed" in await said(NoSuchEntryError, lambda: reader.read(0, 5))
        assert "a new one" in await said(LedgerClosedError, lambda: writer.add(b"late"))
