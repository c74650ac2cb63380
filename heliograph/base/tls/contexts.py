"""The TLS contexts of listeners and of connections, made from PEM files that may be renewed in place.

Files that changed are read again before the next handshake, so nothing has to be restarted and nothing has to poll.
Unusable files are logged, and the old files stay in use. Open connections keep the certificate they began with.
"""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from heliograph.base.errors import InvalidConfigError

CHECK_SECONDS = 1.0  # between two looks at the files
OLDEST = ssl.TLSVersion.TLSv1_2

log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]  # of each file: time of change, size, inode


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files.

    Args:
        certificate: of the part, followed by its chain.
        key: the private key of the certificate.
        client_ca: the authority that signs the certificates of clients; empty: clients are not asked for any.
        is_client_certificate_required: refuse clients without a certificate.
    """

    certificate: str
    key: str
    client_ca: str = ""
    is_client_certificate_required: bool = False


@dataclass(frozen=True, slots=True)
class ClientTlsFiles:
    """Paths of PEM files that a client uses.

    Args:
        ca: the authority that signs the certificates of servers; empty: the machine's trusted authorities.
        certificate: the client's own, followed by its chain; empty: it has none.
        key: the private key of the certificate.
        ca_text: the authority itself, in PEM, where there is no file of it.
    """

    ca: str = ""
    certificate: str = ""
    key: str = ""
    ca_text: str = ""


@dataclass(frozen=True, slots=True)
class PeerTlsFiles:
    """Paths of PEM files of a part that other parts know by its certificate, and that knows them by theirs.

    Args:
        certificate: of the part, followed by its chain; it is good for a server and for a client.
        key: the private key of the certificate.
        ca: the authority that signs the certificates of all parts.
    """

    certificate: str
    key: str
    ca: str

    @property
    def as_server(self) -> TlsFiles:
        """Return the files of a listener that refuses clients without a certificate."""
        return TlsFiles(self.certificate, self.key, self.ca, is_client_certificate_required=True)

    @property
    def as_client(self) -> ClientTlsFiles:
        """Return the files of a connection that shows the part's certificate."""
        return ClientTlsFiles(self.ca, self.certificate, self.key)


class ServerTls:
    """The TLS context of a listener.

    ``context`` stays the same object. Each handshake uses the newest certificate, and asks clients for one that the
    newest authority signed. ``ends_at`` is when that certificate ends, in seconds since the epoch.

    Raises:
        InvalidConfigError: a file is missing or invalid; names the setting.
    """

    def __init__(self, files: TlsFiles) -> None:
        if files.is_client_certificate_required and not files.client_ca:
            raise InvalidConfigError(
                "certificates of clients are required, but tls_ca_file names no authority that signs them",
                field="tls_ca_file",
            )
        self._files = files
        self._paths = tuple(path for path in (files.certificate, files.key, files.client_ca) if path)
        self._stamp = _stamp(self._paths)
        self._checked = time.monotonic()
        self._current = self.context = self._load()
        self.context.sni_callback = self._on_handshake  # it is called without a name, too

    def reload_if_changed(self) -> bool:
        """Read the files again if they changed. Return whether new files are in use now."""
        stamp = _stamp(self._paths)
        if stamp == self._stamp:
            return False
        self._stamp = stamp  # files that are broken are logged once
        try:
            self._current = self._load()
        except InvalidConfigError as error:
            log.error("the renewed certificate cannot be used, the old one stays in use: %s", error)
            return False
        log.info("the certificate %s was read again", self._files.certificate)
        return True

    def _on_handshake(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        now = time.monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self.reload_if_changed()
        connection.context = self._current

    def _load(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = OLDEST
        if files.client_ca:
            context.verify_mode = ssl.CERT_REQUIRED if files.is_client_certificate_required else ssl.CERT_OPTIONAL
            context.num_tickets = 0  # a resumed session would not be checked against a renewed authority
            context.options |= ssl.OP_NO_TICKET
            _trust(context, files.client_ca)
        _show(context, files.certificate, files.key)
        self.ends_at = _end_of(files.certificate)
        return context


class ClientTls:
    """The TLS contexts of connections: the server's chain and its host name are verified.

    Raises:
        InvalidConfigError: a file is missing or invalid; names the setting.
    """

    def __init__(self, files: ClientTlsFiles) -> None:
        self._files = files
        self._paths = tuple(path for path in (files.ca, files.certificate, files.key) if path)
        self._stamp = _stamp(self._paths)
        self._checked = time.monotonic()
        self._context = self._load()

    @property
    def context(self) -> ssl.SSLContext:
        """Return the context for a new connection. It is another one after the files changed."""
        now = time.monotonic()
        if now - self._checked >= CHECK_SECONDS:
            self._checked = now
            self.reload_if_changed()
        return self._context

    def reload_if_changed(self) -> bool:
        """Read the files again if they changed. Return whether new files are in use now."""
        stamp = _stamp(self._paths)
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            self._context = self._load()
        except InvalidConfigError as error:
            log.error("the renewed files of TLS cannot be used, the old ones stay in use: %s", error)
            return False
        return True

    def _load(self) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies chains and host names
        context.minimum_version = OLDEST
        if files.ca:
            _trust(context, files.ca)
        elif files.ca_text:
            _trust(context, "of the plan", files.ca_text)
        else:
            context.load_default_certs()
        if files.certificate:
            _show(context, files.certificate, files.key or None)
        return context


def _trust(context: ssl.SSLContext, ca: str, text: str | None = None) -> None:
    try:
        context.load_verify_locations(ca if text is None else None, cadata=text)
    except (OSError, ValueError, ssl.SSLError) as error:
        raise InvalidConfigError(f"tls_ca_file {ca!r} cannot be used: {error}", field="tls_ca_file") from error


def _show(context: ssl.SSLContext, certificate: str, key: str | None) -> None:
    try:
        context.load_cert_chain(certificate, key, password=_no_password)
    except (OSError, ssl.SSLError) as error:
        raise InvalidConfigError(
            f"certificate {certificate!r} with key {key!r} cannot be used: {error}", field="tls_certificate_file"
        ) from error


def _end_of(certificate: str) -> float:
    """Return when the first certificate of a file ends, in seconds since the epoch."""
    from cryptography import x509  # only where there is TLS: it takes time to load

    try:
        return x509.load_pem_x509_certificate(Path(certificate).read_bytes()).not_valid_after_utc.timestamp()
    except (OSError, ValueError) as error:
        raise InvalidConfigError(
            f"certificate {certificate!r} cannot be read: {error}", field="tls_certificate_file"
        ) from error


def _no_password() -> str:
    """Refuse a key that is encrypted: without this, OpenSSL asks on the terminal and blocks the process."""
    raise ssl.SSLError("the key is encrypted: give it without a password")


def _stamp(paths: tuple[str, ...]) -> _Stamp:
    """Return a stamp that differs between a renewed file and the old one; a missing file has zeros."""
    stamps = []
    for path in paths:
        try:
            found = Path(path).stat()
            stamps.append((found.st_mtime_ns, found.st_size, found.st_ino))
        except OSError:
            stamps.append((0, 0, 0))
    return tuple(stamps)
