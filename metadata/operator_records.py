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


@dataclass(frozen=True, slots=True)
class RestoredMark:
    """The metadata came out of a backup that no operator has accepted: no ledger that it does not name is deleted.

    ``backup_ms`` is the time of the backup, ``restored_ms`` that of the restore, in milliseconds since the epoch.
    """

    backup_ms: int
    restored_ms: int


@dataclass(frozen=True, slots=True)
class LedgerIdBase:
    """Ledger ids above ``base`` only are given: those up to it may have been given by an earlier store."""

    base: int
