"""Passwords and digests of ledgers, and records that a newer version wrote: refused before anything is fenced."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace

import crc32c
import pytest

from actors.errors import LedgerAccessError, LedgerClosedError, NoSuchEntryError, NoSuchLedgerError
from actors.ledger.driver import LedgerClient, LedgerClientConfig
from actors.ledger.driver.access import PASSWORD_BYTES_MAX
from actors.wire.messages import Flag
from heliograph.errors import Advice, BadRequestError, HeliographError, MessageTooLargeError, UnsupportedError
from metadata.codec import decode, encode
from metadata.errors import RecordError
from metadata.model import LedgerMetadata, LedgerState, Segment
from metadata.paths import ledger as ledger_path
from metadata.update_loop import update
from tests.cluster.ledger_cluster import LedgerCluster, run


async def with_password(client: LedgerClient, password: bytes) -> int:
    writer = await client.create(ensemble_size=3, write_quorum=3, ack_quorum=2, password=password)
    assert await writer.add(b"entry") == 0
    return writer.ledger_id


def openings(client: LedgerClient, ledger_id: int, password: bytes) -> list[Awaitable[object]]:
    return [
        client.open(ledger_id, password=password),
        client.recover(ledger_id, password=password),
        client.repair(ledger_id, ["b1"], password=password),
    ]


async def state(client: LedgerClient, ledger_id: int) -> LedgerState:
    return (await client.metadata(ledger_id)).record.state


def was_fenced(cluster: LedgerCluster) -> bool:
    return any(request.flags & Flag.FENCE for bookie in cluster.bookies.values() for request in bookie.requests)


@pytest.mark.parametrize("wrong", [b"", b"wrong", bytes(PASSWORD_BYTES_MAX + 1)], ids=["none", "wrong", "too long"])
def test_a_wrong_password_fences_nothing(wrong: bytes) -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client()
        ledger_id = await with_password(client, b"right")
        for opening in openings(await cluster.client(), ledger_id, wrong):
            with pytest.raises(LedgerAccessError, match="another password") as refused:
                await opening
            assert refused.value.advice is Advice.STOP
        assert await state(client, ledger_id) is LedgerState.OPEN
        assert not was_fenced(cluster)

    run(scenario)


def test_the_right_password_opens() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        first, other = await cluster.client(), await cluster.client()
        ledger_id = await with_password(first, b"right")
        record = (await first.metadata(ledger_id)).record
        assert record.digest == "crc32c"
        assert "right" not in record.password_hash
        again = await with_password(first, b"right")
        assert (await first.metadata(again)).record.password_hash != record.password_hash  # salted
        for opening in openings(other, ledger_id, b"right"):
            await opening
        reader = await other.open(ledger_id, password=b"right")
        assert [entry.payload for entry in await reader.read(0, 0)] == [b"entry"]

    run(scenario)


def test_a_password_for_a_ledger_without_one() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client()
        ledger_id = await with_password(client, b"")
        assert (await client.metadata(ledger_id)).record.password_hash == ""
        with pytest.raises(LedgerAccessError, match="no password"):
            await client.open(ledger_id, password=b"some")
        with pytest.raises(BadRequestError, match="too long"):
            await with_password(client, bytes(PASSWORD_BYTES_MAX + 1))

    run(scenario)


def test_upkeep_needs_no_password() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        ledger_id = await with_password(await cluster.client(), b"right")
        upkeep = await cluster.client(LedgerClientConfig(tick_ms=10, is_upkeep=True))
        assert (await upkeep.recover(ledger_id)).is_closed
        assert await upkeep.repair(ledger_id, ["b1"])
        assert await upkeep.check(ledger_id) == ()

    run(scenario)


@pytest.mark.parametrize(("name", "value"), [("digest", "sha3"), ("password_hash", "argon2:00:00")])
def test_a_protection_that_this_version_does_not_know(name: str, value: str) -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client()
        ledger_id = await with_password(client, b"")

        def newer(record: LedgerMetadata) -> LedgerMetadata | None:
            return None if getattr(record, name) == value else replace(record, **{name: value})  # type: ignore[arg-type]

        await update(cluster.store, ledger_path(ledger_id), LedgerMetadata, newer)
        for opening in openings(client, ledger_id, b"some"):
            with pytest.raises(UnsupportedError, match="upgrade") as refused:
                await opening
            assert refused.value.field == name
        assert await state(client, ledger_id) is LedgerState.OPEN
        assert not was_fenced(cluster)

    run(scenario)


def test_a_record_that_a_newer_version_wrote() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
        client = await cluster.client()
        ledger_id = await with_password(client, b"")
        value = encode((await client.metadata(ledger_id)).record)
        await cluster.store.set(ledger_path(ledger_id), value.replace(b" v1 ", b" v2 ", 1), -1)
        for opening in openings(client, ledger_id, b""):
            with pytest.raises(RecordError, match="upgrade"):
                await opening
        assert not was_fenced(cluster)

    run(scenario)


def test_a_record_from_before_passwords_is_read() -> None:
    record = LedgerMetadata(7, 1, 1, 1, (Segment(0, ("b1",)),))
    fields = json.loads(encode(record).partition(b"\n")[2])
    body = json.dumps({name: fields[name] for name in fields if name not in ("digest", "password_hash")}).encode()
    assert decode(LedgerMetadata, b"heliograph LedgerMetadata v1 %08x\n%s" % (crc32c.crc32c(body), body)) == record


def test_errors_say_what_to_do_next() -> None:
    async def scenario(cluster: LedgerCluster) -> None:
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

    run(scenario)
