"""TLS at the broker: its certificate, and the certificates that it asks clients for.

Certificates are renewed in place: files that changed are read again and used for new connections.
"""

from __future__ import annotations

import logging
import ssl
from dataclasses import dataclass
from pathlib import Path

from heliograph.base.errors import InvalidConfigError

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Paths of PEM files.

    Args:
        certificate: of the broker, followed by its chain.
        key: the private key of the certificate.
        client_ca: the authority that signs the certificates of clients; empty: clients are not asked for any.
        is_client_certificate_required: refuse clients without a certificate.
    """

    certificate: str
    key: str
    client_ca: str = ""
    is_client_certificate_required: bool = False


class ServerTls:
    """The TLS context of a listener.

    Raises:
        InvalidConfigError: a file is missing or invalid; names the setting.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if files.is_client_certificate_required and not files.client_ca:
            raise InvalidConfigError(
                "certificates of clients are required, but tls_ca_file names no authority that signs them",
                field="tls_ca_file",
            )
        if files.client_ca:
            self.context.verify_mode = ssl.CERT_REQUIRED if files.is_client_certificate_required else ssl.CERT_OPTIONAL
            try:
                self.context.load_verify_locations(files.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise InvalidConfigError(
                    f"tls_ca_file {files.client_ca!r} cannot be used: {error}", field="tls_ca_file"
                ) from error
        self._loaded = self._load()

    def reload_if_changed(self) -> bool:
        """Read certificate and key again if their files changed. Return whether new ones are used now.

        Files that cannot be used are logged, and the old certificate stays in use.
        """
        try:
            if self._stamp() == self._loaded:
                return False
            self._loaded = self._load()
        except (OSError, InvalidConfigError) as error:
            log.error("the renewed certificate cannot be used, the old one stays in use: %s", error)
            return False
        return True

    def _load(self) -> tuple[float, float]:
        files = self._files
        try:
            stamp = self._stamp()
            self.context.load_cert_chain(files.certificate, files.key)
        except (OSError, ssl.SSLError) as error:
            raise InvalidConfigError(
                f"certificate {files.certificate!r} with key {files.key!r} cannot be used: {error}",
                field="tls_certificate_file",
            ) from error
        return stamp

    def _stamp(self) -> tuple[float, float]:
        return Path(self._files.certificate).stat().st_mtime, Path(self._files.key).stat().st_mtime
