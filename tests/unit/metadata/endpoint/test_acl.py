"""The endpoint's ACLs, the identities that a client may show, and the texts of the four-letter words."""

from __future__ import annotations

import base64
import hashlib

import pytest
from kazoo.security import make_digest_acl_credential

from heliograph.auth.authenticator import Authenticator
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import revocation_id
from heliograph.metadata.endpoint.limits import IDENTITIES_PER_CONNECTION_MAX, EndpointLimits
from heliograph.metadata.endpoint.session.acl_directory import SAME_TRANSACTION, NodeAcl, StoredAcl, is_reserved
from heliograph.metadata.endpoint.session.caller import EndpointCaller
from heliograph.metadata.endpoint.session.statistics import ConnectionFacts, Facts, Statistics, answer
from heliograph.metadata.endpoint.wire.acl import OPEN_ACL, AclEntry, allows, digest_identity, masked, resolved
from heliograph.metadata.endpoint.wire.codes import ErrorCode, Permission, WireError
from heliograph.metadata.store import Stat
from tests.unit.auth.keys import SECRET, token

WORLD_READS = AclEntry(Permission.READ, "world", "anyone")


def test_a_digest_identity_is_kazoos() -> None:
    assert digest_identity(b"user:pass:word") == make_digest_acl_credential("user", "pass:word")
    # As in ZooKeeper, a credential without a colon is a user without a password.
    assert digest_identity(b"nobody") == "nobody:" + base64.b64encode(hashlib.sha1(b"nobody").digest()).decode()
    assert digest_identity(b"").startswith(":")
    assert digest_identity(b"\xff:x").startswith("\ufffd:")


def test_auth_stands_for_every_identity_and_nothing_is_kept_twice() -> None:
    auth, digest = AclEntry(31, "auth", ""), AclEntry(31, "digest", "b:hash")
    shown = {("digest", "b:hash"), ("digest", "a:hash"), ("token", "alice")}
    assert resolved([auth, digest, auth], shown) == (
        AclEntry(31, "digest", "a:hash"), digest, AclEntry(31, "token", "alice"),
    )  # fmt: skip


@pytest.mark.parametrize(
    "entries",
    [[], [AclEntry(31, "auth", "")], [AclEntry(31, "ip", "127.0.0.1")], [AclEntry(31, "world", "me")],
     [AclEntry(31, "digest", "nohash")], [WORLD_READS, AclEntry(31, "x509", "cn")],
     [AclEntry(31, "token", " ")]],
)  # fmt: skip
def test_acls_that_are_refused(entries: list[AclEntry]) -> None:
    with pytest.raises(WireError) as caught:
        resolved(entries, set())
    assert caught.value.code is ErrorCode.INVALID_ACL


def test_permissions_are_given_by_any_entry_that_fits() -> None:
    acl = (WORLD_READS, AclEntry(Permission.ADMIN, "digest", "a:hash"))
    assert allows(acl, Permission.READ, set())
    assert not allows(acl, Permission.ADMIN, {("digest", "b:hash")})
    assert not allows(acl, Permission.ADMIN, {("token", "a:hash")}), "an id of another scheme is another identity"
    assert allows(acl, Permission.ADMIN, {("digest", "a:hash")})
    assert not allows(acl, Permission.WRITE, {("digest", "a:hash")})
    assert allows(OPEN_ACL, Permission.ALL, set())
    assert not allows((), Permission.READ, set())
    assert masked(acl) == (WORLD_READS, AclEntry(Permission.ADMIN, "digest", "a:x"))


def test_a_record_counts_for_the_node_that_it_was_made_for() -> None:
    def stat(czxid: int, mzxid: int) -> Stat:
        return Stat(czxid, mzxid, 0, 0, 0, 0, 0)

    with_node = StoredAcl(NodeAcl.of("/a", SAME_TRANSACTION, 0, OPEN_ACL), stat(3, 7))
    assert with_node.is_for(stat(7, 9))
    assert not with_node.is_for(stat(8, 9))
    later = StoredAcl(NodeAcl.of("/a", 7, 1, OPEN_ACL), stat(9, 9))
    assert later.is_for(stat(7, 9))
    assert not later.is_for(stat(9, 9))
    damaged = StoredAcl(None, stat(9, 9))
    assert damaged.is_for(stat(1, 1))
    assert damaged.acl == ()


def test_what_is_reserved() -> None:
    assert is_reserved("/endpoint-acls")
    assert is_reserved("/endpoint-acls/%2Fa")
    assert not is_reserved("/endpoint-acls-of-mine")
    assert not is_reserved("/")


def test_the_timeout_is_kept_within_bounds() -> None:
    limits = EndpointLimits(session_timeout_ms_min=100, session_timeout_ms_max=1_000)
    assert [limits.negotiated(asked) for asked in (-5, 100, 500, 1 << 31)] == [100, 100, 500, 1_000]


def test_words_tell_when_the_store_is_out_of_reach_and_how_long_answers_take() -> None:
    facts = Facts(
        False, "[::1]:2181", 255, (ConnectionFacts("10.0.0.1:5", 2, 7, 5, -1, 9_000),), 1, 0, 0, 0, 0, 1_000, 60_000, 10
    )
    counts = Statistics()
    for latency in (3.0, 1.0, 5.0):
        counts.answered_after(latency)
    assert answer(b"ruok", facts, counts) != "imok"
    served = answer(b"stat", facts, counts)
    assert "Latency min/avg/max: 1/3.0000/5\n" in served
    assert " /10.0.0.1:5(queued=2,recved=7,sent=5)\n" in served
    assert "Zxid: 0xff\n" in served
    assert "clientPort=2181\nclientPortAddress=[::1]\n" in answer(b"conf", facts, counts)
    shown = " /10.0.0.1:5[1](queued=2,recved=7,sent=5,sid=0xffffffffffffffff,to=9000)\n"
    assert shown in answer(b"cons", facts, counts)
    assert answer(b"wchp", facts, counts).startswith("wchp is not executed")


KEY = "data:;base64," + base64.b64encode(SECRET).decode()


async def test_tokens_of_one_role_are_kept_up_to_a_bound() -> None:
    authenticator = Authenticator(AuthConfig(enabled=True, token_secret_key=KEY))
    caller = EndpointCaller(authenticator, "peer")
    shown = [token("alice", jti=f"t{number}") for number in range(IDENTITIES_PER_CONNECTION_MAX + 1)]
    for _ in range(3):  # the same one again takes no room
        await caller.show("token", shown[0])
    for one in shown[1:-1]:
        await caller.show("token", one)
    assert len(caller._shown) == IDENTITIES_PER_CONNECTION_MAX
    with pytest.raises(WireError, match="tokens"):
        await caller.show("token", shown[-1])
    assert not caller.has_expired
    authenticator.revoke(frozenset([revocation_id("t3")]))
    assert caller.has_expired
