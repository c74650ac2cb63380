"""The client of a connection of the ZooKeeper endpoint: what it may show, and how much of it is kept."""

from __future__ import annotations

import base64

import pytest

from heliograph.auth.authenticator import Authenticator
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import revocation_id
from heliograph.metadata.endpoint.limits import IDENTITIES_PER_CONNECTION_MAX
from heliograph.metadata.endpoint.session.caller import EndpointCaller
from heliograph.metadata.endpoint.wire.codes import WireError
from tests.unit.auth.keys import SECRET, token

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
