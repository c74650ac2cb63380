"""Contexts of TLS: what is verified, and what a renewal of their files changes. No socket is used."""

from __future__ import annotations

import logging
import shutil
import ssl
from pathlib import Path

import pytest
import trustme

from heliograph.base.errors import InvalidConfigError
from heliograph.base.tls import contexts
from heliograph.base.tls.contexts import ClientTls, ClientTlsFiles, PeerTlsFiles, ServerTls, TlsFiles

HOST = "127.0.0.1"


@pytest.fixture(autouse=True)
def _look_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contexts, "CHECK_SECONDS", 0.0)


def issue(folder: Path, authority: trustme.CA, *names: str) -> PeerTlsFiles:
    """Write an authority and a certificate that it signed."""
    issued = authority.issue_cert(*names)
    folder.mkdir(exist_ok=True)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "cert.pem").write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    return PeerTlsFiles(str(folder / "cert.pem"), str(folder / "key.pem"), str(folder / "ca.pem"))


def shake_hands(server: ServerTls, client: ClientTls, host: str = HOST) -> ssl.SSLObject:
    """Run a handshake over memory and return the client's side, after one byte of the server was read."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    serving = server.context.wrap_bio(to_server, to_client, server_side=True)
    calling = client.context.wrap_bio(to_client, to_server, server_hostname=host)
    ends = [calling.do_handshake, serving.do_handshake]
    while ends:
        for end in list(ends):
            try:
                end()
            except ssl.SSLWantReadError:
                continue
            ends.remove(end)
    serving.write(b"x")
    assert calling.read(1) == b"x"
    return calling


def serial(connection: ssl.SSLObject) -> str:
    """Return the serial number of the server's certificate."""
    certificate = connection.getpeercert()
    assert certificate is not None
    return str(certificate["serialNumber"])


def test_both_ends_are_verified(tmp_path: Path) -> None:
    files = issue(tmp_path, trustme.CA(), HOST)
    server = ServerTls(files.as_server)
    connection = shake_hands(server, ClientTls(files.as_client))
    assert connection.version() == "TLSv1.3"
    with pytest.raises(ssl.SSLError, match="certificate"):
        shake_hands(server, ClientTls(ClientTlsFiles(files.ca)))


def test_a_server_of_another_name_or_authority_is_refused(tmp_path: Path) -> None:
    files = issue(tmp_path, trustme.CA(), "broker.example.org")
    server = ServerTls(TlsFiles(files.certificate, files.key))
    shake_hands(server, ClientTls(ClientTlsFiles(files.ca)), "broker.example.org")
    with pytest.raises(ssl.SSLCertVerificationError, match=r"127\.0\.0\.1"):
        shake_hands(server, ClientTls(ClientTlsFiles(files.ca)))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, ClientTls(ClientTlsFiles()), "broker.example.org")


def test_versions_before_1_2_are_refused(tmp_path: Path) -> None:
    files = issue(tmp_path, trustme.CA(), HOST)
    for context in (ServerTls(files.as_server).context, ClientTls(files.as_client).context):
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_a_renewed_certificate_is_used_by_the_next_handshake(tmp_path: Path) -> None:
    authority = trustme.CA()
    files = issue(tmp_path, authority, HOST)
    server, client = ServerTls(files.as_server), ClientTls(files.as_client)
    first = serial(shake_hands(server, client))
    assert serial(shake_hands(server, client)) == first
    issue(tmp_path, authority, HOST)
    assert serial(shake_hands(server, client)) != first


def test_a_renewed_authority_counts_at_both_ends(tmp_path: Path) -> None:
    files = issue(tmp_path / "ours", trustme.CA(), HOST)
    strangers = issue(tmp_path / "theirs", trustme.CA(), HOST)
    stale = issue(tmp_path / "stale", trustme.CA(), HOST)
    server, client = ServerTls(files.as_server), ClientTls(files.as_client)
    shake_hands(server, client)
    shutil.copyfile(files.certificate, stale.certificate)
    shutil.copyfile(files.key, stale.key)
    shutil.copyfile(strangers.ca, stale.ca)
    for name in ("cert.pem", "key.pem", "ca.pem"):
        shutil.copyfile(tmp_path / "theirs" / name, tmp_path / "ours" / name)
    shake_hands(server, ClientTls(strangers.as_client))
    shake_hands(server, client)  # it has read its files again, too
    with pytest.raises(ssl.SSLError):  # a certificate of the old authority is worth nothing
        shake_hands(server, ClientTls(stale.as_client))


def test_files_that_cannot_be_used_leave_the_old_ones(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = issue(tmp_path, trustme.CA(), HOST)
    server, client = ServerTls(files.as_server), ClientTls(files.as_client)
    first = serial(shake_hands(server, client))
    Path(files.key).write_text("half a k")
    with caplog.at_level(logging.ERROR):
        assert serial(shake_hands(server, client)) == first
        assert serial(shake_hands(server, client)) == first
    assert "cannot be used" in caplog.text
    assert caplog.text.count("the renewed certificate") == 1  # not once for each handshake


@pytest.mark.parametrize(
    ("lost", "field"),
    [("cert.pem", "tls_certificate_file"), ("key.pem", "tls_certificate_file"), ("ca.pem", "tls_ca_file")],
)
def test_a_missing_file_is_named(tmp_path: Path, lost: str, field: str) -> None:
    files = issue(tmp_path, trustme.CA(), HOST)
    (tmp_path / lost).unlink()
    for make in (lambda: ServerTls(files.as_server), lambda: ClientTls(files.as_client)):
        with pytest.raises(InvalidConfigError, match=lost) as raised:
            make()
        assert raised.value.field == field


def test_certificates_of_clients_need_their_authority(tmp_path: Path) -> None:
    files = issue(tmp_path, trustme.CA(), HOST)
    with pytest.raises(InvalidConfigError, match="names no authority"):
        ServerTls(TlsFiles(files.certificate, files.key, "", is_client_certificate_required=True))
