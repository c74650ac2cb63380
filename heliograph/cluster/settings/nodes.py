"""Settings that parts have on one node only: ``[nodes.NAME.bookie]`` and its siblings in the configuration file.

NAME is the address of the Ray node, its host name, or what its label ``heliograph.io/host`` says. A part finds the
tables of its node when it starts there, so it needs no second file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.section import Section, config_error, section_of, settings_below
from heliograph.cluster.settings.sections import decided_in
from heliograph.gateway.config import GatewayConfig

Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by node, by kind of part, by setting

KINDS: Mapping[type[Any], str] = {BookieConfig: "bookie", BrokerConfig: "broker", GatewayConfig: "gateway"}
# Settings that the cluster decides for all parts of a kind, and a node may decide for its own.
_OF_NODES: Mapping[str, frozenset[str]] = {
    "bookie": frozenset({"host", "port", "rack", "journal_directories", "data_directories"}),
    "broker": frozenset({"host", "port", "tls_port"}),
    "gateway": frozenset({"host", "port"}),
}
DIRECTORIES = ("journal_directories", "data_directories")
_SECTIONS = {name: section_of(kind, decided_in(name).keys() - _OF_NODES[name]) for kind, name in KINDS.items()}


def check_nodes(nodes: Tables) -> None:
    """Check the names and types of all nodes' settings.

    Raises:
        InvalidConfigError: a kind of part or a setting is unknown or has the wrong type; names it in full.
    """
    for node, tables in nodes.items():
        for kind, values in tables.items():
            if kind not in _SECTIONS:
                raise InvalidConfigError(
                    f"nodes.{node}.{kind} is no kind of part", field=f"nodes.{node}", limit=", ".join(_SECTIONS)
                )
            _read(f"nodes.{node}.{kind}.", _SECTIONS[kind], values)


def without_directories(nodes: Tables) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the tables without the directories of bookies, for one that was moved and has its own."""
    return {
        node: {
            kind: {name: value for name, value in values.items() if name not in DIRECTORIES}
            for kind, values in tables.items()
        }
        for node, tables in nodes.items()
    }


def on_node(config: Any, names: Sequence[str], nodes: Tables) -> Any:
    """Return the configuration that a part has on a node.

    Args:
        config: of the part, as it is on nodes without a table.
        names: of the node.

    Raises:
        InvalidConfigError: a setting is out of its limits.
    """
    kind = KINDS.get(type(config))
    for name in names:
        values = nodes.get(name, {}).get(kind or "")
        if kind is not None and values:
            config = _overlaid(config, _read(f"nodes.{name}.{kind}.", _SECTIONS[kind], values))
    return config


def _read(prefix: str, section: type[Section], values: Mapping[str, Any]) -> Section:
    try:
        return section(**values)
    except ValidationError as error:
        raise config_error(error, [name for name, _ in settings_below(section, prefix)], prefix) from None


def _overlaid(config: Any, section: Section) -> Any:
    changed: dict[str, Any] = {}
    for name in section.model_fields_set:
        value = getattr(section, name)
        changed[name] = _overlaid(getattr(config, name), value) if isinstance(value, Section) else value
    if isinstance(config, BookieConfig):  # several bookies may share the disks of a node
        for name, folder in (("journal_directories", "journal"), ("data_directories", "ledgers")):
            if name in changed:
                changed[name] = tuple(Path(disk) / config.bookie_id / folder for disk in changed[name])
    return replace(config, **changed)
