"""Sections of the cluster's configuration, one for each kind of part, one for the ledger clients, one for who may do
what, and one for the ZooKeeper endpoint.

A section holds the settings of the part's own configuration class but those that the cluster decides, which that class
says.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.auth.config import AuthConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.section import Section, SettingScope
from heliograph.cluster.logs.config import LogsConfig
from heliograph.gateway.config import GatewayConfig
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.etcd_member.config import EtcdConfig

_PARTS: Mapping[str, type[Any]] = {
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
SECTIONS: Mapping[str, Section] = {
    name: Section(part, f"{name}.", SettingScope.CLUSTER) for name, part in _PARTS.items()
}


def lifted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Move tables that are named as a section to below ``sections``.

    ``gateway`` and ``auditor`` are a section when they are tables, and the cluster's switches otherwise.

    Raises:
        InvalidConfigError: another section is no table.
    """
    for name in SECTIONS.keys() - SWITCHES:
        if not isinstance(values.get(name, {}), Mapping):
            raise InvalidConfigError(f"{name} is a section: give its settings as a table", field=name)
    tables = {name: value for name, value in values.items() if name in SECTIONS and isinstance(value, Mapping)}
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
