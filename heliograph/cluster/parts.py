"""The parts of a cluster: name, place and settings of each actor, in the order in which they start. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from heliograph.base.errors import InvalidConfigError, ResourceError
from heliograph.base.peer import NODE, is_loopback
from heliograph.client.discovery import (
    AUDITOR,
    BOOKIE_PREFIX,
    BROKER_PREFIX,
    GATEWAY,
    METADATA,
    METADATA_PREFIX,
    OPERATOR,
    REPLICATOR_PREFIX,
)
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.settings.nodes import disks_in
from heliograph.metadata.etcd_member.membership import PORTS_OF_A_MEMBER, EtcdMembership

PORTS_OF_A_BROKER = 2  # plain and TLS, next to each other with Pulsar's own numbers


@dataclass(frozen=True, slots=True)
class Part:
    """One actor that the cluster has or is to have."""

    name: str
    kind: str  # one of START_ORDER
    place: labels.Place = field(default_factory=labels.Place)
    port: int = 0
    tls_port: int = 0
    rack: str = "default"
    directory: Path | None = None
    duties: str = "all"  # of an auditor or a replicator
    journal_directories: tuple[Path, ...] = ()  # of a bookie that was moved, instead of the configured ones
    data_directories: tuple[Path, ...] = ()
    membership: EtcdMembership | None = None  # of an etcd member

    @property
    def shown(self) -> str:
        """Facts of the part that never change, for Ray's pages: its rack, and its port if that is configured."""
        rack = f"rack {self.rack}" if self.kind == "bookie" else ""
        port = f"port {self.port}" if self.port else ""
        return ", ".join(filter(None, (rack, port)))


def parts_of(config: ClusterConfig, nodes: Sequence[labels.Node], known: Mapping[str, labels.Place]) -> list[Part]:
    """Return every actor of the cluster in starting order, without a metadata store if ``metadata_url`` is set.

    Args:
        nodes: Ray's living nodes.
        known: where parts with data were placed before.

    Raises:
        ResourceError: no node has a label that one of the parts needs.
    """
    bookies = [f"{BOOKIE_PREFIX}{number}" for number in range(1, config.bookies + 1)]
    stored = [*bookies, METADATA] if config.has_embedded_store else bookies
    anywhere = labels.Place()
    places: Mapping[str, labels.Place] = dict.fromkeys(stored, anywhere)
    if config.require_labels and labels.is_single_unlabelled(nodes, known):
        places = dict.fromkeys(stored, labels.Place(address=nodes[0].address))
        kept = {name: place.disk for name, place in known.items()}
        places = {name: replace(place, disk=kept.get(name, "")) for name, place in places.items()}
        places = labels.on_disks(places, nodes, known, disks_in(config.nodes))
    elif config.require_labels:
        places = labels.storage_places(stored, nodes, known)
        places = labels.on_disks(places, nodes, known, disks_in(config.nodes))
        anywhere = labels.Place(labels.broker_selector(nodes))
    parts = []
    if config.has_embedded_store:
        parts.append(
            Part(METADATA, "metadata", places[METADATA], config.metadata_port, directory=config.data_root / METADATA)
        )
    if config.has_etcd_members:
        members = labels.member_places(
            config.metadata_members,
            nodes,
            known,
            is_local=is_loopback(config.host),
            require_labels=config.require_labels,
        )
        parts += [part_named(name, config, place) for name, place in members.items()]
    parts += [part_named(name, config, places[name], rack_of(places[name], nodes)) for name in bookies]
    brokers = [f"{BROKER_PREFIX}{number}" for number in range(1, config.brokers + 1)]
    parts += [part_named(name, config, anywhere) for name in brokers]
    if config.auditor:
        found = replicators({name: places[name] for name in bookies})
        workers = (
            found if len(found) > 1 else []
        )  # for bookies in one place, the process of the auditor does their work
        parts.append(Part(AUDITOR, "auditor", anywhere, duties="audit" if workers else "all"))
        parts += workers
    if config.gateway:
        parts.append(Part(GATEWAY, "gateway", anywhere, config.gateway_port))
    if config.operator:
        parts.append(Part(OPERATOR, "operator", anywhere))
    return parts


