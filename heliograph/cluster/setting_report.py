"""What each setting of a configuration is: its value, where that comes from, its default and its meaning."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from heliograph.base.home import ClusterHome
from heliograph.base.section import Section, limits_of, settings_below, unknown_setting
from heliograph.base.settings import default_of, setting_of, unit_of
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.settings.file import FILE_NAME, NOT_IN_FILES, SettingsFile, plain
from heliograph.cluster.settings.location import PREFIX
from heliograph.cluster.settings.sections import SECTIONS, SWITCHES

FILE = "config_file"  # the setting whose value is kept of the last start, beside those that no file has
FOUND_BY = ("home", "namespace")  # settings that lead to the file, and so are not in it
# What the first start writes although it was not given: a release with other defaults starts the same cluster.
KEPT = ("bookies", "brokers", "ensemble_size", "write_quorum", "ack_quorum")


@dataclass(frozen=True, slots=True)
class SettingReport:
    """One setting. ``value`` and ``default`` are as TOML has them; None: not set.

    Attributes:
        origin: ``environment``, ``file`` or ``default``.
        is_live: whether ``helio config set`` changes it in brokers that run.
    """

    name: str
    value: Any
    origin: str
    default: Any
    unit: str
    limit: str
    meaning: str
    variable: str
    is_live: bool


def reports(config: ClusterConfig, file: SettingsFile) -> list[SettingReport]:
    """Return all settings by name, those of the cluster first.

    Args:
        file: the one that the configuration was read from.
    """
    in_file = file.values()
    return [_report(config, in_file, name, *declared) for name, declared in _declared(config)]


def report_of(name: str, config: ClusterConfig, file: SettingsFile) -> SettingReport:
    """Return one setting; those of brokers are found without ``broker.``, too.

    Raises:
        InvalidConfigError: there is none of that name; names the nearest.
    """
    found = {report.name: report for report in reports(config, file)}
    for full in (name, f"broker.{name}"):
        if full in found:
            return found[full]
    raise unknown_setting(name, found)


def given(config: ClusterConfig) -> dict[str, Any]:
    """Return what the file of a cluster's first start has to hold: settings that were given, but for secrets."""
    derived = _derived(config)
    names = {name for name in _set_names(config) if name.partition(".")[0] not in derived} | set(KEPT)
    values = {name: _value(config, name) for name in names}
    for switch in SWITCHES & names:  # the file has either the switch or the table
        if values[switch] and any(name.startswith(f"{switch}.") for name in names):
            del values[switch]
    return {
        name: plain(value) for name, value in values.items() if value is not None and not isinstance(value, SecretStr)
    }


def given_file(config: ClusterConfig) -> dict[str, str]:
    """Return the file that was given in place of the cluster's own, as a setting; empty: none was."""
    return {} if config.config_file is None else {FILE: str(config.config_file)}


def of_last_start(namespace: str, home: ClusterHome) -> ClusterConfig:
    """Return the configuration that the cluster's next start has, without flags of its own.

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


def _derived(config: ClusterConfig) -> set[str]:
    """Return the names that no file has, and those that ``tls = "auto"`` decides."""
    names = {*NOT_IN_FILES, *FOUND_BY}
    if config.tls == "auto":
        names |= {name for name in type(config).model_fields if name.endswith("_file") or name == "gateway_tls"}
    return names


def _set_names(config: ClusterConfig) -> Iterator[str]:
    yield from config.model_fields_set
    for name in SECTIONS:
        section: Section = getattr(config.sections, name)
        yield from _set_below(section, f"{name}.")


def _set_below(section: Section, prefix: str) -> Iterator[str]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, Section):
            yield from _set_below(value, f"{prefix}{name}.")
        elif name in section.model_fields_set:
            yield prefix + name


def _declared(config: ClusterConfig) -> Iterator[tuple[str, tuple[Any, str, str, str, bool]]]:
    """Yield each setting's name with its default, unit, limits, meaning, and whether it changes live."""
    for name, item in type(config).model_fields.items():
        if name in (*NOT_IN_FILES, *FOUND_BY):
            continue
        default = item.get_default(call_default_factory=True, validated_data={})
        yield name, (default, unit_of(name), limits_of(item), item.description or "", False)
    for section, model in SECTIONS.items():
        for name, declared in settings_below(model, f"{section}."):
            meaning, unit, default = setting_of(declared), unit_of(name), default_of(declared)
            default = () if default is MISSING else default  # the cluster decides it unless it is given
            yield name, (default, unit, meaning.limit(unit), meaning.meaning, meaning.is_live)


def _report(
    config: ClusterConfig,
    in_file: Mapping[str, Any],
    name: str,
    default: Any,
    unit: str,
    limit: str,
    meaning: str,
    is_live: bool,
) -> SettingReport:
    variable = PREFIX + name.upper().replace(".", "__")
    value = _value(config, name)
    origin = "environment" if variable in os.environ else "file" if _has(in_file, name) else "default"
    shown = "(set)" if isinstance(value, SecretStr) else plain(value)
    return SettingReport(name, shown, origin, plain(default), unit, limit, meaning, variable, is_live)


def _has(in_file: Mapping[str, Any], name: str) -> bool:
    return name in in_file or any(each.startswith(f"{name}.") for each in in_file if name not in SWITCHES)


def _value(config: ClusterConfig, name: str) -> Any:
    first, *rest = name.split(".")
    value: Any = getattr(config.sections, first) if rest else getattr(config, first)
    for part in rest:
        value = getattr(value, part)
    return value
