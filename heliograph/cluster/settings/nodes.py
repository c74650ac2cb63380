"""Settings that parts have on one node only: ``[nodes.NAME.bookie]`` and its siblings in the configuration file.

NAME is the address of the Ray node, its host name, or what its label ``heliograph.io/host`` says; ``*`` is every node.
A part finds the tables of its node when it starts there, so it needs no second file. ``disks`` of a table for bookies
is no setting of a bookie: the operator gives each of them a bookie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.section import Section, SettingScope
from heliograph.gateway.config import GatewayConfig

Tables = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by node, by kind of part, by setting

KINDS: Mapping[type[Any], str] = {BookieConfig: "bookie", BrokerConfig: "broker", GatewayConfig: "gateway"}
DISKS = "disks"
DIRECTORIES = {"journal_directories": "journal", "data_directories": "ledgers"}  # on a disk with several bookies


def check_nodes(nodes: Tables) -> None:
    """Check the names and types of all nodes' settings.

    Raises:
        InvalidConfigError: a kind of part or a setting is unknown or has the wrong type; names it in full.
    """
    for node, tables in nodes.items():
        for kind, values in tables.items():
            if kind not in KINDS.values():
                raise InvalidConfigError(
                    f"nodes.{node}.{kind} is no kind of part", field=f"nodes.{node}", limit=", ".join(KINDS.values())
                )
            _read(node, kind, values)
            if kind == "bookie" and DISKS in values:
                _check_disks(f"nodes.{node}.bookie", values)


def disks_in(nodes: Tables) -> dict[str, tuple[str, ...]]:
    """Return the disks of nodes by their names; a node whose table names directories of bookies has none."""
    found: dict[str, tuple[str, ...]] = {}
    for node, tables in nodes.items():
        values = tables.get("bookie", {})
        if DISKS in values:
            found[node] = tuple(str(Path(disk).expanduser()) for disk in values[DISKS])
        elif any(name in values for name in DIRECTORIES):
            found[node] = ()
    return found


def _check_disks(table: str, values: Mapping[str, Any]) -> None:
    disks = values[DISKS]
    if not isinstance(disks, list | tuple) or not all(isinstance(disk, str) for disk in disks):
        raise InvalidConfigError(f"{table}.{DISKS} is no list of directories", field=f"{table}.{DISKS}")
    roots = [Path(disk).expanduser() for disk in disks]
    if not all(root.is_absolute() for root in roots) or len({*roots}) < len(roots):
        raise InvalidConfigError(
            f"{table}.{DISKS} has to name whole paths, each once", field=f"{table}.{DISKS}", limit="absolute paths"
        )
    for name in DIRECTORIES:
        if name in values:
            raise InvalidConfigError(
                f"{table} has {DISKS} and {name}: with {DISKS}, each disk has a bookie with journal and ledgers; with "
                f"{name}, a bookie uses all of them",
                field=f"{table}.{name}",
            )


def without_directories(nodes: Tables) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the tables without directories, for a bookie that was moved and has directories of its own."""
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
            config = _overlaid(config, _read(name, kind, values))
    return config


def _read(node: str, kind: str, values: Mapping[str, Any]) -> dict[str, Any]:
    part = next(part for part, name in KINDS.items() if name == kind)
    own = {name: value for name, value in values.items() if name != DISKS or kind != "bookie"}
    return Section(part, f"nodes.{node}.{kind}.", SettingScope.NODE).read(own)


def _overlaid(config: Any, values: Mapping[str, Any]) -> Any:
    changed = {
        name: _overlaid(getattr(config, name), value) if isinstance(value, Mapping) else value
        for name, value in values.items()
    }
    if isinstance(config, BookieConfig):  # several bookies may share the disks of a node
        for name, folder in DIRECTORIES.items():
            if name in changed and config.disk:
                del changed[name]
            elif name in changed:
                changed[name] = tuple(Path(disk) / config.bookie_id / folder for disk in changed[name])
    return replace(config, **changed)
