"""Records of what operators set for parts of the cluster while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class BookieRack:
    """The rack that an operator set for a bookie; it holds instead of the registered one. ``group`` and ``hostname``
    are notes."""

    bookie_id: str
    rack: str
    group: str = "default"
    hostname: str = ""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings of all brokers that were changed while they run: values as text by the settings' full names."""

    values: dict[str, str] = field(default_factory=dict)
