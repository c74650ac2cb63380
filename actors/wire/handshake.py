"""Proof that both ends of a connection know the cluster's secret, without sending it.

    client                                  bookie
    HELLO, nonce C                ->
                                  <-        CHALLENGE, nonce B, HMAC(secret, "bookie" C B id)
    HELLO, HMAC(secret, "client" C B id) ->
                                  <-        OK, or UNAUTHORIZED and the end

HMAC uses SHA-256. Each side chooses a new nonce for each connection, so a recorded proof cannot be used again. The
bookie's id is in both proofs, so the proof of one bookie is not valid for another. What follows is neither encrypted
nor signed: the secret keeps strangers out, but not an attacker who can change bytes on the network.
"""

from __future__ import annotations

import hmac
import secrets

from heliograph.base.errors import InvalidConfigError

NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_CHARACTERS_MIN = 16


def new_nonce() -> bytes:
    """Return a new nonce. Each connection has one of its own."""
    return secrets.token_bytes(NONCE_BYTES)


def bookie_proof(secret: str, client_nonce: bytes, bookie_nonce: bytes, bookie_id: str) -> bytes:
    """Return the proof that the bookie sends after its nonce."""
    return _proof(b"heliograph bookie", secret, client_nonce, bookie_nonce, bookie_id)


def client_proof(secret: str, client_nonce: bytes, bookie_nonce: bytes, bookie_id: str) -> bytes:
    """Return the proof that the client sends in its second HELLO."""
    return _proof(b"heliograph client", secret, client_nonce, bookie_nonce, bookie_id)


def is_proof(given: bytes, expected: bytes) -> bool:
    """Whether two proofs are equal, in a time that does not depend on where they differ."""
    return hmac.compare_digest(given, expected)


def check_secret(secret: str | None) -> None:
    """Raise InvalidConfigError if the secret is too short. None means that there is none."""
    if secret is not None and len(secret) < SECRET_CHARACTERS_MIN:
        raise InvalidConfigError(
            f"the cluster's secret is shorter than {SECRET_CHARACTERS_MIN} characters",
            field="cluster_secret",
            limit=f"at least {SECRET_CHARACTERS_MIN} characters",
        )


def _proof(label: bytes, secret: str, client_nonce: bytes, bookie_nonce: bytes, bookie_id: str) -> bytes:
    assert len(client_nonce) == len(bookie_nonce) == NONCE_BYTES, "with a fixed size, no two messages are equal"
    message = b"\0".join((label, client_nonce + bookie_nonce + bookie_id.encode()))
    return hmac.digest(secret.encode(), message, "sha256")