def part_named(name: str, config: ClusterConfig, place: labels.Place, rack: str = "default") -> Part:
    """Return the part that is the etcd member, bookie or broker of this name."""
    number = int(name.rpartition("-")[2])
    if name.startswith(METADATA_PREFIX):
        port = _numbered(config.etcd_port, number, PORTS_OF_A_MEMBER)
        return Part(name, "metadata", place, port, directory=config.data_root / name)
    if name.startswith(BOOKIE_PREFIX):
        port = _numbered(config.bookie_port, number, 1)
        root = Path(place.disk) if place.disk else config.data_root
        return Part(name, "bookie", place, port, rack=rack, directory=root / name)
    assert name.startswith(BROKER_PREFIX), "only etcd members, bookies and brokers are numbered"
    port = _numbered(config.broker_port, number, PORTS_OF_A_BROKER)
    return Part(name, "broker", place, port, _numbered(config.broker_tls_port, number, PORTS_OF_A_BROKER))


def require_machines(parts: Sequence[Part], copies: int) -> None:
    """Check that the bookies are on as many machines as an entry has copies, or on one each.

    Raises:
        ResourceError: they are on fewer.
    """
    bookies = [part for part in parts if part.kind == "bookie"]
    machines = {part.place.address or str(part.place) for part in bookies}
    if (missing := min(copies, len(bookies)) - len(machines)) > 0:
        raise ResourceError(
            f"{missing} more machines with bookies, because each entry has {copies} copies; after a minute, several "
            "of them share a machine",
            field="labels",
        )


def check_reach(config: ClusterConfig, parts: Sequence[Part], nodes: Sequence[labels.Node]) -> None:
    """Check that parts on several machines do not listen on loopback.

    Raises:
        InvalidConfigError: they would not reach each other; names two nodes.
    """
    if not is_loopback(config.host):
        return
    used = {node.address for node in nodes for part in parts if part.place.admits(node)}
    if len(used) > 1:
        first, second = sorted(used)[:2]
        raise InvalidConfigError(
            f"parts may run on {first} and on {second}, and would not reach each other at {config.host}: set host to "
            f"{NODE!r}, so that each listens on its own node's address",
            field="host",
            limit=f"{NODE!r} or 0.0.0.0, with several machines",
        )


def is_shared(part: Part, config: ClusterConfig, nodes: Sequence[labels.Node], address: str) -> bool:
    """Return whether a part is to be in the process that parts share.

    Args:
        nodes: Ray's living nodes.
        address: of the node that has this process; what can run elsewhere is not in it, nor are etcd members, which are
            processes of their own.
    """
    if not config.shares_process or part.membership is not None:
        return False
    is_only_there = part.place.address == address or len(nodes) == 1
    return is_only_there and any(node.address == address and part.place.admits(node) for node in nodes)


def rack_of(place: labels.Place, nodes: Sequence[labels.Node]) -> str:
    """Return the rack of the first living node of a place."""
    racks = [node.labels.get(labels.RACK, "default") for node in nodes if place.admits(node)]
    return racks[0] if racks else "default"


def replicators(bookies: Mapping[str, labels.Place]) -> list[Part]:
    """Return a replication worker for each place of bookies, named after its first one."""
    first: dict[str, Part] = {}
    for name, place in bookies.items():
        replicator = f"{REPLICATOR_PREFIX}{name.removeprefix(BOOKIE_PREFIX)}"
        first.setdefault(str(place), Part(replicator, "replicator", place, duties="repair"))
    return list(first.values())


def _numbered(first: int, number: int, step: int) -> int:
    """Return the port of a numbered part, of which the first has the port ``first``; 0 stays 0, a free one."""
    return first and first + step * (number - 1)
