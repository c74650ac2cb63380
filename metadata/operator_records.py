"""Records of what operators set for parts of the cluster while it runs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any


@dataclass(frozen=True, slots=True)
class BookieRack:
    """The rack that an operator set for a bookie; it overrides the registered one. ``group`` and ``hostname`` are
    notes."""

    bookie_id: str
    rack: str
    group: str = "default"
    hostname: str = ""


@dataclass(frozen=True, slots=True)
class BrokerSettings:
    """The settings that were changed in all running brokers: values as text, by the settings' full names."""

    values: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RevokedToken:
    """A token that was revoked before its end. ``token_id`` is its claim ``jti``; times are in milliseconds since the
    epoch, ``expires_ms`` is None if the token has no end."""

    token_id: str
    revoked_ms: int
    expires_ms: int | None = None


@dataclass(frozen=True, slots=True)
class RestoredMark:
    """The metadata was restored from a backup that no operator has accepted: ledgers that it does not name are not
    deleted.

    ``backup_ms`` is the time of the backup, ``restored_ms`` that of the restore, in milliseconds since the epoch.
    """

    backup_ms: int
    restored_ms: int


@dataclass(frozen=True, slots=True)
class LedgerIdBase:
    """Only ledger ids above ``base`` are assigned: an earlier store may have assigned the others."""

    base: int


class PartState(Enum):
    """Whether a part should run. ``heliograph/cluster/operator/roster.py`` has the moves."""

    WANTED = "wanted"
    HELD = "held"
    LEAVING = "leaving"
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class RosterPart:
    """A bookie or broker that the cluster is to have, and where: nodes with all labels of ``selector``, at ``address``
    alone unless that is empty. ``disk`` is the directory that a bookie has alone; empty: that of the settings.

    ``rack`` is the last known rack of its node. ``is_held``: it was stopped on request, and only ``helio up`` starts
    it. ``is_leaving``: it is being removed. For a bookie that was moved, the directories override the configured ones;
    otherwise both are empty.
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

    @property
    def state(self) -> PartState:
        """The state, derived from the two fields that earlier releases know."""
        if self.is_leaving:
            return PartState.LEAVING
        return PartState.HELD if self.is_held else PartState.WANTED


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """A restart of parts one after the other. ``left`` begins with the part that is being restarted."""

    left: tuple[str, ...]
    done: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RosterMember:
    """An etcd member that the cluster runs itself. ``host`` is its address for others, ``place`` has the labels and the
    address of its node; none of them changes while it is a member."""

    name: str
    host: str
    client_port: int
    place: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Roster:
    """The bookies and brokers that the cluster is to have. The operator keeps it.

    Attributes:
        wanted_bookies, wanted_brokers: the wanted numbers; parts for which no node has room are not in ``parts``.
        configured_bookies, configured_brokers: the numbers that settings or ``helio scale`` last requested; 0: not
            known. Parts that have left since are no longer wanted.
        joining_bring_brokers: whether nodes that join bring brokers of their own, since their number was not chosen.
            False in rosters of earlier releases, in which they brought none.
        last_bookie: the highest number of a bookie so far; numbers are never reused.
        nodes: addresses of nodes that have received parts for their labels.
        first_nodes: the nodes of the first start. They have no brokers of their own: brokers run on any labelled node.
        leaving_nodes: addresses of nodes that were asked to leave.
        disks: ``address directory`` of disks that have received a bookie.
        failure: why the latest rolling restart stopped before its end; empty if it did not.
        members: the etcd members; empty if the cluster runs none, or an earlier release wrote the roster.
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
    members: tuple[RosterMember, ...] = ()
    joining_bring_brokers: bool = False


class WishKind(Enum):
    """The kinds of wishes.

    ``SCALE``: another number of parts; ``DECOMMISSION``: a bookie less; ``KEEP``: that it stays after all; ``LEAVE``: a
    node less; ``JOIN``: that a node stays and has its parts; ``MOVE``, ``HOLD`` and ``PLACE``: that a bookie is copied
    elsewhere, is stopped, or is started where it was copied by hand; ``REPLACE``: that it starts on empty directories;
    ``RECOVER``: that its copies are made again now; ``RESTART``: a rolling restart; ``MEMBERS``: another number of etcd
    members. A release reads no wish of a kind that it does not know.
    """

    SCALE = "scale"
    DECOMMISSION = "decommission"
    KEEP = "keep"
    LEAVE = "leave"
    JOIN = "join"
    MOVE = "move"
    HOLD = "hold"
    PLACE = "place"
    REPLACE = "replace"
    RECOVER = "recover"
    RESTART = "restart"
    MEMBERS = "members"


