"""Each setting of a configuration with its value, the source of the value, its default and its meaning."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from heliograph.base.home import ClusterHome
from heliograph.base.section import Declared, unknown_setting
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.settings.file import NOT_IN_FILES, SettingsFile, flat, is_path, plain
from heliograph.cluster.settings.location import FILE_NAME, PREFIX
from heliograph.cluster.settings.sections import SWITCHES
from heliograph.cluster.settings.tls import INTERNAL_TLS

FILE = "config_file"  # the setting whose value is kept of the last start, beside those that no file has
FOUND_BY = ("home", "namespace")  # settings that lead to the file, and so are not in it
# Settings that the first start writes although nobody gave them, so that later defaults do not change the cluster.
KEPT = ("bookies", "brokers", "ensemble_size", "write_quorum", "ack_quorum")
HIDDEN = "(set)"  # shown in place of a secret


@dataclass(frozen=True, slots=True)
class SettingReport:
    """One setting. ``value`` and ``default`` are as TOML has them; None: not set.

    Attributes:
        origin: ``environment``, ``file`` or ``default``.
    """

    name: str
    value: Any
    origin: str
    default: Any
    declared: Declared


def reports(config: ClusterConfig, file: SettingsFile) -> list[SettingReport]:
    """Return all settings by name, first the cluster's own.

    Args:
        file: the file from which the configuration was read.
    """
    in_file, given = file.values(), dict(flat(config.sections))
    found = []
    for declared in config.declared():
        name = declared.name
        if name in (*NOT_IN_FILES, *FOUND_BY):
            continue
        value = given.get(name, declared.default) if "." in name else getattr(config, name)
        is_secret = isinstance(value, SecretStr) or (declared.setting.is_secret and not is_path(value))
        shown = HIDDEN if value and is_secret else plain(value)
        is_in_file = name in in_file or any(each.startswith(f"{name}.") for each in in_file if name not in SWITCHES)
        origin = "environment" if declared.variable(PREFIX) in os.environ else "file" if is_in_file else "default"
        found.append(SettingReport(name, shown, origin, plain(declared.default), declared))
    return found


def report_of(name: str, config: ClusterConfig, file: SettingsFile) -> SettingReport:
    """Return one setting; settings of brokers are found without ``broker.``, too.

    Raises:
        InvalidConfigError: there is none of that name; names the nearest.
    """
    found = {report.name: report for report in reports(config, file)}
    for full in (name, f"broker.{name}"):
        if full in found:
            return found[full]
    raise unknown_setting(name, found)


def given(config: ClusterConfig) -> dict[str, Any]:
    """Return the settings that the file of a cluster's first start holds: all given settings except secrets."""
    derived = {*NOT_IN_FILES, *FOUND_BY}
    if config.has_own_authority:  # which decides these
        derived |= set(INTERNAL_TLS)
    if config.tls == "auto":
        derived |= {name for name in type(config).model_fields if name.endswith("_file") or name == "gateway_tls"}
    own = {name: getattr(config, name) for name in (config.model_fields_set - derived).union(KEPT)}
    values = own | dict(flat(config.sections))
    for switch in SWITCHES & own.keys():  # the file has either the switch or the table
        if values[switch] and any(name.startswith(f"{switch}.") for name in values):
            del values[switch]
    return {
        name: plain(value) for name, value in values.items() if value is not None and not isinstance(value, SecretStr)
    }


def given_file(config: ClusterConfig) -> dict[str, str]:
    """Return the file that was given in place of the cluster's own, as a setting; empty: none was."""
    return {} if config.config_file is None else {FILE: str(config.config_file)}


def of_last_start(namespace: str, home: ClusterHome) -> ClusterConfig:
    """Return the configuration of the cluster's next start if it is given no flags.

    Where the home has no file, the last start's is read again, and its flags hold for what that file does not set.

    Raises:
        InvalidConfigError: a file cannot be read, or has a setting that is unknown or out of range.
    """
    location: dict[str, Any] = {"namespace": namespace, "home": home.directory}
    if SettingsFile(home.directory / FILE_NAME).exists():
        return ClusterConfig(**location)
    started = home.started_with() or {}
    path = started.pop(FILE, None)
    file = SettingsFile(Path(path)) if path else None
    in_file = {} if file is None else file.values()
    tables: dict[str, Any] = {FILE: path} if in_file else {}
    for name, value in started.items():
        if name not in in_file:
            *sections, own = name.split(".")
            table = tables
            for section in sections:
                table = table.setdefault(section, {})
            table[own] = value
    return ClusterConfig(**location, **tables)
