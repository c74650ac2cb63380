"""Keys that sign and check tokens: their sources, and the algorithms of each.

An algorithm belongs to a key and never to a token, so that a token does not choose how it is checked.
"""

from __future__ import annotations

import base64
import binascii
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import unquote, urlsplit

import jwt
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_der_public_key, load_pem_public_key

from heliograph.base.errors import InvalidConfigError

HMAC_BYTES_MIN: Mapping[str, int] = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA_ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512")
CURVES: Mapping[str, str] = {"ES256": "secp256r1", "ES384": "secp384r1", "ES512": "secp521r1"}
PUBLIC_ALGORITHMS = (*RSA_ALGORITHMS, *CURVES)
RSA_BITS_MIN = 2_048
KEY_FILE_BYTES_MAX = 1 << 20  # I15
SECRET_KEYS_MAX = 4  # that are valid at once; a token that names no key is checked by each # I15

T = TypeVar("T")
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenKey:
    """A key and the algorithms that it may check."""

    key: Any = field(repr=False)
    algorithms: tuple[str, ...]


class Source(Generic[T]):
    """Something read from a setting that names a file or holds the content itself; read again when the file changes.

    Args:
        text: ``file:///path``, a path, ``data:;base64,...`` or base64, as Pulsar takes keys.
        setting: the setting's name, for errors, which never show ``text``: it may be a secret.
        parse: makes the value; raises InvalidConfigError.

    Raises:
        InvalidConfigError: the content cannot be read or parsed; names the setting.
    """

    def __init__(self, text: str, setting: str, parse: Callable[[bytes], T]) -> None:
        self._setting = setting
        self._parse = parse
        self._path = path_of(text)
        self._stamp = self._stamped()
        self.value = parse(content_of(text, setting))

    def reload_if_changed(self) -> bool:
        """Read a file again that changed, and return whether a new value is used now.

        A file that cannot be used is logged once for each change, and the old value stays.
        """
        if self._path is None or (stamp := self._stamped()) == self._stamp:
            return False
        self._stamp = stamp
        try:
            self.value = self._parse(content_of(str(self._path), self._setting))
        except InvalidConfigError as error:
            log.error("the changed file of %s cannot be used, the old content stays in use: %s", self._setting, error)
            return False
        log.info("the file of %s has changed and was read again", self._setting)
        return True

    def _stamped(self) -> tuple[int, int, int] | None:
        if self._path is None:
            return None
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino


def path_of(text: str) -> Path | None:
    """Return the file that a setting names; None if it holds the content itself, or nothing that can be read."""
    if text.startswith("file:"):
        return Path(unquote(urlsplit(text).path))
    if text.startswith("data:"):
        return None
    try:
        path = Path(text).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):  # too long for a name
        return None


def content_of(text: str, setting: str) -> bytes:
    """Return the content that a setting names or holds.

    Raises:
        InvalidConfigError: there is none; names the setting and never shows its value.
    """
    path = path_of(text)
    try:
        if path is not None:
            with path.open("rb") as file:
                content = file.read(KEY_FILE_BYTES_MAX + 1)
            if len(content) > KEY_FILE_BYTES_MAX:
                raise InvalidConfigError(
                    f"{setting}: {path} is too large", field=setting, limit=f"{KEY_FILE_BYTES_MAX} bytes"
                )
            return content
        if text.startswith("data:"):
            head, _, text = text.partition(",")
            if not head.endswith(";base64"):
                raise InvalidConfigError(f"{setting}: the form of data is data:;base64,...", field=setting)
        return base64.b64decode(text, validate=True)
    except OSError as error:
        raise InvalidConfigError(f"{setting}: {path} cannot be read: {error.strerror}", field=setting) from error
    except (binascii.Error, ValueError):
        raise InvalidConfigError(f"{setting} is neither a file that exists nor base64", field=setting) from None


def secret_keys(content: bytes) -> tuple[TokenKey, ...]:
    """Return the keys of HMAC, of which the first signs: one key as bytes, or a JSON Web Key Set of them.

    Raises:
        InvalidConfigError: a key is too short to be safe, there are too many, or the set holds other keys.
    """
    if not _is_json(content):
        return (_secret_key(content),)
    found = key_set(content)
    if len(found) > SECRET_KEYS_MAX or not all(isinstance(one.key, bytes) for one in found.values()):
        raise InvalidConfigError(
            f"token_secret_key holds a key set: at most {SECRET_KEYS_MAX} keys of the kind oct may be in it",
            field="auth.token_secret_key",
        )
    return tuple(_secret_key(one.key) for one in found.values())


