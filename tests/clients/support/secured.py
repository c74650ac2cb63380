"""A Heliograph that asks its clients who they are: tokens, rights, TLS, and a gateway that speaks for its callers."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from typing_extensions import override

from heliograph.auth.config import AuthConfig
from heliograph.auth.principal import METHOD_TOKEN, Credentials, Principal
from heliograph.base.tls.contexts import TlsFiles
from heliograph.client.access import client_options
from heliograph.client.aio.client import AsyncClient
from heliograph.client.identity import Identity
from heliograph.gateway.config import GatewayConfig
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import AdminOperation
from tests.clients.support.stack import ClientsStack
from tests.cluster.support.broker_cluster import BrokerCluster, broker_cluster
from tests.unit.auth.keys import SECRET, token

NAMESPACE = "public/default"
SUPERUSER, GATEWAY, USER, PUBLISHER = "admin", "gateway", "alice", "publisher"
HOSTS = ("localhost", "127.0.0.1")  # in the certificate of the brokers; Java looks up the name of an address
# Between two looks of the brokers at what is open: the time that a client has to show a new token, on a busy machine.
CHECK_SECONDS = 2.0
OTHER_KEY = b"another key of 32 bytes or more!"
BROKEN: dict[str, dict[str, Any]] = {"another key": {"key": OTHER_KEY}, "expired": {"seconds": -60}}


class _AdministrationFor(AdminOperations):
    """The administration in the name of one caller of the gateway."""

    def __init__(self, cluster: BrokerCluster, principal: Principal) -> None:
        self._cluster = cluster
        self._principal = principal
        self.run_through(self._run)

    async def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        broker = next(running.broker for running in self._cluster.brokers if not running.is_gone)
        shown = await broker.authenticator.authenticate(Credentials(METHOD_TOKEN, token(GATEWAY)), "the gateway")
        principal = await broker.authenticator.authenticate_original(shown, self._principal.role, peer="the gateway")
        return await broker.admin.run(operation.name, arguments, principal)


class _Agents:
    """What acts for the gateway's callers."""

    def __init__(self, cluster: BrokerCluster) -> None:
        self._cluster = cluster

    def client(self, principal: Principal) -> AsyncClient:
        shown = Identity(token=token(GATEWAY).decode(), original_principal=principal.role)
        given = {"token": shown.token, "original_principal": shown.original_principal}
        return AsyncClient(client_options(self._cluster.service_url, None, given))

    def admin(self, principal: Principal) -> _AdministrationFor:
        return _AdministrationFor(self._cluster, principal)


class SecuredStack(ClientsStack):
    """Made by ``running_secured_stack``. ``public/default`` lets ``alice`` produce and consume, and ``publisher``
    produce; ``admin`` may do everything."""

    def __init__(self, cluster: BrokerCluster, auth: AuthConfig, folder: Path) -> None:
        super().__init__(cluster, GatewayConfig(port=0, auth=auth), _Agents(cluster))
        self.folder = folder
        self._other: asyncio.Server | None = None
        self._deceived = 0  # clients that finished the handshake of the other host

    @property
    def service_url_tls(self) -> str:
        """Return ``pulsar+ssl://127.0.0.1:port`` of the broker."""
        return self.cluster.brokers[0].broker.service_url_tls

    @property
    def service_url_of_another_name(self) -> str:
        """Return an address whose certificate, of the same authority, is for another host."""
        assert self._other is not None, "the stack is running"
        return f"pulsar+ssl://127.0.0.1:{self._other.sockets[0].getsockname()[1]}"

    @override
    def answer(self, question: dict[str, Any]) -> Any:
        """Do what a program asks for, beside what every stack does.

        - ``token``, ``role``, and if wanted ``seconds`` or ``kind``: a token, which is good unless it is of a kind of
          ``BROKEN``.
        - ``connections``: how many connections the broker has accepted since it started.
        - ``deceived``: how many clients have taken a certificate for another host.
        """
        match question["ask"]:
            case "token":
                claims: dict[str, Any] = dict(BROKEN.get(question.get("kind", ""), {}))
                if "seconds" in question:
                    claims["seconds"] = float(question["seconds"])
                return token(question["role"], **claims).decode()
            case "connections":
                return self.cluster.brokers[0].broker._server.connections_total
            case "deceived":
                return self._deceived
            case _:
                return super().answer(question)

    @override
    async def _client(self) -> AsyncClient:
        """Return a client that names nobody; nothing uses it."""
        return AsyncClient(client_options(self.cluster.service_url, None, {}))

    @override
    async def start(self) -> None:
        await super().start()
        files = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        files.load_cert_chain(self.folder / "other-host.pem", self.folder / "other-host.key")
        self._other = await asyncio.start_server(self._deceive, "127.0.0.1", 0, ssl=files)
        self._closing.callback(self._other.close)

    async def _deceive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._deceived += 1
        writer.close()

    async def grant(self) -> None:
        permissions = self.cluster.admin.permissions
        await permissions.grant(NAMESPACE, USER, ["produce", "consume"])
        await permissions.grant(NAMESPACE, PUBLISHER, ["produce"])


def write_certificates(folder: Path) -> TlsFiles:
    """Write an authority, the certificates of the broker, of another host and of ``alice``; return the broker's."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trustme.CA().cert_pem.write_to_path(str(folder / "other-ca.pem"))
    issued = {
        "server": authority.issue_cert(*HOSTS),
        "other-host": authority.issue_cert("other-host.test"),
        USER: authority.issue_cert("alice.test", common_name=USER, key_type=trustme.KeyType.RSA),
    }
    for name, made in issued.items():
        key = load_pem_private_key(made.private_key_pem.bytes(), None)
        # The one form that Java reads; clients of Java 3.0 read no key but an RSA one.
        (folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        for blob in made.cert_chain_pems:
            blob.write_to_path(str(folder / f"{name}.pem"), append=True)
    return TlsFiles(str(folder / "server.pem"), str(folder / "server.key"), str(folder / "ca.pem"))


@contextlib.contextmanager
def running_secured_stack(directory: Path) -> Iterator[SecuredStack]:
    """Run one broker, three bookies and a gateway that authenticate, for the duration of the block."""
    auth = AuthConfig(
        enabled=True,
        token_secret_key=base64.b64encode(SECRET).decode(),
        superuser_roles=(SUPERUSER, GATEWAY),
        proxy_roles=(GATEWAY,),
        refresh_check_seconds=CHECK_SECONDS,
    )
    options = {"auth": auth, "tls": write_certificates(directory), "tls_port": 0}
    with broker_cluster(directory, bookies=3, options=options) as cluster:
        stack = SecuredStack(cluster, auth, directory)
        cluster.run(stack.start())
        cluster.run(stack.grant())
        try:
            yield stack
        finally:
            cluster.run(stack.stop())
