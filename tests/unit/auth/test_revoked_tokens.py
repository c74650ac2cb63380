"""The list of revoked tokens: what followers hear, what is taken off it, and its bound."""

from __future__ import annotations

import pytest

from heliograph.auth.principal import revocation_id
from heliograph.base.clock import wall_ms
from heliograph.base.errors import ResourceError
from heliograph.metadata.connect import connect_store
from heliograph.metadata.paths import REVOKED_TOKENS
from heliograph.metadata.recipes import revoked_tokens
from heliograph.metadata.recipes.revoked_tokens import RevokedTokens, revoke, revoked
from tests.unit.broker.world import turns


async def test_followers_hear_of_every_token_and_of_none_twice() -> None:
    store, heard = await connect_store("memory://revoked"), list[frozenset[str]]()
    await revoke(store, "before", None)
    tokens = RevokedTokens(store, heard.append)
    await tokens.start()
    assert heard == [{revocation_id("before")}]
    for _ in range(2):
        await revoke(store, "a/b\n\x00" * 500, None)  # whatever an issuer takes for an id
    await turns(lambda: len(heard) > 1)
    assert heard[1:] == [{revocation_id("before"), revocation_id("a/b\n\x00" * 500)}]
    await tokens.stop()
    await store.close()


async def test_tokens_that_have_ended_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revoked_tokens, "REVOKED_MAX", 2)
    store = await connect_store("memory://revoked-room")
    await revoke(store, "ended", wall_ms() - revoked_tokens.KEPT_MS - 1)
    await revoke(store, "later", wall_ms() - 3_600_000)  # some doors may take it until now
    await revoke(store, "never", None)
    assert [each.token_id for each in (await revoked(store))[0]] == ["later", "never"]
    with pytest.raises(ResourceError, match="2 tokens are revoked") as raised:
        await revoke(store, "more", None)
    assert raised.value.field == "token_id"
    await store.close()


@pytest.mark.parametrize("damage", [b"", b"\xff", b"[" * 100_000])
async def test_a_damaged_record_keeps_its_token_revoked_and_is_told(
    damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    store, heard = await connect_store(f"memory://revoked-damaged-{len(damage)}"), list[frozenset[str]]()
    await revoke(store, "first", None)
    tokens = RevokedTokens(store, heard.append)
    await tokens.start()
    place = f"{REVOKED_TOKENS}/{revocation_id('first')}"
    await store.set(place, damage)
    await turns(lambda: "damaged" in caplog.text)
    assert heard[-1] == {revocation_id("first")}
    late = RevokedTokens(store, heard.append)  # a door that starts now
    await late.start()
    assert heard[-1] == {revocation_id("first")}
    await store.create(f"{REVOKED_TOKENS}/no-hash", damage)
    await revoke(store, "second", None)
    await turns(lambda: len(heard[-1]) == 3)
    listed, damaged = await revoked(store)
    assert ([each.token_id for each in listed], damaged) == (["second"], sorted([revocation_id("first"), "no-hash"]))
    await revoke(store, "first", None)
    await store.delete(f"{REVOKED_TOKENS}/no-hash")
    assert [each.token_id for each in (await revoked(store))[0]] == ["second", "first"]
    for each in (tokens, late):
        await each.stop()
    await store.close()
