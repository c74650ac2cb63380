"""Keys and tokens that this program makes: for ``helio tokens``, and for a cluster's own roles."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_pem_private_key,
)

from heliograph.auth.config import AuthConfig
from heliograph.auth.keys import (
    CURVES,
    HMAC_BYTES_MIN,
    PUBLIC_ALGORITHMS,
    RSA_BITS_MIN,
    SECRET_KEYS_MAX,
    content_of,
    path_of,
    secret_keys,
)
from heliograph.auth.tokens import TokenProvider, secret_source
from heliograph.base.errors import AuthenticationError, BadRequestError, InvalidConfigError
from heliograph.base.home import ADMIN_TOKEN_FILE, ADMIN_TOKEN_RENEWED_SECONDS, replace_private

GATEWAY_ROLE = "gateway"
ADMIN_ROLE = "admin"
SECRET_KEY_FILE = "token-secret.key"  # below the home
OWN_TOKEN_SECONDS = 3_600  # until a token that the gateway signs for itself ends; it signs one for each connection

TOKEN_ID_BYTES = 16
ADMIN_TOKEN_SECONDS = 30 * 86_400  # until the administrator's token ends

_CURVE_CLASSES: dict[str, Callable[[], ec.EllipticCurve]] = {
    "ES256": ec.SECP256R1,
    "ES384": ec.SECP384R1,
    "ES512": ec.SECP521R1,
}
_SECONDS = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 7 * 86_400, "y": 365 * 86_400}


def new_secret_key(algorithm: str = "HS256") -> bytes:
    """Generate an HMAC key.

    Raises:
        BadRequestError: the algorithm is not an HMAC.
    """
    if algorithm not in HMAC_BYTES_MIN:
        raise BadRequestError(f"{algorithm!r} is not one of {', '.join(HMAC_BYTES_MIN)}", field="signature_algorithm")
    return secrets.token_bytes(HMAC_BYTES_MIN[algorithm])


def new_key_pair(algorithm: str = "RS256") -> tuple[bytes, bytes]:
    """Return a new private key (PKCS 8) and its public key, both in DER.

    Raises:
        BadRequestError: the algorithm has no pairs of keys.
    """
    if algorithm not in PUBLIC_ALGORITHMS:
        raise BadRequestError(
            f"{algorithm!r} is not one of {', '.join(PUBLIC_ALGORITHMS)}", field="signature_algorithm"
        )
    made: Any
    if algorithm in CURVES:
        made = ec.generate_private_key(_CURVE_CLASSES[algorithm]())
    else:
        made = rsa.generate_private_key(public_exponent=65_537, key_size=RSA_BITS_MIN)
    private = made.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    public = made.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return private, public


def private_key(content: bytes) -> Any:
    """Return a private key that is given as DER or PEM.

    Raises:
        InvalidConfigError: it is none, or it needs a password.
    """
    try:
        if content.lstrip().startswith(b"-----BEGIN"):
            return load_pem_private_key(content, None)
        return load_der_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidConfigError(
            "this is no private key in DER or PEM without a password", field="private_key"
        ) from None


def new_token(
    role: str, key: Any, algorithm: str, *, seconds: int | None = None, config: AuthConfig | None = None
) -> str:
    """Return a signed token.

    Args:
        seconds: time until it ends; None: it does not.
        config: names the claims of role and audience that are not the usual ones, and the issuer.

    Raises:
        BadRequestError: the role is blank, or the key is not one for the algorithm.
    """
    if not role.strip():
        raise BadRequestError("a token needs a subject", field="subject")
    claims: dict[str, Any] = {config.token_auth_claim if config else "sub": role, "iat": int(time.time())}
    claims["jti"] = secrets.token_hex(TOKEN_ID_BYTES)  # by which it can be revoked
    if seconds is not None:
        claims["exp"] = int(time.time()) + seconds
    if config is not None and config.token_audience_claim:
        claims[config.token_audience_claim] = config.token_audience
    if config is not None and config.token_issuer:
        claims["iss"] = config.token_issuer
    try:
        return jwt.encode(claims, key, algorithm=algorithm)
    except (jwt.PyJWTError, TypeError, ValueError, AttributeError, NotImplementedError) as error:
        raise BadRequestError(f"the key does not sign by {algorithm!r} ({type(error).__name__})") from None


def seconds_of(text: str, field: str = "expiry") -> int:
    """Return a time such as ``90m``, ``1h``, ``3d`` or ``1y`` in seconds.

    Args:
        field: the option that gives it.

    Raises:
        BadRequestError: it has another form.
    """
    match = re.fullmatch(r"([0-9]{1,9})([smhdwy]?)", text.strip().lower())
    if match is None:
        raise BadRequestError(f"{text!r} is no time: write 90m, 1h, 3d, 2w or 1y", field=field)
    return int(match[1]) * _SECONDS[match[2]]


def write_private(path: Path, content: bytes) -> None:
    """Write a file that only its owner may read.

    Raises:
        InvalidConfigError: it cannot be written.
    """
    try:
        replace_private(path, content)
    except OSError as error:
        raise InvalidConfigError(f"{path} cannot be written: {error.strerror}") from error


def own_credentials(
    config: AuthConfig, home: Path, progress: Callable[[str], None], *, with_gateway: bool
) -> dict[str, Any]:
    """Make the keys and tokens that a cluster with authentication lacks, and return them as settings of ``auth``.

    That is a secret key where no key of tokens is configured, a role for the gateway, which signs its own tokens, and a
    token for the administrator, who is a superuser. So is the gateway's own role: a caller behind a proxy has the
    rights that both have, and its own are to decide. Key and administrator's token are files in ``home``, and are kept.
    Parts on machines that have the file of the key follow its changes; others keep the key that they are started with.

    Raises:
        InvalidConfigError: a key cannot be used, or the gateway's token is missing and no secret key can sign one.
    """
    if not config.is_enabled:
        return {}
    made: dict[str, Any] = {}
    if not (config.token_secret_key or config.token_public_key or config.token_jwks_file or config.token_jwks_url):
        path = home / SECRET_KEY_FILE
        made["token_secret_key"] = _inline(_kept_secret_key(path, progress))
        made["token_secret_key_file"] = str(path)
    given = made.get("token_secret_key", config.token_secret_key)
    if not given:
        if with_gateway and not config.gateway_token:
            raise InvalidConfigError(
                "the gateway needs a token of one of proxy_roles, and there is no secret key to sign one with",
                field="auth.gateway_token",
            )
        return made
    key = secret_keys(content_of(given, "auth.token_secret_key"))[0].key
    superusers = [*config.superuser_roles, ADMIN_ROLE]
    if with_gateway and not config.gateway_token:
        made["proxy_roles"] = tuple(dict.fromkeys((*config.proxy_roles, GATEWAY_ROLE)))
        superusers.append(GATEWAY_ROLE)
    checks = TokenProvider(replace(config, token_secret_key=given))
    if not _is_fresh(checks, home / ADMIN_TOKEN_FILE):
        _write_admin_token(home, key, config, progress)
    made["superuser_roles"] = tuple(dict.fromkeys(superusers))
    return made


def rotate_secret_key(path: Path) -> int:
    """Put a new key in front of those in a file of secret keys, and return how many there are now.

    Raises:
        InvalidConfigError: the file cannot be read or written, or holds other things.
        BadRequestError: it has as many keys as it may have: retire old keys first.
    """
    keys = [one.key for one in secret_keys(content_of(str(path), "secret_key"))]
    if len(keys) >= SECRET_KEYS_MAX:
        raise BadRequestError(
            f"{path} has {len(keys)} keys: retire the old ones first",
            field="secret_key",
            limit=f"{SECRET_KEYS_MAX} keys",
        )
    _write_keys(path, [new_secret_key(), *keys])
    return len(keys) + 1


def retire_secret_keys(path: Path) -> int:
    """Keep the newest key of a file of secret keys only, and return how many were removed.

    Raises:
        InvalidConfigError: the file cannot be read or written, or holds other things.
    """
    newest, *old = secret_keys(content_of(str(path), "secret_key"))
    _write_keys(path, [newest.key])
    return len(old)


def renew_admin_token(home: Path, config: AuthConfig, progress: Callable[[str], None]) -> None:
    """Sign the administrator's token by the newest key of the cluster's own.

    Raises:
        InvalidConfigError: the key cannot be read, or the token cannot be written.
    """
    key = secret_keys(content_of(str(home / SECRET_KEY_FILE), "secret_key"))[0].key
    _write_admin_token(home, key, config, progress)


def own_token(config: AuthConfig) -> Callable[[], str]:
    """Return the function that reads or signs the gateway's token; it is called at each connection.

    Raises:
        InvalidConfigError: there is neither a token nor a secret key to sign one with, or it cannot be read.
    """
    given = config.gateway_token
    if given:
        return lambda: _read_token(given)
    source = secret_source(config)
    if source is None:
        raise InvalidConfigError(
            "callers are authenticated, and the gateway has no token to speak for them",
            field="auth.gateway_token",
        )

    def signed() -> str:
        source.reload_if_changed()
        key = source.value[0].key
        return new_token(GATEWAY_ROLE, key, "HS256", seconds=OWN_TOKEN_SECONDS, config=config)

    return signed


def _read_token(given: str) -> str:
    if path_of(given) is None and not given.startswith("data:"):
        return given.strip()
    return content_of(given, "auth.gateway_token").decode("ascii", errors="replace").strip()


def _write_admin_token(home: Path, key: bytes, config: AuthConfig, progress: Callable[[str], None]) -> None:
    path = home / ADMIN_TOKEN_FILE
    write_private(path, new_token(ADMIN_ROLE, key, "HS256", seconds=ADMIN_TOKEN_SECONDS, config=config).encode())
    days = ADMIN_TOKEN_SECONDS // 86_400
    progress(f"the administrator's token is in {path}, for {days} days; helio uses and renews it on this machine")


def _write_keys(path: Path, keys: Sequence[bytes]) -> None:
    """Write one key as its bytes, as Pulsar's tools do, and several as a JSON Web Key Set, the newest first."""
    if len(keys) == 1:
        write_private(path, keys[0])
        return
    entries = [
        {
            "kty": "oct",
            "kid": hashlib.sha256(key).hexdigest()[:16],
            "alg": "HS256",
            "k": base64.urlsafe_b64encode(key).rstrip(b"=").decode(),
        }
        for key in keys
    ]
    write_private(path, json.dumps({"keys": entries}).encode())


def _kept_secret_key(path: Path, progress: Callable[[str], None]) -> bytes:
    if not path.exists():
        write_private(path, new_secret_key())
        progress(f"the key that signs tokens is in {path}")
    return content_of(str(path), "auth.token_secret_key")


def _is_fresh(checks: TokenProvider, path: Path) -> bool:
    """Return whether the administrator's token is good, and for long enough."""
    try:
        found = checks.check(path.read_bytes())
    except (OSError, AuthenticationError):
        return False
    left = ADMIN_TOKEN_SECONDS - ADMIN_TOKEN_RENEWED_SECONDS
    return found.role == ADMIN_ROLE and (found.expires_ms or 0) / 1_000 > time.time() + left


def _inline(content: bytes) -> str:
    return "data:;base64," + base64.b64encode(content).decode()
