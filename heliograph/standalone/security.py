"""Security of a cluster in one process: certificates of its authority, tokens, and an audit log."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from heliograph.auth.config import AuditConfig, AuthConfig
from heliograph.auth.issuing import own_credentials, own_token
from heliograph.base.home import ADMIN_TOKEN_FILE, LOGS
from heliograph.base.tls.authority import DIRECTORY as CERTIFICATES
from heliograph.base.tls.authority import CertificateAuthority
from heliograph.base.tls.contexts import TlsFiles
from heliograph.client.access import client_options
from heliograph.standalone.admin_socket import BrokerAdministration

if TYPE_CHECKING:
    from heliograph.gateway.sessions.agents import RoleAgents

log = logging.getLogger(__name__)


class Security:
    """The files in the directory of a cluster by which it is secured; missing files are made.

    Args:
        directory: of the cluster.
        hosts: names and addresses that clients reach it at, besides those of this machine.

    Raises:
        ResourceError, InvalidConfigError: a file cannot be made, read or used.
    """

    def __init__(self, directory: Path, hosts: Iterable[str]) -> None:
        authority = CertificateAuthority(directory / CERTIFICATES)
        authority.ensure(hosts)
        enabled = AuthConfig(enabled=True)
        self.auth = dataclasses.replace(enabled, **own_credentials(enabled, directory, log.info, with_gateway=True))
        self.audit = AuditConfig(file=str(directory / LOGS / "audit-{broker_id}.json"))
        self.gateway_audit_file = str(directory / LOGS / "audit-gateway.json")
        self.tls = TlsFiles(
            str(authority.file("parts.pem")), str(authority.file("parts.key")), str(authority.certificate)
        )
        self.admin_token_file = str(directory / ADMIN_TOKEN_FILE)
        self.client_files = {
            "tls_ca_file": str(authority.certificate),
            "tls_certificate_file": str(authority.file("client.pem")),
            "tls_key_file": str(authority.file("client.key")),
        }


def gateway_agents(security: Security, service_url: str, admin: BrokerAdministration) -> RoleAgents:
    """Return the factory of connections and administrations that the gateway uses on behalf of its callers."""
    from heliograph.gateway.sessions.agents import RoleAgents  # it loads a web framework, which starts do without

    given: dict[str, Any] = {
        "token": own_token(security.auth),
        "tls_ca_file": security.tls.client_ca,
        "tls_certificate_file": security.tls.certificate,
        "tls_key_file": security.tls.key,
    }
    return RoleAgents(client_options(service_url, None, given), admin.on_behalf_of)
