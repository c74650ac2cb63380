"""TLS between the parts: bookies and the metadata store know their clients by certificates, and readers by grants."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import trustme

from heliograph.actors.ledger.driver import DetachedReader, LedgerClient, LedgerClientConfig
from heliograph.actors.wire.client import BookieConnection
from heliograph.actors.wire.grant import make_grants
from heliograph.actors.wire.messages import Answer, BookieOp, BookieRequest, Status
from heliograph.base.clock import wall_ms
from heliograph.base.errors import InvalidConfigError
from heliograph.base.tls.contexts import ClientTls, ClientTlsFiles, PeerTlsFiles, ServerTls
from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.connect import connect_store, embedded_url
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.recipes.cluster_init import initialise
from tests.cluster.support.bookie_peer import small_config

SECRET = "a secret that is long enough"


def certificates(folder: Path) -> PeerTlsFiles:
    """Write an authority and a certificate of it for 127.0.0.1."""
    folder.mkdir()
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "cert.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return PeerTlsFiles(str(folder / "cert.pem"), str(folder / "key.pem"), str(folder / "ca.pem"))


async def read_by(address: str, tls: ClientTls | None, secret: Any = SECRET) -> Any:
    """Return the answer to a READ over a new connection: an answer, or an error."""
    loop = asyncio.get_running_loop()
    connection = BookieConnection("b1", address, lambda: int(loop.time() * 1000), secret=secret, tls=tls)
    answer: asyncio.Future[Any] = loop.create_future()
    request = BookieRequest(BookieOp.READ, 0, 99, 0)
    connection.request(request, b"", lambda tag, found, _: answer.set_result(found), None, 60_000)
    try:
        return await answer
    finally:
        connection.close()


async def test_a_bookie_serves_parts_by_certificate_and_readers_by_grant(tmp_path: Path) -> None:
    from heliograph.actors.bookie.bookie import Bookie

    ours, strangers = certificates(tmp_path / "ours"), certificates(tmp_path / "strangers")
    url = "memory://bookie-tls"
    await initialise(await connect_store(url))
    config = small_config(tmp_path / "b1", bookie_id="b1", cluster_secret=SECRET, tls=ours)
    bookie = Bookie(config, await connect_store(url))
    await bookie.start()
    assert bookie.address.startswith("tls://127.0.0.1:")
    client = await LedgerClient.start(await connect_store(url), LedgerClientConfig(cluster_secret=SECRET, tls=ours))
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    payloads = [bytes([n]) * 300_000 for n in range(8)]  # large enough to be sent in parts
    await asyncio.gather(*[writer.add(payload) for payload in payloads])
    await writer.close()
    metadata = (await client.open(writer.ledger_id)).metadata
    (grant,) = make_grants(SECRET, [writer.ledger_id], wall_ms() + 60_000)
    reader = DetachedReader({"b1": bookie.address}, grant=grant.text, authority=Path(ours.ca).read_text())
    read: list[bytes] = []
    while len(read) < len(payloads):
        entries = await reader.read(metadata, len(read), 7)
        read += [bytes(entry.payload) for entry in entries]
    assert read == payloads
    await reader.close()

    served = await read_by(bookie.address, ClientTls(ours.as_client))
    assert isinstance(served, Answer)
    assert served.status is Status.NO_LEDGER
    plain = bookie.address.removeprefix("tls://")
    for address, tls, why in (
        (bookie.address, ClientTls(ClientTlsFiles(ours.ca)), "does not accept"),  # the secret alone is not enough
        (bookie.address, ClientTls(strangers.as_client), "certificate verify failed"),
        (bookie.address, None, "no certificates"),
        (plain, ClientTls(ours.as_client), "it has no TLS"),
        (plain, None, "lost|refused|finish its greeting"),
    ):
        refused = await read_by(address, tls)
        assert not isinstance(refused, Answer)
        assert pytest.raises(Exception, match=why).matches(refused), refused
    await client.close()
    await bookie.stop()


async def test_the_metadata_store_asks_for_certificates(tmp_path: Path) -> None:
    ours, strangers = certificates(tmp_path / "ours"), certificates(tmp_path / "strangers")
    server = EmbeddedServer(tmp_path / "store", "127.0.0.1", tls=ServerTls(ours.as_server))
    await server.start()
    store = await connect_store(embedded_url(server.address, ours))
    await store.create("/a", b"1")
    assert (await store.get("/a"))[0] == b"1"
    await store.close()
    host, port = server.address.split(":")
    for tls in (None, ClientTls(ClientTlsFiles(ours.ca)), ClientTls(strangers.as_client)):
        with pytest.raises(ConnectionLossError):
            await EmbeddedStore.connect(host, int(port), connect_timeout_ms=700, tls=tls)
    await server.stop()


def test_urls_name_the_files_of_tls() -> None:
    assert embedded_url("h:1", None) == "embedded://h:1"
    assert embedded_url("h:1", PeerTlsFiles("/c", "/k", "/a")) == "embeddeds://h:1?ca=/a&cert=/c&key=/k"
    for url in ("embedded://h:1?ca=/a", "embeddeds://h:1?cafile=/a"):
        with pytest.raises(InvalidConfigError, match="files of TLS"):
            asyncio.run(connect_store(url))
