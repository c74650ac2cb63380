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


@dataclass(frozen=True, slots=True)
class RosterPart:
    """A bookie or broker that the cluster is to have, and where: nodes with all labels of ``selector``, at ``address``
    alone unless that is empty. ``disk`` is the directory that a bookie has alone; empty: that of the settings.

    ``rack`` is the one that its node had last. ``is_held``: it was stopped on request, and nothing starts it but
    ``helio up``. ``is_leaving``: it is being taken out. The directories of a bookie that was moved hold instead of the
    configured ones; both are empty for all others.
    """

    name: str
    selector: dict[str, str]
    address: str = ""
    rack: str = "default"
    is_held: bool = False
    is_leaving: bool = False
    journal_directories: tuple[str, ...] = ()
    data_directories: tuple[str, ...] = ()
    disk: str = ""


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """A restart of parts one after the other. ``left`` begins with the one that is being restarted."""

    left: tuple[str, ...]
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Roster:
    """The bookies and brokers that the cluster is to have. The operator keeps it.

    Attributes:
        wanted_bookies, wanted_brokers: how many; those for which no node has room are not in ``parts``.
        configured_bookies, configured_brokers: what settings or ``helio scale`` asked for last; 0: not known. Parts
            that left since are wanted no more.
        last_bookie: the highest number that a bookie was given; numbers are not given again.
        nodes: addresses of nodes that have been given parts for their labels.
        first_nodes: those of the first start. They have no brokers of their own: these run on any labelled node.
        leaving_nodes: addresses of nodes that were asked to leave.
        disks: ``address directory`` of disks that have been given a bookie.
        failure: why the latest rolling restart stopped before its end; empty if it did not.
    """

    parts: tuple[RosterPart, ...] = ()
    wanted_bookies: int = 0
    wanted_brokers: int = 0
    last_bookie: int = 0
    nodes: tuple[str, ...] = ()
    first_nodes: tuple[str, ...] = ()
    leaving_nodes: tuple[str, ...] = ()
    restart: RollingRestart | None = None
    failure: str = ""
    disks: tuple[str, ...] = ()
    configured_bookies: int = 0
    configured_brokers: int = 0


@dataclass(frozen=True, slots=True)
class OperatorReport:
    """What the operator that leads sees and does; it ends with its session.

    Attributes:
        identity: of the operator.
        notes: lines for people, what is wrong or under way.
        parts: what is wrong with a part, by its name.
        versions: of the program that each part runs, by its name.
    """

    identity: str
    notes: tuple[str, ...] = ()
    parts: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
