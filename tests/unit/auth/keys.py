"""Keys and tokens for the tests of authentication; no test makes an RSA key twice."""

from __future__ import annotations

import functools
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

SECRET = b"s" * 32


@functools.cache
def rsa_key(number: int = 0) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65_537, key_size=2_048)


@functools.cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def pem(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return found


def der(key: Any) -> bytes:
    found: bytes = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return found


def token(
    role: Any = "alice", key: Any = SECRET, algorithm: str = "HS256", *, kid: str | None = None, **claims: Any
) -> bytes:
    """A signed token; ``seconds`` from now give its end."""
    if (seconds := claims.pop("seconds", None)) is not None:
        claims["exp"] = int(time.time() + seconds)
    headers = {} if kid is None else {"kid": kid}
    return jwt.encode({"sub": role, **claims}, key, algorithm=algorithm, headers=headers).encode()
