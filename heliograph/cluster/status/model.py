"""What is known of a cluster at one moment. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from heliograph.base.version import heliograph_version


@dataclass(slots=True)
class ActorStatus:
    """One actor. ``note`` says what is wrong, or that the actor ``is_leaving`` on request; else it is empty."""

    name: str
    kind: str
    state: str = "UNKNOWN"
    pid: int | None = None
    restarts: int | None = None
    address: str = ""
    note: str = ""
    is_leaving: bool = False
    version: str = ""  # of the program; empty: unknown
    is_warning: bool = False  # the note is of something that will be wrong soon


@dataclass(slots=True)
class ClusterStatus:
    """A cluster at one moment. Lists are sorted; ``topics`` counts the topics of public/default. -1 is unknown."""

    namespace: str
    ray_address: str
    dashboard_url: str
    metadata_url: str = ""
    gateway_url: str = ""
    actors: list[ActorStatus] = field(default_factory=list)
    bookies_available: list[str] = field(default_factory=list)
    bookies_readonly: list[str] = field(default_factory=list)
    bookies_draining: list[str] = field(default_factory=list)
    full_disks: dict[str, str] = field(default_factory=dict)  # by bookie, of those with a disk that is full or nearly
    service_urls: list[str] = field(default_factory=list)
    underreplicated_ledgers: int = -1
    ledgers_in_repair: int = -1
    ledgers_moving: int = -1  # ledgers with all copies, some on bookies that are being decommissioned
    ledgers_damaged: int = -1  # under-replicated ledgers with entries of which no bookie has a good copy
    is_repair_paused: bool = False
    publishing_notes: list[str] = field(default_factory=list)  # empty while new entries get all of their copies
    restored_backup_ms: int = 0  # when the backup was made that the metadata came out of and nobody accepted; 0: none
    topics: int = -1
    operator: str = ""  # the one that leads
    operator_notes: list[str] = field(default_factory=list)
    client_version: str = field(default_factory=heliograph_version)  # of the program that asked
    version_notes: list[str] = field(default_factory=list)  # how versions differ; empty if they do not

    @property
    def is_healthy(self) -> bool:
        """Whether every actor serves and no copies are known to be missing."""
        serves = all(actor.is_leaving or actor.is_warning or not actor.note for actor in self.actors)
        return serves and self.underreplicated_ledgers == 0


SILENCE_SECONDS = 5.0  # of the metadata store, from which on it is told


def silence_note(silent_seconds: float, wall_seconds: float) -> str:
    """Return since when the metadata store is silent to a broker, empty if it answers.

    Args:
        silent_seconds: the time since it answered last, as the broker tells it.
        wall_seconds: the wall clock, in seconds since the epoch.
    """
    if silent_seconds < SILENCE_SECONDS:
        return ""
    since = datetime.fromtimestamp(wall_seconds - silent_seconds).strftime("%H:%M:%S")
    return f"the metadata store is silent since {since}: open topics are served, changes of metadata wait"


def version_notes(versions: Mapping[str, str], own: str) -> list[str]:
    """Return in one line each how the versions of parts differ, and that ours is another one.

    Args:
        versions: by part; empty: unknown.
        own: version of this program.
    """
    parts = defaultdict(list)
    for name, version in sorted(versions.items()):
        if version:
            parts[version].append(name)
    notes = []
    if len(parts) > 1:
        shown = "; ".join(f"{version}: {', '.join(names)}" for version, names in sorted(parts.items()))
        notes.append(f"the parts differ ({shown}): helio restart --rolling gives all of them the installed version")
    if parts and own not in parts:
        notes.append(f"this program is {own}, and no part of the cluster is")
    return notes


def explain(status: ClusterStatus) -> None:
    """Add notes about versions that differ, and to actors that run but are not registered."""
    status.version_notes = version_notes({actor.name: actor.version for actor in status.actors}, status.client_version)
    if status.underreplicated_ledgers < 0:
        return  # the store did not answer: registrations are unknown
    for actor in status.actors:
        if actor.note:
            continue
        if actor.name in status.bookies_draining and actor.address:
            actor.note, actor.is_leaving = "being decommissioned", True
        elif actor.name in status.bookies_readonly:
            actor.note = f"read-only: {status.full_disks.get(actor.name, 'for a reason that its log has')}"
        elif actor.name in status.full_disks:
            actor.note, actor.is_warning = status.full_disks[actor.name], True
        elif actor.kind in ("bookie", "broker") and not actor.address:
            actor.note = "runs, but is not registered in metadata yet"
