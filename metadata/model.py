"""The records kept in the metadata store: frozen values, checked when they are built.

A record says nothing of where it is stored (``metadata/paths.py``) or how it is written (``metadata/codec.py``).
Times are milliseconds since the epoch, sizes are bytes, ids are integers unless said otherwise.
"""

from __future__ import annotations

import enum
import itertools
from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from heliograph.errors import InvalidQuorumError

R = TypeVar("R")

NO_ENTRY = -1  # "before the first entry", the last entry id of an empty ledger


class LedgerState(enum.Enum):
    """OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED by the writer; nothing leaves CLOSED (I5)."""

    OPEN = "open"
    IN_RECOVERY = "in_recovery"
    CLOSED = "closed"


def check_quorum(ensemble_size: int, write_quorum: int, ack_quorum: int) -> None:
    """Raise InvalidQuorumError unless E >= Qw >= Qa >= 1."""
    if not ensemble_size >= write_quorum >= ack_quorum >= 1:
        raise InvalidQuorumError(
            f"ensemble size {ensemble_size}, write quorum {write_quorum}, ack quorum {ack_quorum} "
            "must satisfy ensemble >= write quorum >= ack quorum >= 1",
            field="ensemble_size,write_quorum,ack_quorum",
            limit="E >= Qw >= Qa >= 1",
        )


@dataclass(frozen=True, slots=True)
class Segment:
    """A fragment's place: the bookies, in striping order, of entries from ``first_entry_id`` to the next segment."""

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """One ledger.

    ``last_entry_id`` and ``length`` (payload bytes up to and with the last entry) carry meaning only when CLOSED.
    ``creator_token`` lets a creator recognise its own create after a lost reply. ``digest`` names the checksum of the
    entries; ``password_hash`` is salted and slow, and empty when the ledger has no password.
    """

    ledger_id: int
    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    segments: tuple[Segment, ...]
    state: LedgerState = LedgerState.OPEN
    last_entry_id: int = NO_ENTRY
    length: int = 0
    created_ms: int = 0
    creator_token: str = ""
    properties: dict[str, str] = field(default_factory=dict)
    digest: str = "crc32c"
    password_hash: str = ""

    def __post_init__(self) -> None:
        check_quorum(self.ensemble_size, self.write_quorum, self.ack_quorum)
        assert self.segments, "a ledger has at least one segment"
        assert self.segments[0].first_entry_id == 0, "the first segment starts at entry 0"
        for segment in self.segments:
            assert len(segment.bookies) == self.ensemble_size, "a segment names exactly E bookies"
            assert len(set(segment.bookies)) == self.ensemble_size, "a segment names a bookie once"
        keys = [segment.first_entry_id for segment in self.segments]
        assert all(a < b for a, b in itertools.pairwise(keys)), "segment keys strictly increase"  # I8

    def segment_of(self, entry_id: int) -> Segment:
        """The segment with the greatest key not above ``entry_id`` (which is at least 0)."""
        assert entry_id >= 0, "entries start at 0"
        index = bisect_right(self.segments, entry_id, key=lambda segment: segment.first_entry_id)
        return self.segments[index - 1]

    @property
    def is_closed(self) -> bool:
        """Whether the last entry is decided for good."""
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        """The segment that new entries go to."""
        return self.segments[-1]


@dataclass(frozen=True, slots=True)
class BookieRegistration:
    """An ephemeral: this bookie serves now. ``address`` is ``host:port`` of its data plane."""

    bookie_id: str
    address: str
    rack: str = "default"
    free_bytes: int = 0
    total_bytes: int = 0
    session_token: str = ""


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """An ephemeral: this broker serves now. ``service_url`` is ``pulsar://host:port``."""

    broker_id: str
    service_url: str
    actor_name: str
    session_token: str = ""
    started_ms: int = 0


@dataclass(frozen=True, slots=True)
class BundleOwner:
    """An ephemeral: this broker owns every topic of a bundle."""

    broker_id: str
    service_url: str
    actor_name: str


@dataclass(frozen=True, slots=True)
class Cookie:
    """What a bookie's directories must agree on, stored in each of them and in metadata."""

    bookie_id: str
    instance_id: str
    journal_directories: tuple[str, ...]
    data_directories: tuple[str, ...]
    layout_version: int = 1


@dataclass(frozen=True, slots=True)
class Persistence:
    """How many copies a topic's entries get; overrides the namespace's numbers."""

    ensemble_size: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2

    def __post_init__(self) -> None:
        check_quorum(self.ensemble_size, self.write_quorum, self.ack_quorum)


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """One ledger in a topic's list. ``entries``, ``size`` and ``closed_ms`` are 0 until it is closed."""

    ledger_id: int
    entries: int = 0
    size: int = 0
    closed_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic: its unbroken chain of ledgers, in publish order (I12). Only the last may be open for writing."""

    name: str
    ledgers: tuple[LedgerInfo, ...] = ()
    created_ms: int = 0
    terminated_at: tuple[int, int] | None = None
    persistence: Persistence | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A durable subscription's cursor.

    ``mark_delete`` is the position (ledger id, entry id) up to and with which everything is acknowledged, as of the
    moment ``cursor_ledger_id`` was started; the cursor ledger, when there is one, holds everything since.
    """

    subscription: str
    mark_delete: tuple[int, int]
    cursor_ledger_id: int = -1
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PartitionedTopicRecord:
    """A partitioned topic is ``partitions`` topics named ``<name>-partition-<i>``."""

    name: str
    partitions: int
    created_ms: int = 0
    persistence: Persistence | None = None
    properties: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NamespacePolicies:
    """What holds for all topics of a namespace."""

    bundles: int = 8
    persistence: Persistence = field(default_factory=Persistence)
    ledger_entries_max: int = 50_000
    ledger_bytes_max: int = 2 << 30
    ledger_age_seconds_max: int = 4 * 3600
    retention_seconds: int = -1
    retention_bytes: int = -1
    auto_create_topics: bool = True


@dataclass(frozen=True, slots=True)
class UnderReplicatedLedger:
    """A task for replication workers: this ledger misses copies on these bookies."""

    ledger_id: int
    missing_bookies: tuple[str, ...]
    marked_ms: int = 0


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """Facts that hold for the life of the cluster."""

    instance_id: str
    layout_version: int = 1
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class Versioned(Generic[R]):
    """A record with the version of the node that it was read from."""

    record: R
    version: int