class WishState(Enum):
    """The progress of a wish. ``heliograph/cluster/operator/wishes.py`` has the moves."""

    ASKED = "asked"
    ACCEPTED = "accepted"
    DONE = "done"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Wish:
    """A requested change of the cluster. Its caller writes it; from then on only the operator changes it.

    Attributes:
        subject: the part, the address of the node, ``bookies``, ``brokers``, ``metadata`` or ``parts``; each has one.
        arguments: of the change, as text.
        asked_ms: when it was requested, since the epoch; it distinguishes the wishes of one subject.
        ended_ms: when it was carried out or refused; 0 before.
        note: what it waits for, what was done, or why it is refused.
        outcome: its result for programs, with the next step; a refused wish has ``error`` and ``field``.
    """

    kind: WishKind
    subject: str
    arguments: dict[str, str] = field(default_factory=dict)
    asked_ms: int = 0
    state: WishState = WishState.ASKED
    note: str = ""
    outcome: dict[str, Any] = field(default_factory=dict)
    ended_ms: int = 0


@dataclass(frozen=True, slots=True)
class PartReport:
    """One part in the report of a cluster.

    Attributes:
        state: ``ALIVE``: it answers; ``MISSING``: nothing runs it; else Ray's state of its actor. Empty: not known.
        since_ms: since when it has been in this state, and well or not; milliseconds since the epoch.
        note: its problem; empty if there is none. It is no fault if the part ``is_leaving`` on request, or if
            ``is_warning``: then it warns of a coming problem.
        address: where it serves; empty while it does not serve.
        home: address of its node; empty: not known, or the parts are in one process.
        restarts: how often Ray restarted its process.
        version: of its program; empty: not known. ``installed`` is the version that its node has now, and ``formats``
            are the newest formats that it writes.
        open_files_max: of its process; below 0: no limit, or not known.
        skew_ms: its clock minus the clock of the reporter, to within half of ``round_ms``, the time of the call.
        seen_ms: when a bookie or broker was registered last; 0: never while there was a reporter. The figures of a
            bookie's disks, ``free_bytes``, ``total_bytes`` and ``used_share``, are of then.
    """

    name: str
    kind: str
    state: str = ""
    since_ms: int = 0
    note: str = ""
    is_warning: bool = False
    is_leaving: bool = False
    address: str = ""
    rack: str = ""
    home: str = ""
    pid: int | None = None
    restarts: int | None = None
    version: str = ""
    installed: str = ""
    formats: dict[str, int] = field(default_factory=dict)
    open_files_max: int = -1
    skew_ms: float = 0.0
    round_ms: float = 0.0
    seen_ms: int = 0
    free_bytes: int = 0
    total_bytes: int = 0
    used_share: float = 0.0

    @property
    def is_well(self) -> bool:
        return not self.note or self.is_leaving or self.is_warning


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One machine in the report of a cluster.

    ``state`` is ``ALIVE``, ``LEAVING``, or ``AWAY`` if parts have their place there and Ray has no such node;
    ``since_ms`` is when that was seen first, in milliseconds since the epoch.
    """

    address: str
    state: str
    since_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClusterReport:
    """A cluster at one moment, and its problems. The leading operator keeps it. -1: unknown.

    Attributes:
        identity: of the reporter; empty: the cluster has none.
        as_of_ms: when it was made, in milliseconds since the epoch; 0: there was no report yet.
        is_silent: the reporter has made no report for long; set by readers only.
        notes: lines for people about problems and changes under way.
        bookies_available, bookies_readonly, bookies_draining: ids of the registered bookies, sorted.
        full_disks: by bookie, its disks that are full or nearly full.
        ledgers_moving: ledgers with all copies, some of them on bookies that are being emptied.
        ledgers_damaged: under-replicated ledgers with entries of which no bookie has a good copy.
        publishing_notes: empty while new entries get all their copies.
        restored_backup_ms: the time of the backup that the metadata was restored from, until it is accepted; 0: none.
        topics: the topics of public/default; a partitioned topic counts once, while there are at most 1,000 names.
        nodes: the machines; empty if the parts are in one process.
        ledger_risks: as ``LedgerRisks`` has them.
    """

    identity: str = ""
    as_of_ms: int = 0
    is_silent: bool = False
    parts: tuple[PartReport, ...] = ()
    notes: tuple[str, ...] = ()
    bookies_available: tuple[str, ...] = ()
    bookies_readonly: tuple[str, ...] = ()
    bookies_draining: tuple[str, ...] = ()
    full_disks: dict[str, str] = field(default_factory=dict)
    service_urls: tuple[str, ...] = ()
    underreplicated_ledgers: int = -1
    ledgers_in_repair: int = -1
    ledgers_moving: int = -1
    ledgers_damaged: int = -1
    is_repair_paused: bool = False
    publishing_notes: tuple[str, ...] = ()
    restored_backup_ms: int = 0
    topics: int = -1
    nodes: tuple[NodeReport, ...] = ()
    ledger_risks: dict[str, int] = field(default_factory=dict)

    @property
    def is_healthy(self) -> bool:
        """Whether the reporter reports, every part serves, and no copies are known to be missing."""
        return not self.is_silent and all(part.is_well for part in self.parts) and self.underreplicated_ledgers == 0
