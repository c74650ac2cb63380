"""An authority of the cluster's own, which signs the certificates of its parts and of its user's tools.

    ca.pem, ca.key            the authority; its key signs and is needed for nothing else
    parts.pem, parts.key      what brokers, gateway, bookies and metadata store show, and show each other
    client.pem, client.key    of the user's own tools

On other machines of the cluster, the same directory has a ``parts.pem`` and ``parts.key`` of their own, and ``ca.pem``
(``node_certificate.py``). All are made when they are missing, and certificates again when they are about to end or when
an address was added. Every file is replaced at once, so a reader finds an old or a new one; keys have mode 0600.
"""

from __future__ import annotations

import datetime
import ipaddress
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from heliograph.base.errors import ResourceError
from heliograph.base.home import make_private, replace_private

DIRECTORY = "certificates"  # below the home directory of a cluster
AUTHORITY_DAYS = 3_650
CERTIFICATE_DAYS = 365
RENEWED_DAYS_BEFORE = 30
ALWAYS_NAMED = ("localhost", "127.0.0.1", "::1")
CLIENT_ROLE = "admin"
PARTS_SUBJECT = "cluster"
_BACKDATED = datetime.timedelta(minutes=5)  # for clocks that are behind


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """Facts of a certificate: its file, its subject, the addresses that it names, and its end."""

    file: str
    subject: str
    names: tuple[str, ...]
    ends: datetime.datetime


class CertificateAuthority:
    """The authority in one directory. Every method blocks.

    Raises:
        ResourceError: a file cannot be read or written; names it.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @property
    def certificate(self) -> Path:
        """The authority's certificate, which clients need to trust."""
        return self.directory / "ca.pem"

    def file(self, name: str) -> Path:
        """Return the path of ``parts.pem``, ``parts.key``, ``client.pem`` or ``client.key``."""
        return self.directory / name

    def ensure(self, hosts: Iterable[str] = (), *, renew: bool = False) -> list[str]:
        """Make the certificates that are missing or about to expire, and return their names.

        Args:
            hosts: names and addresses that parts are reached at, besides those of this machine. Names that the present
                certificate has are kept.
            renew: make both certificates again. The authority stays.
        """
        try:
            make_private(self.directory)
            is_new = not self.certificate.exists()
            if is_new:
                self._make_authority()
            wanted = {*ALWAYS_NAMED, socket.gethostname(), *hosts} - {"", "0.0.0.0", "::"}
            made = []
            for name, names in (("parts", wanted), ("client", set())):
                facts = self.facts_of(f"{name}.pem")
                if renew or is_new or facts is None or is_ending(facts) or not names <= set(facts.names):
                    self._issue(name, sorted(names | set(facts.names if facts else ())))
                    made.append(name)
            return made
        except (OSError, ValueError) as error:
            raise ResourceError(f"the certificates in {self.directory} cannot be used: {error}") from error

    def facts(self) -> list[CertificateFacts]:
        """Return the contents of the certificates that exist."""
        try:
            found = [self.facts_of(name) for name in ("ca.pem", "parts.pem", "client.pem")]
        except (OSError, ValueError) as error:
            raise ResourceError(f"the certificates in {self.directory} cannot be read: {error}") from error
        return [facts for facts in found if facts is not None]

    def sign(self, request: bytes) -> tuple[bytes, bytes]:
        """Sign the certificate of a node.

        Args:
            request: its names and its public key, in PEM, as ``request_of`` makes it.

        Returns:
            the certificate, and the authority's own, in PEM.

        Raises:
            ResourceError: there is no authority here, or the request is damaged.
        """
        try:
            wanted = x509.load_pem_x509_csr(request)
            if not wanted.is_signature_valid:
                raise ValueError("the request is not signed by its key")
            names = wanted.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            key = wanted.public_key()
            if not isinstance(key, ec.EllipticCurvePublicKey):
                raise ValueError("its key is of another kind")
            return self._signed(key, PARTS_SUBJECT, [str(one.value) for one in names]), self.certificate.read_bytes()
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            raise ResourceError(f"the authority in {self.directory} signs no certificate: {error}") from error

    def facts_of(self, name: str) -> CertificateFacts | None:
        """Return the contents of a certificate; None if it is missing. Raises OSError or ValueError if unreadable."""
        path = self.file(name)
        if not path.exists():
            return None
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        try:
            alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names = tuple(sorted(str(one.value) for one in alternatives))
        except x509.ExtensionNotFound:
            names = ()
        return CertificateFacts(str(path), certificate.subject.rfc4514_string(), names, certificate.not_valid_after_utc)

    def _make_authority(self) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = _subject(f"Heliograph authority of {socket.gethostname()}")
        builder = _builder(name, name, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs=True), critical=True)
        replace_private(self.file("ca.key"), key_bytes(key))
        replace_private(
            self.file("ca.pem"), builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )

    def _issue(self, name: str, names: Iterable[str]) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        made = self._signed(key.public_key(), PARTS_SUBJECT if name == "parts" else CLIENT_ROLE, names)
        replace_private(self.file(f"{name}.key"), key_bytes(key))
        replace_private(self.file(f"{name}.pem"), made)

    def _signed(self, key: ec.EllipticCurvePublicKey, subject: str, names: Iterable[str]) -> bytes:
        signer = x509.load_pem_x509_certificate(self.certificate.read_bytes())
        signer_key = serialization.load_pem_private_key(self.file("ca.key").read_bytes(), None)
        assert isinstance(signer_key, ec.EllipticCurvePrivateKey), "made by this class"
        builder = _builder(_subject(subject), signer.subject, key, CERTIFICATE_DAYS)
        alternatives = [_alternative(one) for one in names]
        purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if alternatives:
            purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(alternatives), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs=False), critical=True)
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer_key.public_key())
        builder = builder.add_extension(issuer_key, critical=False)
        return builder.sign(signer_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def is_ending(facts: CertificateFacts) -> bool:
    """Return whether a certificate ends within 30 days."""
    left = facts.ends - datetime.datetime.now(datetime.UTC)
    return left < datetime.timedelta(days=RENEWED_DAYS_BEFORE)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:64])])


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def request_of(key: ec.EllipticCurvePrivateKey, names: Iterable[str]) -> bytes:
    """Return a request for the certificate of a node with these names and addresses, in PEM."""
    alternatives = x509.SubjectAlternativeName([_alternative(name) for name in sorted(names)])
    builder = x509.CertificateSigningRequestBuilder().subject_name(_subject(PARTS_SUBJECT))
    signed = builder.add_extension(alternatives, critical=False).sign(key, hashes.SHA256())
    return signed.public_bytes(serialization.Encoding.PEM)


def key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
