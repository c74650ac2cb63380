"""ZooKeeper's clients over TLS: certificates are checked, required, and renewed without a restart."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme
from kazoo.client import KazooClient
from kazoo.handlers.threading import KazooTimeoutError

from heliograph.base.tls.contexts import ServerTls, TlsFiles
from heliograph.metadata.endpoint.endpoint import ZooKeeperEndpoint
from tests.contracts.endpoint.backends import EndpointOverMemory

HOST = "127.0.0.1"
WAIT_SECONDS = 60
SHORT_SECONDS = 2.0  # of a client that nobody answers


class Files:
    """A certificate of an authority, and one for clients."""

    def __init__(self, folder: Path, *, is_client_certificate_required: bool = False) -> None:
        self.authority = trustme.CA()
        self.folder = folder
        self.ca, self.client = folder / "ca.pem", folder / "client.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.authority.issue_cert("alice@example.org").private_key_and_cert_chain_pem.write_to_path(str(self.client))
        self.renew()
        self.tls = ServerTls(
            TlsFiles(
                str(folder / "server.pem"),
                str(folder / "server.key"),
                str(self.ca) if is_client_certificate_required else "",
                is_client_certificate_required,
            )
        )

    def renew(self) -> None:
        made = self.authority.issue_cert(HOST)
        made.private_key_pem.write_to_path(str(self.folder / "server.key"))
        made.cert_chain_pems[0].write_to_path(str(self.folder / "server.pem"))


def served(files: Files, use: Callable[[str], None]) -> None:
    """Run an endpoint with TLS, and use its address on another thread."""

    async def whole() -> None:
        backend = EndpointOverMemory(Path())
        endpoint = ZooKeeperEndpoint(backend._open_behind)
        await endpoint.start()
        try:
            address = await endpoint.listen(HOST, 0, tls=files.tls)
            async with asyncio.timeout(2 * WAIT_SECONDS):
                await asyncio.to_thread(use, address)
        finally:
            await endpoint.stop()

    asyncio.run(whole())


def connect(address: str, timeout: float = WAIT_SECONDS, **options: object) -> KazooClient:
    client = KazooClient(address, **options)
    try:
        client.start(timeout)
    except BaseException:
        client.stop()
        client.close()
        raise
    return client


def test_kazoo_works_over_tls_and_nothing_else_does(tmp_path: Path) -> None:
    files = Files(tmp_path)

    def use(address: str) -> None:
        client = connect(address, use_ssl=True, ca=str(files.ca))
        client.create("/a", b"kept")
        assert client.get("/a")[0] == b"kept"
        client.stop()
        client.close()
        with pytest.raises(KazooTimeoutError):
            connect(address, SHORT_SECONDS)

    served(files, use)


def test_a_client_needs_a_certificate_where_one_is_asked_for(tmp_path: Path) -> None:
    files = Files(tmp_path, is_client_certificate_required=True)

    def use(address: str) -> None:
        with pytest.raises(KazooTimeoutError):
            connect(address, SHORT_SECONDS, use_ssl=True, ca=str(files.ca))
        client = connect(address, use_ssl=True, ca=str(files.ca), certfile=str(files.client), keyfile=str(files.client))
        assert client.exists("/") is not None
        client.stop()
        client.close()

    served(files, use)


def test_a_renewed_certificate_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = Files(tmp_path)

    def serial(address: str) -> int:
        context = ssl.create_default_context(cafile=str(files.ca))
        context.check_hostname = False
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port)), WAIT_SECONDS) as raw, context.wrap_socket(raw) as wrapped:
            found = wrapped.getpeercert()
        assert found is not None
        return int(str(found["serialNumber"]), 16)

    def use(address: str) -> None:
        before = serial(address)
        files.renew()
        assert files.tls.reload_if_changed()
        assert serial(address) != before

    served(files, use)
