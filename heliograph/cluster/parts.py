"""What a cluster is made of: the name, place and settings of each actor, in the order in which they start. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from heliograph.client.discovery import AUDITOR, BOOKIE_PREFIX, BROKER_PREFIX, GATEWAY, METADATA
from heliograph.cluster import labels
from heliograph.cluster.config import ClusterConfig

PORTS_OF_A_BROKER = 2  # plain and TLS, next to each other with Pulsar's own numbers
# Kinds that start together, because most of a start is loading Python; each group needs the ones before it.
START_GROUPS = (("metadata",), ("bookie", "broker", "auditor"), ("gateway",))


@dataclass(frozen=True, slots=True)
class Part:
    """One actor that the cluster has or is to have."""

    name: str
    kind: str  # one of START_ORDER
    selector: labels.Selector = field(default_factory=dict)
    port: int = 0
    tls_port: int = 0
    rack: str = "default"
    directory: Path | None = None


def parts_of(config: ClusterConfig, nodes: Sequence[Mapping[str, str]]) -> list[Part]:
    """Return every actor of the cluster in starting order, without the embedded store if ``metadata_url`` is set.

    Args:
        nodes: the labels of Ray's living nodes.

    Raises:
        ResourceError: no node has a label that one of the parts needs.
    """
    parts = []
    if config.metadata_url is None:
        selector = labels.metadata_selector(nodes) if config.require_labels else {}
        parts.append(Part(METADATA, "metadata", selector, config.metadata_port, directory=config.data_root / METADATA))
    parts += [_bookie(number, config, nodes) for number in range(1, config.bookies + 1)]
    anywhere = labels.broker_selector(nodes) if config.require_labels else {}
    parts += [
        Part(
            f"{BROKER_PREFIX}{number}",
            "broker",
            anywhere,
            _numbered(config.broker_port, number, PORTS_OF_A_BROKER),
            _numbered(config.broker_tls_port, number, PORTS_OF_A_BROKER),
        )
        for number in range(1, config.brokers + 1)
    ]
    if config.auditor:
        parts.append(Part(AUDITOR, "auditor", anywhere))
    if config.gateway:
        parts.append(Part(GATEWAY, "gateway", anywhere, config.gateway_port))
    return parts


def _bookie(number: int, config: ClusterConfig, nodes: Sequence[Mapping[str, str]]) -> Part:
    name = f"{BOOKIE_PREFIX}{number}"
    selector = labels.bookie_selector(name, nodes) if config.require_labels else {}
    racks = [node.get(labels.RACK, "default") for node in nodes if labels.matches(selector, node)]
    return Part(
        name,
        "bookie",
        selector,
        _numbered(config.bookie_port, number, 1),
        rack=racks[0] if racks else "default",
        directory=config.data_root / name,
    )


def _numbered(first: int, number: int, step: int) -> int:
    """Return the port of a numbered part, of which the first has the port ``first``; 0 stays 0, a free one."""
    return first and first + step * (number - 1)
