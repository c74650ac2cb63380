"""The commands by which a client shows who it is: at CONNECT, and again when its credentials have ended.

Credentials that have ended are asked for again at the next of regular checks. A client that does not know the question,
has not answered by the check after that, or answers as another role, is disconnected.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Coroutine
from typing import Any

from heliograph.actors.broker.protocol.connection import NO_REQUEST_ID, PulsarConnection
from heliograph.auth.authenticator import REFUSED
from heliograph.auth.principal import METHOD_NONE, Credentials, Principal
from heliograph.base.clock import wall_ms
from heliograph.base.errors import (
    AuthenticationError,
    HeliographError,
    NotPermittedError,
    ProtocolError,
    TooManyConnectionsError,
)
from heliograph.base.guard.framed_connection import ConnectionState
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.pulsar_pb2 import BaseCommand

SERVER_VERSION = "Heliograph"
REFRESH = b"PulsarAuthRefresh"  # what a challenge holds that asks for the credentials again

# Features that clients may use; docs/formats-pulsar.md says why the other flags are not set.
FEATURES = pb.FeatureFlags(
    supports_auth_refresh=True,
    supports_topic_watchers=True,
    supports_get_partitioned_metadata_without_auto_creation=True,
    supports_topic_watcher_reconcile=True,
    takes_admin_calls=True,
    takes_messages_back=True,
)

log = logging.getLogger(__name__)


class AuthCommands:
    """Authentication of the client of one connection."""

    def __init__(self, connection: PulsarConnection) -> None:
        self.connection = connection
        self._authenticator = connection.context.authenticator
        self._method = METHOD_NONE
        self._can_refresh = False
        self._is_challenged = False  # whether a challenge waits for its answer
        self._check: asyncio.TimerHandle | None = None
        connection.handlers[BaseCommand.CONNECT] = self._connect
        connection.handlers[BaseCommand.AUTH_RESPONSE] = self._response
        connection.on_lost.append(self._connection_lost)

    def _connect(self, command: BaseCommand, section: memoryview | None) -> Coroutine[Any, Any, None] | None:
        connection, connect = self.connection, command.connect
        if not self._authenticator.config.is_enabled:
            self._accept(connect, connection.principal)
            return None
        if connection.state is not ConnectionState.HANDSHAKE:
            raise ProtocolError("a client sends CONNECT once")
        self._method = _method_of(connect)
        self._can_refresh = connect.feature_flags.supports_auth_refresh
        connection.await_authentication()
        return self._authenticate(connect)

    async def _authenticate(self, connect: pb.CommandConnect) -> None:
        connection, authenticator = self.connection, self._authenticator
        original = None
        if connect.HasField("original_auth_data"):
            method = connect.original_auth_method or METHOD_NONE
            original = Credentials(method, connect.original_auth_data.encode())
        try:
            shown = await authenticator.authenticate(self._credentials(connect.auth_data), connection.peer)
            principal = await authenticator.authenticate_original(
                shown, connect.original_principal, original, connection.peer
            )
        except NotPermittedError as error:
            self._refuse(error)
            return
        if authenticator.is_revoked(principal):  # since it was checked
            self._refuse(AuthenticationError(REFUSED))
            return
        if connection.is_open:
            try:
                connection.count_role(principal.role)
            except TooManyConnectionsError as error:
                self._refuse(error)
                return
            self._accept(connect, principal)
            if principal.expires_ms is not None:
                self._schedule()

    def _accept(self, connect: pb.CommandConnect, principal: Principal) -> None:
        self.connection.accept(connect, principal)
        connected = pb.CommandConnected(
            server_version=SERVER_VERSION,
            protocol_version=self.connection.protocol_version,
            max_message_size=self.connection.context.config.max_message_bytes,
            feature_flags=FEATURES,
        )
        self.connection.send(BaseCommand(type=BaseCommand.CONNECTED, connected=connected))

    def _response(self, command: BaseCommand, section: memoryview | None) -> Coroutine[Any, Any, None]:
        if not self._is_challenged:
            raise ProtocolError("the client answers a challenge that was not sent")
        return self._refresh(command.auth_response.response.auth_data)

    async def _refresh(self, data: bytes) -> None:
        connection = self.connection
        try:
            shown = await self._authenticator.authenticate(self._credentials(data), connection.peer)
        except NotPermittedError as error:
            self._refuse(error)
            return
        before = connection.principal
        if shown.role != (before.via or before.role):
            log.warning("%s: connection closed: its role was %s, and it answers as %s", connection.peer, before, shown)
            connection.close()
            return
        self._is_challenged = False
        kept = before.token_ids if before.via else ()  # those of the caller that a proxy speaks for are among them
        token_ids = tuple(dict.fromkeys((*kept, *shown.token_ids)))
        connection.principal = dataclasses.replace(before, expires_ms=shown.expires_ms, token_ids=token_ids)

    def _credentials(self, data: bytes) -> Credentials:
        return Credentials(self._method, data, self.connection.certificate)

    def _refuse(self, error: HeliographError) -> None:
        self.connection.send_error(NO_REQUEST_ID, error)
        self.connection.close()

    # -- the check of credentials that end

    def _schedule(self) -> None:
        seconds = self._authenticator.config.refresh_check_seconds
        self._check = asyncio.get_running_loop().call_later(seconds, self._check_end)

    def _check_end(self) -> None:
        connection = self.connection
        end = connection.principal.expires_ms
        if not connection.is_open or end is None:
            return
        if wall_ms() >= end:
            if self._is_challenged or not self._can_refresh:
                why = "did not show credentials again in time" if self._is_challenged else "cannot show them again"
                log.info("%s: connection closed: the credentials of %s ended, and the client %s", connection.peer,
                         connection.principal, why)  # fmt: skip
                connection.close()
                return
            self._challenge()
        self._schedule()

    def _challenge(self) -> None:
        self._is_challenged = True
        challenge = pb.CommandAuthChallenge(
            server_version=SERVER_VERSION,
            challenge=pb.AuthData(auth_method_name=self._method, auth_data=REFRESH),
            protocol_version=self.connection.protocol_version,
        )
        self.connection.send(BaseCommand(type=BaseCommand.AUTH_CHALLENGE, auth_challenge=challenge))

    def _connection_lost(self) -> None:
        if self._check is not None:
            self._check.cancel()


def _method_of(connect: pb.CommandConnect) -> str:
    """Return the method that a client names, by name or by the number that old clients send."""
    if connect.HasField("auth_method_name"):
        return connect.auth_method_name
    if connect.HasField("auth_method"):
        return pb.AuthMethod.Name(connect.auth_method).removeprefix("AuthMethod").lower()
    return METHOD_NONE
