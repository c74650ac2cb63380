"""Proof that both ends of a connection know the cluster's secret, without sending it. Pure.

    client                                  bookie
    HELLO, nonce C                ->
                                  <-        CHALLENGE, nonce B, HMAC(secret, "bookie" C B id)
    HELLO, HMAC(secret, "client" C B id) ->
                                  <-        OK, or UNAUTHORIZED and the end

HMAC is SHA-256's. Each side chooses its nonce anew, so nothing that was overheard serves again; the bookie's id is in
both proofs, so one bookie's answer does not serve as another's. What follows is neither encrypted nor signed: the
secret keeps strangers out, not those who can change what passes on the network.
"""

from __future__ import annotations

import hmac
import secrets

from heliograph.errors import InvalidConfigError

NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_CHARACTERS_MIN = 16


def new_nonce() -> bytes:
    """One for each connection."""
    return secrets.token_bytes(NONCE_BYTES)


def bookie_proof(secret: str, client_nonce: bytes, bookie_nonce: bytes, bookie_id: str) -> bytes:
    """What the bookie sends after its nonce."""
    return _proof(b"heliograph bookie", secret, client_nonce, bookie_nonce, bookie_id)


def client_proof(secret: str, client_nonce: bytes, bookie_nonce: bytes, bookie_id: str) -> bytes:
    """What the client sends in its second hello."""
    return _proof(b"heliograph client", secret, client_nonce, bookie_nonce, bookie_id)


def is_proof(given: bytes, expected: bytes) -> bool:
    """Whether they are equal, in a time that does not tell where they differ."""
    return hmac.compare_digest(given, expected)


def check_secret(secret: str | None) -> None:
    """Raise InvalidConfigError if the secret is too short to be one; None is no secret at all."""
    if secret is not None and len(secret) < SECRET_CHARACTERS_MIN:
        raise InvalidConfigError(
            f"the cluster's secret is shorter than {SECRET_CHARACTERS_MIN} characters",
            field="cluster_secret",
            limit=f"at least {SECRET_CHARACTERS_MIN} characters",
        )


def _proof(label: bytes, secret: str, client_nonce: bytes, bookie_nonce: bytes, bookie_id: str) -> bytes:
    assert len(client_nonce) == len(bookie_nonce) == NONCE_BYTES, "so that no two messages read the same"
    message = b"\0".join((label, client_nonce + bookie_nonce + bookie_id.encode()))
    return hmac.digest(secret.encode(), message, "sha256")