def _secret_key(content: bytes) -> TokenKey:
    """Return the key of HMAC: the bytes themselves, as Pulsar's tools write them.

    Raises:
        InvalidConfigError: the key is too short to be safe.
    """
    algorithms = tuple(name for name, least in HMAC_BYTES_MIN.items() if len(content) >= least)
    if not algorithms:
        raise InvalidConfigError(
            f"token_secret_key has {len(content)} bytes, at least {HMAC_BYTES_MIN['HS256']} are needed",
            field="auth.token_secret_key",
            limit="at least 32 bytes",
        )
    if content.lstrip().startswith(b"-----BEGIN"):
        raise InvalidConfigError(
            "token_secret_key is a PEM file: public keys belong into token_public_key", field="auth.token_secret_key"
        )
    return TokenKey(content, algorithms)


def _is_json(content: bytes) -> bool:
    try:
        return isinstance(json.loads(content), dict)
    except (ValueError, RecursionError):  # bytes of a key, which may begin with a brace
        return False


def public_key(content: bytes, algorithm: str) -> TokenKey:
    """Return a public key, given as DER or PEM, for one algorithm.

    Raises:
        InvalidConfigError: the content is no public key, or the algorithm is not one of this kind of key.
    """
    if algorithm not in PUBLIC_ALGORITHMS:
        raise InvalidConfigError(
            f"token_public_alg is {algorithm!r}, it must be one of {', '.join(PUBLIC_ALGORITHMS)}",
            field="auth.token_public_alg",
        )
    try:
        if content.lstrip().startswith(b"-----BEGIN"):
            key: Any = load_pem_public_key(content)
        else:
            key = load_der_public_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidConfigError(
            "token_public_key holds no public key in DER or PEM", field="auth.token_public_key"
        ) from None
    if not _fits(key, algorithm):
        raise InvalidConfigError(
            f"token_public_key is not a key for {algorithm} (RSA keys have at least {RSA_BITS_MIN} bits)",
            field="auth.token_public_key,auth.token_public_alg",
        )
    return TokenKey(key, (algorithm,))


def key_set(content: bytes) -> dict[str, TokenKey]:
    """Return the keys of a JSON Web Key Set by their ids; the key of a set of one may do without (``""``).

    Keys for encryption are left out. A key's algorithm is the one that it names, else the usual one of its kind.

    Raises:
        InvalidConfigError: it is no key set, two keys have one id, or a key cannot be used; names the id.
    """
    setting = "auth.token_jwks_file"
    try:
        listed = json.loads(content)["keys"]
        entries = [dict(entry) for entry in listed if entry.get("use", "sig") == "sig"]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise InvalidConfigError("token_jwks_file holds no JSON Web Key Set", field=setting) from None
    keys: dict[str, TokenKey] = {}
    for entry in entries:
        kid = entry.get("kid", "")
        if not isinstance(kid, str) or kid in keys or (not kid and len(entries) > 1):
            raise InvalidConfigError("token_jwks_file: the ids of the keys in a set must differ", field=setting)
        keys[kid] = _key_of_entry(entry, kid)
    if not keys:
        raise InvalidConfigError("token_jwks_file holds no key that checks signatures", field=setting)
    return keys


def _key_of_entry(entry: dict[str, Any], kid: str) -> TokenKey:
    refused = InvalidConfigError(f"token_jwks_file: key {kid!r} cannot be used", field="auth.token_jwks_file")
    try:
        made = jwt.PyJWK(entry)
        algorithm, key = made.algorithm_name, made.key
    except (jwt.PyJWTError, ValueError, TypeError, NotImplementedError):
        raise refused from None
    if algorithm in HMAC_BYTES_MIN:
        if not isinstance(key, bytes) or len(key) < HMAC_BYTES_MIN[algorithm]:
            raise refused
    elif algorithm not in PUBLIC_ALGORITHMS or not _fits(key, algorithm):
        raise refused
    return TokenKey(key, (algorithm,))


def _fits(key: Any, algorithm: str) -> bool:
    """Return whether a public key is of the kind, and of the least size, of an algorithm."""
    if algorithm in RSA_ALGORITHMS:
        return isinstance(key, rsa.RSAPublicKey) and key.key_size >= RSA_BITS_MIN
    return isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name == CURVES[algorithm]
