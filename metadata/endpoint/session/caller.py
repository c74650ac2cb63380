"""The client of a connection: the identities that it has shown, and its rights.

With authentication, a client has to show a token of the cluster (``addauth token <token>``) first; its role is then the
identity ``token:<role>``. A superuser of the cluster passes all ACLs. No other role may use Heliograph's own nodes.
Without authentication, ACLs alone decide, for these nodes too.
"""

from __future__ import annotations

from heliograph.auth.authenticator import Authenticator
from heliograph.auth.principal import METHOD_TOKEN, Credentials, Principal
from heliograph.base.clock import wall_ms
from heliograph.base.errors import AuthenticationError, NotPermittedError
from heliograph.metadata.endpoint.limits import IDENTITIES_PER_CONNECTION_MAX
from heliograph.metadata.endpoint.session.acl_directory import is_reserved
from heliograph.metadata.endpoint.wire.acl import DIGEST, TOKEN, Acl, Identity, allows, digest_identity
from heliograph.metadata.endpoint.wire.codes import ErrorCode, OpCode, Permission, WireError
from heliograph.metadata.paths import is_own

# Served to clients that have not shown who they are. ZooKeeper's clients ping and close in every state.
UNAUTHENTICATED = frozenset({OpCode.AUTH, OpCode.SASL, OpCode.PING, OpCode.CLOSE_SESSION})


class EndpointCaller:
    """The client of one connection.

    Args:
        authenticator: the cluster's own; it checks tokens.
        peer: address of the client, for the log.
    """

    def __init__(self, authenticator: Authenticator, peer: str) -> None:
        self._authenticator = authenticator
        self._peer = peer
        self._expires_ms: int | None = None  # the earliest end of its tokens
        self._shown: set[Principal] = set()
        self.identities: set[Identity] = set()
        self.is_superuser = False
        if self._is_asked and (role := authenticator.config.anonymous_role):
            self._add_role(role)

    @property
    def _is_asked(self) -> bool:
        return self._authenticator.config.is_enabled

    @property
    def is_authenticated(self) -> bool:
        """Whether the client has authenticated, or need not."""
        return not self._is_asked or any(scheme == TOKEN for scheme, _ in self.identities)

    @property
    def has_expired(self) -> bool:
        """Whether one of the client's tokens has expired or was revoked."""
        if any(self._authenticator.is_revoked(principal) for principal in self._shown):
            return True
        return self._expires_ms is not None and wall_ms() >= self._expires_ms

    def may_request(self, op: OpCode | None) -> bool:
        return op in UNAUTHENTICATED or self.is_authenticated

    async def show(self, scheme: str, credential: bytes) -> None:
        """Add an identity.

        Raises:
            WireError: AUTH_FAILED, the scheme is not supported, the token is refused, or there are too many identities.
        """
        if len(self.identities) >= IDENTITIES_PER_CONNECTION_MAX:  # I15
            raise WireError(f"at most {IDENTITIES_PER_CONNECTION_MAX} identities", ErrorCode.AUTH_FAILED)
        if scheme == DIGEST:
            self.identities.add((DIGEST, digest_identity(credential)))
        elif scheme == TOKEN and self._is_asked:
            await self._show_token(credential)
        else:
            raise WireError(f"the scheme {scheme[:64]!r} is not supported", ErrorCode.AUTH_FAILED)

    def require_visible(self, path: str) -> None:
        """Raise WireError NO_AUTH for a path that is closed to the client whatever the ACLs say."""
        if not self.may_see(path):
            raise WireError(f"{path} is reserved", ErrorCode.NO_AUTH)

    def passes(self, acl: Acl, wanted: Permission) -> bool:
        """Return whether an ACL gives the client any permission of ``wanted``."""
        return self.is_superuser or allows(acl, wanted, self.identities)

    def may_watch(self, path: str, acl: Acl | None) -> bool:
        """Return whether the client may get events of a node with this ACL; None: the open one."""
        return self.may_see(path) and (acl is None or self.passes(acl, Permission.READ))

    def may_see(self, path: str) -> bool:
        """Return whether a path is not hidden from the client, whatever the ACLs say."""
        return not is_reserved(path) and (self.is_superuser or not self._is_asked or not is_own(path))

    async def _show_token(self, credential: bytes) -> None:
        try:
            principal = await self._authenticator.authenticate(Credentials(METHOD_TOKEN, credential), self._peer)
            principal = await self._authenticator.authenticate_original(principal, "", peer=self._peer)
        except (AuthenticationError, NotPermittedError) as error:
            raise WireError(str(error), ErrorCode.AUTH_FAILED) from None
        if principal.method != METHOD_TOKEN:  # no key of tokens is configured, so it was taken for anonymous
            raise WireError("tokens are not configured", ErrorCode.AUTH_FAILED)
        if principal.token_ids:
            if principal not in self._shown and len(self._shown) >= IDENTITIES_PER_CONNECTION_MAX:  # I15
                raise WireError(f"at most {IDENTITIES_PER_CONNECTION_MAX} tokens", ErrorCode.AUTH_FAILED)
            self._shown.add(principal)
        self._add_role(principal.role)
        if principal.expires_ms is not None:
            self._expires_ms = min(self._expires_ms or principal.expires_ms, principal.expires_ms)

    def _add_role(self, role: str) -> None:
        self.identities.add((TOKEN, role))
        self.is_superuser = self.is_superuser or role in self._authenticator.config.superuser_roles
