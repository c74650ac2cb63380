"""The sender of a request: the address that it comes from, and the role that it has shown."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.requests import HTTPConnection
from starlette.types import Scope

from heliograph.auth.principal import INTERNAL, Principal

_KEY = "heliograph.caller"


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of one request.

    Attributes:
        address: of the other end of the connection, or the address that a trusted proxy there names.
        principal: who the caller is; the cluster itself where callers are not authenticated.
    """

    address: str
    principal: Principal = INTERNAL

    @property
    def role(self) -> str:
        """The role that limits are counted for; empty where callers are not authenticated."""
        return "" if self.principal.is_internal else self.principal.role


def set_caller(scope: Scope, principal: Principal) -> Caller:
    """Note who sends a request, for everything that handles it."""
    caller = scope[_KEY] = Caller(address_of(scope), principal)
    return caller


def caller_of(connection: HTTPConnection) -> Caller:
    caller = connection.scope[_KEY]
    assert isinstance(caller, Caller), "the gateway's door notes the caller of each request"
    return caller


def address_of(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
