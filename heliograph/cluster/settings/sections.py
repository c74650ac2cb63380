"""Sections of the cluster's configuration, one for each kind of part, one for the ledger clients, one for who may do
what, and one for the ZooKeeper endpoint.

A section holds the settings of the part's own configuration class but those that the cluster decides.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.auth.config import AuthConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.section import Section, section_of, settings_below
from heliograph.cluster.logs.config import LogsConfig
from heliograph.gateway.config import GatewayConfig
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.etcd_member.config import EtcdConfig

PARTS: Mapping[str, type[Any]] = {
    "bookie": BookieConfig,
    "broker": BrokerConfig,
    "auditor": AuditorConfig,
    "gateway": GatewayConfig,
    "ledger": LedgerClientConfig,
    "auth": AuthConfig,
    "metadata": ServerLimits,
    "etcd": EtcdConfig,
    "endpoint": EndpointLimits,
    "logs": LogsConfig,
}
SWITCHES = {"auditor", "gateway"}  # sections that have the name of a setting of the cluster
# Settings of the parts that the cluster decides by a setting of its own that has the same name.
SHARED = (
    "host",
    "cluster_secret",
    "session_timeout_ms",
    "max_message_bytes",
    "lost_bookie_delay_ms",
    "audit_interval_ms",
    "open_ledger_grace_ms",
    "ensemble_size",
    "write_quorum",
    "ack_quorum",
)
# Settings of the parts that the cluster decides otherwise, and by what.
DECIDED: Mapping[str, Mapping[str, str]] = {
    "bookie": {
        "bookie_id": "the cluster setting bookies",
        "port": "the bookie, which takes a free port",
        "rack": "the node label heliograph.io/rack",
        "disk": "the disks in the table [nodes.NAME.bookie]",
        "tls": "the cluster settings internal_tls_certificate_file, internal_tls_key_file and internal_tls_ca_file",
    },
    "broker": {
        "broker_id": "the cluster setting brokers",
        "actor_name": "the cluster setting brokers",
        "ray_namespace": "the cluster setting namespace",
        "port": "the cluster setting broker_port",
        "tls_port": "the cluster setting broker_tls_port",
        "tls": "the cluster settings tls_certificate_file, tls_key_file and tls_ca_file",
        "tls_only": "the cluster setting tls_only",
        "ledger": "the section ledger",
        "auth": "the section auth",
    },
    "auditor": {
        "identity": "the cluster, which has one auditor",
        "duties": "the nodes: where several have bookies, each of them has a replication worker",
        "ledger": "the section ledger",
    },
    "gateway": {
        "port": "the cluster setting gateway_port",
        "ray_namespace": "the cluster setting namespace",
        "service_urls": "Ray, through which the gateway finds the brokers",
        "metadata_url": "the cluster setting metadata_url",
        "dashboard_url": "the cluster setting dashboard_port",
        "tls_certificate_file": "the cluster settings gateway_tls and tls_certificate_file",
        "tls_key_file": "the cluster settings gateway_tls and tls_key_file",
        "tls_ca_file": "the cluster settings gateway_tls and tls_ca_file",
        "tls_require_client_certificate": "the cluster settings gateway_tls and tls_require_client_certificate",
        "broker_tls_enabled": "the cluster setting tls_certificate_file",
        "broker_ca_file": "the cluster settings tls_trust_file and tls_ca_file",
        "broker_certificate_file": "the cluster setting tls_certificate_file",
        "broker_key_file": "the cluster setting tls_key_file",
        "auth": "the section auth",
    },
    "ledger": {
        "writer.entry_bytes_max": "the cluster setting max_message_bytes",
        "tls": "the cluster settings internal_tls_certificate_file, internal_tls_key_file and internal_tls_ca_file",
    },
    "auth": {},
    "metadata": {},
    "etcd": {},
    "endpoint": {"container_check_ms": "the option --container-check-seconds of helio metadata serve"},
    "logs": {"directory": "the cluster setting home"},
}


def decided_in(section: str) -> dict[str, str]:
    """Return the settings of a part that its section does not have, each with what decides it."""
    shared = {item.name for item in fields(PARTS[section])}.intersection(SHARED)
    return {name: f"the cluster setting {name}" for name in shared} | dict(DECIDED[section])


SECTIONS: Mapping[str, type[Section]] = {name: section_of(part, decided_in(name)) for name, part in PARTS.items()}
_fields: dict[str, Any] = {name: (section, Field(default_factory=section)) for name, section in SECTIONS.items()}
Sections: type[BaseModel] = create_model("Sections", __config__=ConfigDict(extra="forbid", frozen=True), **_fields)


def with_directories(bookie: Section, bookie_id: str, directory: Path, *, is_alone: bool = False) -> Section:
    """Return the section of bookies with the directories of one of them.

    A directory that the section names holds one directory for each bookie, with its journal or ledgers in it.

    Args:
        directory: where the bookie keeps what the section names no directory for.
        is_alone: the bookie keeps all there, whatever the section names.
    """
    placed = {}
    for name, leaf in (("journal_directories", "journal"), ("data_directories", "ledgers")):
        roots = [root.expanduser().absolute() / bookie_id for root in getattr(bookie, name)]
        roots = [directory] if is_alone else roots or [directory]
        placed[name] = tuple(root / leaf for root in roots)
    return bookie.model_copy(update=placed)


def section_settings() -> list[str]:
    return [full for name, section in SECTIONS.items() for full, _ in settings_below(section, f"{name}.")]


def lifted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Move tables that are named as a section to below ``sections``.

    ``gateway`` and ``auditor`` are a section when they are tables, and the cluster's switches otherwise.

    Raises:
        InvalidConfigError: another section is no table.
    """
    for name in PARTS.keys() - SWITCHES:
        if not isinstance(values.get(name, {}), Mapping):
            raise InvalidConfigError(f"{name} is a section: give its settings as a table", field=name)
    tables = {name: value for name, value in values.items() if name in PARTS and isinstance(value, Mapping)}
    rest = {name: value for name, value in values.items() if name not in tables}
    return {**rest, "sections": tables} if tables else rest


def from_file(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file.

    Raises:
        InvalidConfigError: the file cannot be read, or is no TOML; says where.
    """
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise InvalidConfigError(f"{path} cannot be read: {error.strerror}", field="config_file") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidConfigError(f"{path} is not valid TOML: {error}", field="config_file") from error


def check_not_decided(tables: Mapping[str, Any]) -> None:
    """Check that sections hold no setting that the cluster decides.

    Raises:
        InvalidConfigError: one does; names the setting and what decides it.
    """
    for section, table in tables.items():
        for name, by in decided_in(section).items():
            if _holds(table, name.split(".")):
                full = f"{section}.{name}"
                raise InvalidConfigError(f"{full} cannot be set: it is decided by {by}", field=full)


def _holds(table: Any, path: Collection[str]) -> bool:
    for name in path:
        if not isinstance(table, Mapping) or name not in table:
            return False
        table = table[name]
    return True
