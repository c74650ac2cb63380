"""The method ``token``: signed JSON Web Tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jwt
from typing_extensions import override

from heliograph.auth.config import AuthConfig
from heliograph.auth.keys import Source, TokenKey, key_set, path_of, public_key, secret_keys
from heliograph.auth.principal import METHOD_TOKEN, TOKEN_BYTES_MAX, Credentials, Principal, revocation_id
from heliograph.auth.provider import AuthenticationProvider
from heliograph.base.errors import AuthenticationError

if TYPE_CHECKING:
    from heliograph.auth.remote_keys import RemoteKeySet

ROLE_CHARACTERS_MAX = 1_024

# The checks of PyJWT. The audience is checked below, by a claim that the configuration names; a subject need not be a
# text if another claim is the role; a time of issue in the future is no fault of a token, as in Pulsar.
_OPTIONS: Any = {
    "verify_signature": True,
    "verify_exp": True,
    "verify_nbf": True,
    "verify_aud": False,
    "verify_iss": False,
    "verify_iat": False,
    "verify_sub": False,
    "verify_jti": False,
}


def secret_source(config: AuthConfig) -> Source[tuple[TokenKey, ...]] | None:
    """Return the secret keys that are configured, which follow their file; None if there are none.

    Raises:
        InvalidConfigError: a key cannot be read or used; names the setting.
    """
    file = config.token_secret_key_file
    given = file if file and path_of(file) else config.token_secret_key
    return Source(given, "auth.token_secret_key", secret_keys) if given else None


class TokenProvider(AuthenticationProvider):
    """Checks tokens by a secret key, a public key and sets of keys, whichever are configured.

    A token whose header names a key of a set is checked by that key alone; the name is only looked up in the set. Any
    other is checked by those of the secret keys, or the public key, that its algorithm belongs to.

    Raises:
        InvalidConfigError: a key cannot be read or used; names the setting.
    """

    method = METHOD_TOKEN

    def __init__(self, config: AuthConfig) -> None:
        self._config = config
        self._named_nowhere: list[Source[tuple[TokenKey, ...]]] = []
        self._set: Source[dict[str, TokenKey]] | None = None
        if (secret := secret_source(config)) is not None:
            self._named_nowhere.append(secret)
        if config.token_public_key:
            algorithm = config.token_public_alg
            self._named_nowhere.append(
                Source(config.token_public_key, "auth.token_public_key", lambda given: (public_key(given, algorithm),))
            )
        if config.token_jwks_file:
            self._set = Source(config.token_jwks_file, "auth.token_jwks_file", key_set)
        self._remote: RemoteKeySet | None = None
        if config.token_jwks_url:
            from heliograph.auth.remote_keys import RemoteKeySet

            self._remote = RemoteKeySet(config.token_jwks_url)

    @property
    def has_keys(self) -> bool:
        return bool(self._named_nowhere) or self._set is not None or self._remote is not None

    @override
    async def authenticate(self, credentials: Credentials) -> Principal:
        if self._remote is not None and self._lacks_key(credentials.data):
            await self._remote.look_for_more()  # the issuer may have changed its keys
        return self.check(credentials.data)

    @override
    def reload_if_changed(self) -> None:
        for source in self._named_nowhere:
            source.reload_if_changed()
        for keys in (self._set, self._remote):
            if keys is not None:
                keys.reload_if_changed()

    def check(self, token: bytes) -> Principal:
        """Return whose token it is.

        Raises:
            AuthenticationError: the token is too long, malformed, not signed by a key for this algorithm, outside its
                times, made for another audience or by another issuer, or without a role.
        """
        token = token.strip()  # of the end of its file, as Pulsar's clients send it
        if not token:
            raise AuthenticationError("the token is blank")
        if len(token) > TOKEN_BYTES_MAX:
            raise AuthenticationError(f"the token has {len(token)} bytes, the limit is {TOKEN_BYTES_MAX}")
        claims = self._verified(token)
        self._check_audience(claims)
        if self._config.token_issuer and claims.get("iss") != self._config.token_issuer:
            raise AuthenticationError("the token was made by another issuer")
        token_id = claims.get("jti")
        ids = (revocation_id(token_id),) if isinstance(token_id, str) else ()
        role = self._role_of(claims)
        return Principal(role, method=METHOD_TOKEN, expires_ms=self._end_of(claims), token_ids=ids)

    def _verified(self, token: bytes) -> dict[str, Any]:
        skew = self._config.token_clock_skew_seconds
        try:
            header = jwt.get_unverified_header(token)
            claims = _decoded(token, self._keys_for(header), skew)
        except AuthenticationError:
            raise
        except jwt.ExpiredSignatureError:
            raise AuthenticationError("the token has expired") from None
        except jwt.ImmatureSignatureError:
            raise AuthenticationError("the token is not valid yet") from None
        except jwt.InvalidAlgorithmError:
            raise AuthenticationError("the token is signed by an algorithm that the key is not for") from None
        except jwt.InvalidSignatureError:
            raise AuthenticationError("the token's signature is wrong") from None
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise AuthenticationError(f"the token is malformed ({type(error).__name__})") from None
        return claims

    def _lacks_key(self, token: bytes) -> bool:
        """Return whether the key that a token names, or any for its algorithm if it names none, is not known."""
        try:
            if len(token) > TOKEN_BYTES_MAX:
                return False
            header = jwt.get_unverified_header(token.strip())
            if (kid := header.get("kid")) is None:
                self._keys_for(header)
                return False
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return False
        except AuthenticationError:
            return True
        return isinstance(kid, str) and all(kid not in known.value for known in (self._set, self._remote) if known)

    def _keys_for(self, header: dict[str, Any]) -> Sequence[TokenKey]:
        algorithm, kid = header.get("alg"), header.get("kid")
        for keys in (known.value for known in (self._set, self._remote) if known is not None):
            if kid is None and len(keys) == 1 and algorithm in (only := next(iter(keys.values()))).algorithms:
                return [only]
            if isinstance(kid, str) and kid in keys:
                return [keys[kid]]
        for source in self._named_nowhere:
            if found := [key for key in source.value if algorithm in key.algorithms]:
                return found
        raise AuthenticationError("there is no key for the token's algorithm and key id")

    def _check_audience(self, claims: dict[str, Any]) -> None:
        if not self._config.token_audience_claim:
            return
        found = claims.get(self._config.token_audience_claim)
        audiences = found if isinstance(found, list) else [found]
        if self._config.token_audience not in audiences:
            raise AuthenticationError("the token is made for another audience")

    def _role_of(self, claims: dict[str, Any]) -> str:
        found = claims.get(self._config.token_auth_claim)
        if isinstance(found, list):
            found = found[0] if found else None
        if not isinstance(found, str) or not found.strip():
            raise AuthenticationError(f"the token has no role in its claim {self._config.token_auth_claim}")
        if len(found) > ROLE_CHARACTERS_MAX:
            raise AuthenticationError(f"the token's role has more than {ROLE_CHARACTERS_MAX} characters")
        return found

    def _end_of(self, claims: dict[str, Any]) -> int | None:
        """Return when the token ends as it is checked here, which is later than it says by the clocks' skew."""
        if "exp" not in claims:
            return None
        return (int(claims["exp"]) + self._config.token_clock_skew_seconds) * 1_000


def _decoded(token: bytes, keys: Sequence[TokenKey], skew: int) -> dict[str, Any]:
    """Return the claims of a token that one of the keys signed.

    Raises:
        jwt.PyJWTError: none of them did, or the token is malformed or outside its times.
    """
    assert keys, "the caller found one"
    for key in keys[:-1]:
        try:
            return _decoded(token, [key], skew)
        except jwt.InvalidSignatureError:
            continue
    found: dict[str, Any] = jwt.decode(
        token, keys[-1].key, algorithms=list(keys[-1].algorithms), options=_OPTIONS, leeway=skew
    )
    return found
