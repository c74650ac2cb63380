"""Authentication of callers, the same at every door."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import NoReturn

from typing_extensions import override

from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import INTERNAL, METHOD_NONE, METHOD_TLS, Credentials, Principal
from heliograph.auth.provider import ENTRY_POINT_GROUP, AuthenticationProvider
from heliograph.base.errors import AuthenticationError, InvalidConfigError, NotPermittedError
from heliograph.base.guard.quiet_log import QuietLog

REFUSED = "Failed to authenticate"  # all that a caller hears
INVALID_ROLES = "Invalid roles."
RELOAD_SECONDS = 1.0  # between two looks at the files
LOG_LINES_MAX = 20  # about refused callers in one period # I15
LOG_SECONDS = 10.0

log = logging.getLogger(__name__)


class TlsProvider(AuthenticationProvider):
    """The method ``tls``: the role is the common name of the certificate that the client presented and TLS verified."""

    method = METHOD_TLS

    @override
    async def authenticate(self, credentials: Credentials) -> Principal:
        if not credentials.certificate:
            raise AuthenticationError("the client presented no certificate that was verified")
        names = [
            value
            for part in credentials.certificate.get("subject", ())
            for name, value in part
            if name == "commonName" and value.strip()
        ]
        if len(names) != 1:
            raise AuthenticationError(f"the certificate has {len(names)} common names, it must have one")
        return Principal(names[0], method=METHOD_TLS)


class Authenticator:
    """Finds out who a caller is, by the methods that are configured.

    Args:
        config: the section ``auth`` of the cluster's configuration.
        clock: monotonic seconds.

    Raises:
        InvalidConfigError: a key, file or plug-in cannot be used; names the setting.
    """

    def __init__(self, config: AuthConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self.config = config
        self.on_refused: Callable[[str, str, str], None] = lambda *_: None  # told a caller's address, method and why
        self._revoked: frozenset[str] = frozenset()  # ids of tokens
        self._waiting: set[asyncio.Future[None]] = set()  # for the next change of them
        self._clock = clock
        self._looked = clock()
        self._quiet = QuietLog(
            log, clock, lines=LOG_LINES_MAX, period_seconds=LOG_SECONDS, left_out="%d more callers were refused"
        )
        self._providers: dict[str, AuthenticationProvider] = _providers(config) if config.is_enabled else {}

    async def authenticate(self, credentials: Credentials, peer: str = "") -> Principal:
        """Return who presents ``credentials``.

        A caller of a method that is not configured has the anonymous role, if there is one. Without authentication
        every caller is the cluster itself, so that nothing is refused.

        Args:
            peer: address of the caller, for the log.

        Raises:
            AuthenticationError: the caller is refused. The message never says why; the log does.
        """
        if not self.config.is_enabled:
            return INTERNAL
        self.reload_if_changed()
        provider = self._providers.get(credentials.method)
        if provider is None:
            if self.config.anonymous_role:
                return Principal(self.config.anonymous_role, method=METHOD_NONE)
            self._refuse(peer, f"the method {credentials.method[:64]!r} is not configured", credentials.method)
        try:
            principal = await provider.authenticate(credentials)
        except AuthenticationError as error:
            self._refuse(peer, str(error), credentials.method)
        except Exception as error:  # of a plug-in: one caller is refused, and the process goes on
            why = f"the method {credentials.method[:64]!r} failed with {type(error).__name__}"
            self._refuse(peer, why, credentials.method)
        assert not principal.is_internal, "no method makes a caller a part of the cluster"
        if self.is_revoked(principal):
            self._refuse(peer, f"the token of {principal.role!r} has been revoked", credentials.method)
        return principal

    async def authenticate_original(
        self, principal: Principal, role: str, original: Credentials | None = None, peer: str = ""
    ) -> Principal:
        """Return the caller that a proxy speaks for, or ``principal`` itself if it is no proxy.

        Args:
            principal: who is at the other end of the connection.
            role: the role that it says it speaks for; empty: none.
            original: the caller's credentials, if the proxy passes them on; they must show ``role``.

        Raises:
            NotPermittedError: a proxy names nobody or another proxy, or a caller that is no proxy names a role.
            AuthenticationError: ``original`` is refused.
        """
        if not self.config.is_enabled:
            return principal
        if original is not None and principal.role in self.config.proxy_roles:
            shown = await self.authenticate(original, peer)
            if role and role != shown.role:
                self._refuse_roles(
                    peer, f"{principal.role!r} names {role!r} and passes on the credentials of {shown.role!r}"
                )
            role = shown.role
            principal = dataclasses.replace(principal, token_ids=(*principal.token_ids, *shown.token_ids))
        if principal.role not in self.config.proxy_roles:
            if role.strip():
                self._refuse_roles(peer, f"{principal.role!r} is no proxy role and names {role[:64]!r}")
            return principal
        if not role.strip():
            self._refuse_roles(peer, f"the proxy role {principal.role!r} names nobody")
        if role in self.config.proxy_roles:
            self._refuse_roles(peer, f"the proxy role {principal.role!r} names the proxy role {role!r}")
        return dataclasses.replace(principal, role=role, via=principal.role)

    def revoke(self, token_ids: frozenset[str]) -> None:
        """Refuse the tokens with these ``revocation_id`` from now on, and those alone. Called on the callers' loop."""
        self._revoked = token_ids
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_result(None)

    def is_revoked(self, principal: Principal) -> bool:
        """Return whether a token that the caller has shown was revoked."""
        return not self._revoked.isdisjoint(principal.token_ids)

    async def until_revoked(self, principal: Principal) -> NoReturn:
        """Wait until a token that the caller has shown is revoked.

        Raises:
            AuthenticationError: it was.
        """
        while not self.is_revoked(principal):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiter)
            try:
                await waiter
            finally:
                self._waiting.discard(waiter)
        raise AuthenticationError("the token has been revoked")

    def reload_if_changed(self) -> None:
        """Read files again that changed, if the last look is a second old: keys are changed without a stop."""
        now = self._clock()
        if now - self._looked < RELOAD_SECONDS:
            return
        self._looked = now
        for provider in self._providers.values():
            provider.reload_if_changed()

    def close(self) -> None:
        """Release the threads of the methods."""
        for provider in self._providers.values():
            provider.close()

    def _refuse(self, peer: str, reason: str, method: str) -> NoReturn:
        self._tell(peer, reason, method)
        raise AuthenticationError(REFUSED) from None

    def _refuse_roles(self, peer: str, reason: str) -> NoReturn:
        self._tell(peer, reason, METHOD_NONE)
        raise NotPermittedError(INVALID_ROLES) from None

    def _tell(self, peer: str, reason: str, method: str) -> None:
        self.on_refused(peer, method, reason)
        self._quiet.warning("refused", "%s: refused: %s", peer or "a caller", reason)


def _providers(config: AuthConfig) -> dict[str, AuthenticationProvider]:
    # They load cryptography, which a cluster without authentication does not need.
    from heliograph.auth.basic import BasicProvider
    from heliograph.auth.tokens import TokenProvider

    made: list[AuthenticationProvider] = [TlsProvider()]
    tokens = TokenProvider(config)
    if tokens.has_keys:
        made.append(tokens)
    if config.basic_file:
        made.append(BasicProvider(config))
    made += [_plug_in(name, config) for name in config.providers]
    providers = {provider.method: provider for provider in made}
    if len(providers) != len(made):
        raise InvalidConfigError("two providers have one method", field="auth.providers")
    return providers


def _plug_in(name: str, config: AuthConfig) -> AuthenticationProvider:
    found = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if len(found) != 1:
        raise InvalidConfigError(
            f"{len(found)} installed plug-ins are named {name!r} in the group {ENTRY_POINT_GROUP}, there must be one",
            field="auth.providers",
        )
    made = found[0].load()(config)
    if not isinstance(made, AuthenticationProvider):
        raise InvalidConfigError(f"the plug-in {name!r} is no AuthenticationProvider", field="auth.providers")
    return made
