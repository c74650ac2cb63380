"""Grants to read ledgers: what they allow, how they are bounded, and that nobody can make or change one."""

from __future__ import annotations

import base64

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.actors.wire.grant import (
    CLAIMS_BYTES_MAX,
    LEDGERS_MAX,
    ReadGrant,
    grant_from_text,
    make_grants,
    verified_grant,
)
from heliograph.actors.wire.greeting import ClientGreeting, Greeting
from heliograph.actors.wire.messages import BookieOp, BookieRequest, Flag, Status
from heliograph.base.clock import wall_ms
from heliograph.base.errors import AuthenticationError

SECRET = "a secret that is long enough"
OTHER = "another one, of some other cluster"
END = 2_000_000_000_000
LARGEST = (1 << 63) - 1


def a_grant(*ledger_ids: int, secret: str = SECRET, expires_ms: int = END) -> ReadGrant:
    (grant,) = make_grants(secret, ledger_ids or (7,), expires_ms)
    return grant


@given(st.lists(st.integers(0, LARGEST), min_size=1, max_size=400))
def test_grants_cover_the_ledgers_in_bounded_pieces(ledger_ids: list[int]) -> None:
    grants = make_grants(SECRET, ledger_ids, END)
    assert set().union(*(grant.ledger_ids for grant in grants)) == set(ledger_ids)
    for grant in grants:
        assert len(grant.ledger_ids) <= LEDGERS_MAX
        assert len(grant.claims) <= CLAIMS_BYTES_MAX
        assert grant_from_text(grant.text) == grant
        assert verified_grant(grant.claims, (OTHER, SECRET), END - 1) == grant
        assert grant.key not in repr(grant)


def test_a_grant_of_the_largest_ids_fits() -> None:
    step = LARGEST // LEDGERS_MAX
    (grant,) = make_grants(SECRET, range(step, LARGEST, step), END)
    assert len(grant.claims) <= CLAIMS_BYTES_MAX


def test_another_secret_and_an_end_are_refused() -> None:
    grant = a_grant()
    with pytest.raises(AuthenticationError, match="another secret"):
        verified_grant(grant.claims, (OTHER,), 0)
    with pytest.raises(AuthenticationError, match="expired"):
        verified_grant(grant.claims, (SECRET,), END)
    assert a_grant(secret=OTHER).key != grant.key


def test_changed_claims_have_another_key() -> None:
    grant = a_grant(7)
    items = msgpack.unpackb(grant.claims)
    for changed in ([*items, 1], [*items[:2], END + 1, 7], [*items[:3], 8]):
        assert verified_grant(msgpack.packb(changed), (SECRET,), 0).key != grant.key


@pytest.mark.parametrize(
    "claims",
    [
        b"",
        b"\xc1",
        b"x" * (CLAIMS_BYTES_MAX + 1),
        msgpack.packb(5),
        msgpack.packb({}),
        msgpack.packb([1, b"x" * 8, END]),
        msgpack.packb([1, b"x" * 8, END, *range(LEDGERS_MAX + 1)]),
        msgpack.packb([2, b"x" * 8, END, 7]),
        msgpack.packb([True, b"x" * 8, END, 7]),
        msgpack.packb([1.0, b"x" * 8, END, 7]),
        msgpack.packb([1, "x" * 8, END, 7]),
        msgpack.packb([1, b"x" * 9, END, 7]),
        msgpack.packb([1, b"x" * 8, float(END), 7]),
        msgpack.packb([1, b"x" * 8, END, "7"]),
        msgpack.packb([1, b"x" * 8, END, -7]),
        msgpack.packb([1, b"x" * 8, END, 7, None]),
        msgpack.packb([1, b"x" * 8, END, 7]) + b"more",
    ],
)
def test_malformed_claims_are_refused(claims: bytes) -> None:
    with pytest.raises(AuthenticationError):
        verified_grant(claims, (SECRET,), 0)
    bookie = Greeting(SECRET)
    if claims:
        assert bookie.answer(b"n" * 32 + claims, "b1") == (Status.UNAUTHORIZED, b"")


@pytest.mark.parametrize("text", ["", ".", "a", "a.b", "ü.ü", f"{base64.b64encode(b'[]').decode()}."])
def test_a_text_that_is_no_grant_is_refused(text: str) -> None:
    with pytest.raises(AuthenticationError):
        grant_from_text(text)


def test_what_a_grant_allows() -> None:
    grant = a_grant(7, 9)

    def fault(op: BookieOp, ledger_id: int = 7, flags: Flag = Flag.NONE, now: int = END - 1) -> str:
        return grant.fault(BookieRequest(op, 1, ledger_id, 0, flags), now)

    for op in BookieOp:
        is_reading = op in (BookieOp.READ, BookieOp.READ_BATCH, BookieOp.READ_LAC, BookieOp.LIST_ENTRIES)
        assert (fault(op) == "") == is_reading
    assert fault(BookieOp.READ, 9, Flag.HIGH_PRIORITY) == ""
    assert "ledger 8 is not named" in fault(BookieOp.READ, 8)
    assert "for reading" in fault(BookieOp.READ, flags=Flag.FENCE)
    assert "for reading" in fault(BookieOp.READ, flags=Flag.RECOVERY | Flag.HIGH_PRIORITY)
    assert "expired" in fault(BookieOp.READ, now=END)


def test_both_ends_prove_the_grant_and_never_send_its_key() -> None:
    grant = a_grant(expires_ms=wall_ms() + 60_000)
    client, bookie = ClientGreeting(grant), Greeting(SECRET)
    status, challenge = bookie.answer(client.hello, "b1")
    assert status is Status.CHALLENGE
    proof = client.prove(challenge, "b1")
    assert bookie.answer(proof, "b1") == (Status.OK, b"")
    assert bookie.grant == grant
    sent = client.hello + challenge + proof
    assert bytes.fromhex(grant.key) not in sent
    assert grant.key.encode() not in sent


def test_claims_without_their_key_are_refused() -> None:
    grant = a_grant(expires_ms=wall_ms() + 60_000)
    thief = ClientGreeting(ReadGrant(grant.claims, "00" * 32))
    bookie = Greeting(SECRET)
    status, challenge = bookie.answer(thief.hello, "b1")
    assert status is Status.CHALLENGE
    assert bookie.answer(b"p" * 32, "b1")[0] is Status.UNAUTHORIZED
    assert len(challenge) == 64


def test_an_expired_grant_is_not_greeted() -> None:
    late = ClientGreeting(a_grant(expires_ms=wall_ms() - 1))
    assert Greeting(SECRET).answer(late.hello, "b1") == (Status.UNAUTHORIZED, b"")
