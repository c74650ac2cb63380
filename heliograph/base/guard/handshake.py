"""Proof that both ends of a connection know the cluster's secret, without sending it.

    client                                  server
    hello, nonce C                ->
                                  <-        challenge: nonce S, HMAC(secret, "server" C S name) for each of its secrets
    HMAC(secret, "client" C S name) ->
                                  <-        welcome, or a refusal and the end

HMAC uses SHA-256. Each side chooses a new nonce for each connection, so a recorded proof cannot be used again. The
server's name is in both proofs, so the proof of one server is not valid for another. Later bytes are neither encrypted
nor signed: the secret keeps strangers out, but not an attacker who can change bytes on the network.

Two secrets may be valid at once, the new and the previous one, so that a secret can be changed without a stop. Servers
accept both, and clients use the first of theirs that the server knows.
"""

from __future__ import annotations

import hmac
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass

from heliograph.base.errors import AuthenticationError, InvalidConfigError

NONCE_BYTES = 32
PROOF_BYTES = 32
SECRET_CHARACTERS_MIN = 16
SECRET_BYTES = 32  # of one that a cluster makes for itself
SECRETS_MAX = 2
SECRET_VARIABLES = ("HELIOGRAPH_CLUSTER_SECRET", "HELIOGRAPH_PREVIOUS_CLUSTER_SECRET")


@dataclass(frozen=True, slots=True)
class Labels:
    """The two roles of a protocol, as its proofs name them."""

    server: bytes
    client: bytes


BOOKIE = Labels(b"heliograph bookie", b"heliograph client")
METADATA = Labels(b"heliograph metadata", b"heliograph metadata client")


class ServerHandshake:
    """The server's end, for one connection."""

    def __init__(self, secret: str, labels: Labels, name: str) -> None:
        """
        Args:
            secret: the valid secrets, one a line.
            name: of the server.
        """
        self._secrets = secrets_of(secret)
        self._labels = labels
        self._name = name
        self._nonce = new_nonce()
        self._client_nonce = b""

    @property
    def is_challenged(self) -> bool:
        return bool(self._client_nonce)

    def challenge(self, client_nonce: bytes) -> bytes:
        """Return the answer to a client's nonce; empty if it is none, or comes twice."""
        if len(client_nonce) != NONCE_BYTES or self._client_nonce:
            return b""
        self._client_nonce = client_nonce
        proofs = [_proof(self._labels.server, one, client_nonce, self._nonce, self._name) for one in self._secrets]
        return self._nonce + b"".join(proofs)

    def accepts(self, proof: bytes) -> bool:
        """Return whether the client knows one of the secrets."""
        if not self._client_nonce:
            return False
        expected = [
            _proof(self._labels.client, one, self._client_nonce, self._nonce, self._name) for one in self._secrets
        ]
        return any(hmac.compare_digest(proof, one) for one in expected)


class ClientHandshake:
    """The client's end, for one connection. ``nonce`` is sent first."""

    def __init__(self, secret: str, labels: Labels) -> None:
        self._secrets = secrets_of(secret)
        self._labels = labels
        self.nonce = new_nonce()
        self.is_proved = False

    def prove(self, challenge: bytes, name: str) -> bytes:
        """Return the proof that answers the challenge of the server of that name.

        Raises:
            AuthenticationError: the server knows none of our secrets, or its challenge is malformed or comes twice.
        """
        nonce, proofs = challenge[:NONCE_BYTES], challenge[NONCE_BYTES:]
        count, rest = divmod(len(proofs), PROOF_BYTES)
        if self.is_proved or len(nonce) != NONCE_BYTES or rest or not 1 <= count <= SECRETS_MAX:
            raise AuthenticationError("its challenge is malformed or comes twice")
        given = [proofs[start : start + PROOF_BYTES] for start in range(0, len(proofs), PROOF_BYTES)]
        for secret in self._secrets:
            expected = _proof(self._labels.server, secret, self.nonce, nonce, name)
            if any(hmac.compare_digest(one, expected) for one in given):
                self.is_proved = True
                return _proof(self._labels.client, secret, self.nonce, nonce, name)
        raise AuthenticationError("it does not know the cluster's secret")


def new_nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def secrets_of(text: str | None) -> tuple[str, ...]:
    """Return the secrets in a setting, which has one a line: the present one, then the previous one."""
    return tuple(line for line in (text or "").split("\n") if line)


def joined_secrets(secret: str | None, previous: str | None) -> str | None:
    """Return both secrets as one setting; None if there is none."""
    return "\n".join(filter(None, (secret, previous))) or None


def secrets_in(environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the secrets that an environment names, as one setting."""
    return joined_secrets(*(environment.get(name) for name in SECRET_VARIABLES))


def new_secret() -> str:
    """Return a secret that nobody can guess."""
    return secrets.token_hex(SECRET_BYTES)


def check_secret(secret: str | None) -> None:
    """Raise InvalidConfigError if a secret is too short, or there are too many. None means that there is none."""
    given = secrets_of(secret)
    if secret is not None and (not given or any(len(one) < SECRET_CHARACTERS_MIN for one in given)):
        raise InvalidConfigError(
            f"the cluster's secret is shorter than {SECRET_CHARACTERS_MIN} characters",
            field="cluster_secret",
            limit=f"at least {SECRET_CHARACTERS_MIN} characters",
        )
    if len(given) > SECRETS_MAX:
        raise InvalidConfigError(
            f"{len(given)} secrets are given: the present and the previous one are valid at once",
            field="cluster_secret",
            limit=f"{SECRETS_MAX} secrets",
        )


def _proof(label: bytes, secret: str, client_nonce: bytes, server_nonce: bytes, name: str) -> bytes:
    assert len(client_nonce) == len(server_nonce) == NONCE_BYTES, "with a fixed size, no two messages are equal"
    message = b"\0".join((label, client_nonce + server_nonce + name.encode()))
    return hmac.digest(secret.encode(), message, "sha256")
