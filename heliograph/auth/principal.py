"""The credentials that a caller presents, and the caller's identity once they were checked (pure)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

METHOD_NONE = "none"  # nothing was presented
METHOD_TOKEN = "token"
METHOD_BASIC = "basic"
METHOD_TLS = "tls"
TOKEN_BYTES_MAX = 8 * 1024  # a longer one is refused before it is parsed # I15


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials that a caller presents at a door.

    Attributes:
        method: Pulsar's name of the method: ``token``, ``basic``, ``tls``, ``none``, or that of a plug-in.
        data: the token, or user and password joined by a colon; never in logs.
        certificate: the certificate that the caller's end of TLS presented and that was verified, as
            ``ssl.SSLSocket.getpeercert`` returns it; None without one.
    """

    method: str = METHOD_NONE
    data: bytes = field(default=b"", repr=False)
    certificate: Mapping[str, Any] | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that was checked.

    Attributes:
        role: the role that acts.
        via: the proxy role that speaks for ``role``; empty without a proxy.
        method: by which ``role`` was shown, or the proxy role if there is one.
        expires_ms: Unix time in milliseconds at which the credentials end; None if they do not.
        token_ids: ``revocation_id`` of each token that was shown, by which it can be revoked.
        is_internal: whether it is a part of the cluster itself, which may do everything.
    """

    role: str
    via: str = ""
    method: str = METHOD_NONE
    expires_ms: int | None = None
    is_internal: bool = False
    token_ids: tuple[str, ...] = ()

    @property
    def roles(self) -> tuple[str, ...]:
        return (self.role, self.via) if self.via else (self.role,)

    def __str__(self) -> str:
        return f"{self.role} via {self.via}" if self.via else self.role


def revocation_id(claim: str) -> str:
    """Return the name of a token on the list of revoked tokens: a hash of its claim ``jti``."""
    return hashlib.sha256(claim.encode("utf-8", "surrogatepass")).hexdigest()


INTERNAL = Principal("cluster", is_internal=True)
