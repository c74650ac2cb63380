"""The authority of a cluster: what it makes, when it makes it again, and that both ends accept it."""

from __future__ import annotations

import datetime
import ssl
import stat
from pathlib import Path

import pytest

from heliograph.base.errors import ResourceError
from heliograph.base.tls import authority as module
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.tls.contexts import ClientTls, ClientTlsFiles, PeerTlsFiles, ServerTls
from heliograph.base.tls.node_certificate import ensure_node_certificate
from tests.unit.base.test_tls import shake_hands


def peers(authority: CertificateAuthority) -> PeerTlsFiles:
    return PeerTlsFiles(str(authority.file("parts.pem")), str(authority.file("parts.key")), str(authority.certificate))


def test_parts_and_tools_are_accepted_at_the_named_addresses(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "certificates")
    assert authority.ensure(["10.1.2.3", "broker.example.org", "0.0.0.0"]) == ["parts", "client"]
    server = ServerTls(peers(authority).as_server)
    for host in ("127.0.0.1", "localhost", "10.1.2.3", "broker.example.org"):
        shake_hands(server, ClientTls(peers(authority).as_client), host)
    own = ClientTlsFiles(
        str(authority.certificate), str(authority.file("client.pem")), str(authority.file("client.key"))
    )
    shake_hands(server, ClientTls(own))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server, ClientTls(own), "10.9.9.9")
    tool = ServerTls(PeerTlsFiles(own.certificate, own.key, own.ca).as_server)
    with pytest.raises(ssl.SSLError):  # the certificate of a tool is not good for a server
        shake_hands(tool, ClientTls(own))


def test_keys_are_private_and_what_is_good_stays(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "certificates")
    authority.ensure()
    assert stat.S_IMODE(authority.directory.stat().st_mode) == 0o700
    for path in authority.directory.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = {path: path.read_bytes() for path in authority.directory.iterdir()}
    assert authority.ensure() == []
    assert {path: path.read_bytes() for path in authority.directory.iterdir()} == before


def test_certificates_are_made_again_for_new_names_before_their_end_and_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.ensure(["10.1.2.3"])
    root = authority.certificate.read_bytes()
    assert authority.ensure(["10.1.2.4"]) == ["parts"]
    assert {"10.1.2.3", "10.1.2.4"} <= set(authority.facts()[1].names)
    assert authority.ensure(renew=True) == ["parts", "client"]
    monkeypatch.setattr(module, "CERTIFICATE_DAYS", 29)
    authority.ensure(renew=True)
    monkeypatch.undo()
    assert authority.ensure() == ["parts", "client"]
    assert authority.facts()[1].ends > datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=300)
    assert authority.certificate.read_bytes() == root


def test_a_damaged_file_is_said(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    authority.ensure()
    authority.file("parts.pem").write_text("half a c")
    with pytest.raises(ResourceError, match=str(tmp_path)):
        authority.ensure()


def test_a_node_has_a_key_of_its_own_and_a_certificate_of_the_authority(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "head")
    authority.ensure(["10.1.2.1"])
    node = CertificateAuthority(tmp_path / "node")
    asked: list[bytes] = []

    def sign(request: bytes) -> tuple[bytes, bytes]:
        asked.append(request)
        return authority.sign(request)

    assert ensure_node_certificate(node.directory, ["10.1.2.2", "two.example.org"], sign)
    assert not ensure_node_certificate(node.directory, ["10.1.2.2"], sign), "it has that name"
    head, there = ServerTls(peers(authority).as_server), ServerTls(peers(node).as_server)
    for host in ("10.1.2.2", "two.example.org", "127.0.0.1"):
        shake_hands(there, ClientTls(peers(authority).as_client), host)
    shake_hands(head, ClientTls(peers(node).as_client), "10.1.2.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(there, ClientTls(peers(authority).as_client), "10.1.2.1")
    assert not node.file("ca.key").exists()
    assert len(asked) == 1
    assert b"PRIVATE" not in asked[0]
    assert node.file("parts.key").read_bytes() != authority.file("parts.key").read_bytes()
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in node.directory.glob("*.key")} == {0}
    assert ensure_node_certificate(node.directory, ["10.1.2.3"], sign), "an address was added"
    shake_hands(ServerTls(peers(node).as_server), ClientTls(peers(authority).as_client), "10.1.2.2")


def test_the_directory_of_the_authority_serves_all_nodes_that_share_it(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "head")
    authority.ensure(["10.1.2.1"])
    assert ensure_node_certificate(authority.directory, ["10.1.2.2"], lambda _: pytest.fail("it is here"))
    server = ServerTls(peers(authority).as_server)
    for host in ("10.1.2.1", "10.1.2.2"):
        shake_hands(server, ClientTls(peers(authority).as_client), host)


def test_a_request_that_is_damaged_is_not_signed(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "head")
    authority.ensure()
    with pytest.raises(ResourceError, match="signs no certificate"):
        authority.sign(b"-----BEGIN CERTIFICATE REQUEST-----")
    with pytest.raises(ResourceError, match="signs no certificate"):
        CertificateAuthority(tmp_path / "nowhere").sign(b"")
