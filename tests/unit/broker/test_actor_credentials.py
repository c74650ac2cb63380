"""Administrative calls through the broker's actor: who calls is checked before anything is done."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.actors.broker.actor import BrokerActor
from heliograph.actors.broker.config import BrokerConfig
from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import Credentials
from heliograph.base.errors import AuthenticationError, NotPermittedError
from tests.unit.auth.keys import SECRET, token
from tests.unit.broker.clients import LoneBroker


def actor_of(lone: LoneBroker) -> BrokerActor:
    made = BrokerActor(BrokerConfig("lone"), "memory://none")
    made._sessions = SimpleNamespace(broker=lone.broker)  # type: ignore[assignment]
    return made


def shown(role: str) -> Credentials:
    return Credentials("token", token(role))


async def test_callers_are_known_before_an_operation_runs() -> None:
    auth: dict[str, Any] = {
        "enabled": True,
        "token_secret_key": base64.b64encode(SECRET).decode(),
        "superuser_roles": ("admin",),
        "proxy_roles": ("gateway",),
    }
    async with LoneBroker(auth=AuthConfig(**auth)) as lone:
        actor = actor_of(lone)

        assert "public" in await actor.admin("namespaces.tenants", {}, shown("admin"))
        for credentials in (None, Credentials(), Credentials("token", b"x"), Credentials("basic", b"admin:x")):
            with pytest.raises(AuthenticationError, match="Failed to authenticate"):
                await actor.admin("namespaces.tenants", {}, credentials)
        for credentials, original in (
            (shown("bob"), ""),  # has no right
            (shown("gateway"), ""),  # a proxy names the caller
            (shown("bob"), "admin"),  # only a proxy may
            (shown("gateway"), "bob"),
        ):
            with pytest.raises(NotPermittedError):
                await actor.admin("namespaces.tenants", {}, credentials, original)


async def test_without_authentication_nobody_is_asked() -> None:
    async with LoneBroker() as lone:
        actor = actor_of(lone)
        assert "public" in await actor.admin("namespaces.tenants", {})
        assert "public" in await actor.admin("namespaces.tenants", {}, Credentials("token", b"x"), "bob")
