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

from heliograph.base.errors import InvalidQuorumError
from heliograph.metadata.chain_records import PieceRef

R = TypeVar("R")

NO_ENTRY = -1  # the last entry id of an empty ledger


class LedgerState(enum.Enum):
    """The state of a ledger: OPEN -> IN_RECOVERY -> CLOSED, or OPEN -> CLOSED by the writer. CLOSED is final (I5)."""

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


VACANCY = "~vacant-"  # the beginning of a name that stands for no bookie; no bookie may have such a name


@dataclass(frozen=True, slots=True)
class Segment:
    """The bookies, in striping order, of the entries from ``first_entry_id`` to the next segment.

    A ledger created while bookies were missing names vacancies in their place.
    """

    first_entry_id: int
    bookies: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LedgerMetadata:
    """The metadata of one ledger.

    ``last_entry_id`` and ``length`` (payload bytes up to and including the last entry) are valid only when CLOSED.
    ``creator_token`` lets a creator recognise its ledger after a lost reply. ``digest`` names the checksum of the
    entries.
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

    def __post_init__(self) -> None:
        check_quorum(self.ensemble_size, self.write_quorum, self.ack_quorum)
        assert self.segments, "a ledger has at least one segment"
        assert self.segments[0].first_entry_id == 0, "the first segment starts at entry 0"
        for segment in self.segments:
            assert len(segment.bookies) == self.ensemble_size, "a segment names exactly E bookies"
            assert len(set(segment.bookies)) == self.ensemble_size, "a segment names a bookie once"
            vacancies = sum([name.startswith(VACANCY) for name in segment.bookies])
            assert vacancies <= self.write_quorum - self.ack_quorum, "every write set has Qa bookies"  # I7, I20
        keys = [segment.first_entry_id for segment in self.segments]
        assert all(a < b for a, b in itertools.pairwise(keys)), "segment keys strictly increase"  # I8

    def segment_of(self, entry_id: int) -> Segment:
        """Return the segment that holds ``entry_id`` (at least 0): the segment with the greatest key not above it."""
        assert entry_id >= 0, "entries start at 0"
        index = bisect_right(self.segments, entry_id, key=lambda segment: segment.first_entry_id)
        return self.segments[index - 1]

    @property
    def is_closed(self) -> bool:
        """Return whether the last entry is final."""
        return self.state is LedgerState.CLOSED

    @property
    def last_segment(self) -> Segment:
        return self.segments[-1]


@dataclass(frozen=True, slots=True)
class BookieRegistration:
    """The ephemeral node of a bookie that serves. ``address`` is ``host:port`` of its data plane."""

    bookie_id: str
    address: str
    rack: str = "default"
    free_bytes: int = 0
    total_bytes: int = 0
    session_token: str = ""
    used_share: float = 0.0  # of its fullest disk, 0 to 1
    is_full: bool = False  # a disk is full, and the bookie is read-only therefore
    is_nearly_full: bool = False


@dataclass(frozen=True, slots=True)
class BrokerRegistration:
    """The ephemeral node of a broker that serves.

    ``service_url`` is ``pulsar://host:port``, ``service_url_tls`` is ``pulsar+ssl://host:port`` or empty, and
    ``listeners`` are the advertised listeners, ``name=address`` joined by commas. A draining broker releases its
    bundles and gets no new ones.
    """

    broker_id: str
    service_url: str
    actor_name: str
    session_token: str = ""
    started_ms: int = 0
    service_url_tls: str = ""
    is_draining: bool = False
    listeners: str = ""
    reads_records: int = 1  # the newest format of records that it reads


@dataclass(frozen=True, slots=True)
class BundleOwner:
    """The ephemeral node by which a broker owns every topic of a bundle."""

    broker_id: str
    service_url: str
    actor_name: str
    service_url_tls: str = ""
    listeners: str = ""


@dataclass(frozen=True, slots=True)
class BundleLoad:
    """The load of one bundle: topics in memory, and incoming plus outgoing messages and bytes per second."""

    path: str
    topics: int = 0
    messages_per_second: float = 0.0
    bytes_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerLoad:
    """The ephemeral node with the recent load of a broker.

    Args:
        reported_ms: the time of the report.
        cpu_share: the used share of one processor, the most that one broker's loop can use, 0 to 1.
        memory_share: the used share of the machine's memory, 0 to 1.
        messages_in_per_second, bytes_in_per_second: the rate of publishing.
        messages_out_per_second, bytes_out_per_second: the rate of dispatching.
        topics: the number of topics in memory.
        bundles: the busiest of the owned bundles, busiest first; ``bundles_owned`` counts all of them.
    """

    broker_id: str
    reported_ms: int = 0
    cpu_share: float = 0.0
    memory_share: float = 0.0
    messages_in_per_second: float = 0.0
    messages_out_per_second: float = 0.0
    bytes_in_per_second: float = 0.0
    bytes_out_per_second: float = 0.0
    topics: int = 0
    bundles_owned: int = 0
    bundles: tuple[BundleLoad, ...] = ()
    large_records: tuple[str, ...] = ()  # what it wrote that is above half of its limit


@dataclass(frozen=True, slots=True)
class Persistence:
    """The quorum of a topic's ledgers; overrides the namespace's."""

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
class CompactedLedger:
    """The ledger that holds the compacted form of a topic up to and including the position ``horizon``."""

    ledger_id: int
    entries: int
    horizon: tuple[int, int]
    size: int = 0
    finished_ms: int = 0


@dataclass(frozen=True, slots=True)
class TopicRecord:
    """A topic: its chain of ledgers, in publish order (I12). Only the last may be open for writing.

    The chain is the ledgers of all ``pieces``, oldest first, and then ``ledgers``. ``next_piece`` numbers the next one.
    """

    name: str
    ledgers: tuple[LedgerInfo, ...] = ()
    created_ms: int = 0
    terminated_at: tuple[int, int] | None = None
    compacted: CompactedLedger | None = None
    persistence: Persistence | None = None
    properties: dict[str, str] = field(default_factory=dict)
    pieces: tuple[PieceRef, ...] = ()
    next_piece: int = 0


@dataclass(frozen=True, slots=True)
class CursorRecord:
    """A durable subscription's cursor.

    ``mark_delete`` is the position (ledger id, entry id) up to and including which everything was acknowledged when
    the cursor ledger ``cursor_ledger_id`` was created; that ledger, when there is one, holds all later changes.
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
    is_deleting: bool = False  # its partitions are being deleted, and no partition is created


PolicyValue = bool | int | float | str
Rate = int | float  # a second; records of older versions hold whole numbers


@dataclass(frozen=True, slots=True)
class Policies:
    """The policies of a topic: the namespace's values, overridden by the topic's own.

    Rates and counts of 0 are unlimited, and so are sizes and times of -1.

    Args:
        persistence: the quorum of the ledgers of the topic and of its cursors.
        placement: the policy that chooses the bookies of its ledgers (docs/operations/tasks.md); empty: the broker's.
        mark_deletes_per_second: kept for tools of Pulsar, without effect: acknowledgements are stored as they come.
        names_cluster: tools of Pulsar have named the cluster, the only one, as the topic's replication cluster.
        minimum_write_copies: the number of bookies that have to take the topic's entries, if above the ack quorum.
        retention_seconds, retention_bytes: how long acknowledged ledgers are kept after they were closed, and how many
            bytes of them, -1 for all.
        message_ttl_seconds: age at which an unacknowledged message counts as acknowledged, 0 never.
        backlog_quota_bytes: size limit of the largest backlog of a subscription, -1 for no quota.
        backlog_quota_seconds: age limit of the oldest message of a backlog, -1 for no quota.
        backlog_quota_action: ``producer_request_hold``, ``producer_exception`` or ``consumer_backlog_eviction``.
        backlog_quota_seconds_action: the same for the age limit, empty for that of ``backlog_quota_action``.
        deduplication: drop messages that a producer sent before, by their sequence ids.
        deduplication_seconds: how long a producer that is away is remembered, -1 without end.
        deduplication_snapshot_entries, deduplication_snapshot_seconds: the most between two snapshots of sequence ids.
        publish_messages_per_second, publish_bytes_per_second: limits for all producers together.
        dispatch_messages_per_second, dispatch_bytes_per_second: limits for all consumers together.
        dispatch_period_seconds: the allowance of so many seconds may be delivered at once.
        dispatch_relative: these limits are added to the rate of publishing.
        subscription_dispatch_messages_per_second, subscription_dispatch_bytes_per_second: limits for the consumers of
            one subscription, with a period and relative to publishing in the same way.
        subscribes_per_second: how often one consumer may subscribe, counted in periods of ``subscribe_period_seconds``.
        max_message_bytes: the size limit of one message, 0 for the broker's limit.
        subscription_types: the types that consumers may use, such as ``Exclusive,Shared``; empty: all.
        delayed_delivery: whether messages are delivered at the time that their producers request, and not at once.
        delayed_tick_ms: times of delivery are rounded up to multiples of this, 0 for exact ones.
        delayed_ms_max: the longest delay that a producer may ask for, 0 for any.
        encryption_required: whether producers that do not encrypt their messages are refused.
        inactive_delete, inactive_delete_seconds: whether unused topics are deleted, and after which time, 0 never.
        inactive_delete_mode: ``delete_when_no_subscriptions`` or ``delete_when_subscriptions_caught_up``.
        subscription_expiration_seconds: time after which an unused durable subscription is deleted, 0 never.
        compaction_threshold_bytes: bytes published since the last compaction that start the next one, 0 for none.
        schema_compatibility: Pulsar's names, such as ``FULL`` or ``ALWAYS_COMPATIBLE``.
        schema_auto_update: whether producers may add versions of the schema.
        schema_validation_enforced: whether producers without a schema are refused where the topic has one.
        batching: how producers are told to batch when they open: ``by_key``, ``none``, or empty for their own choice.
        payloads_masked: whether only superusers see payloads and values of properties by browsing and peeking.
    """

    persistence: Persistence = field(default_factory=Persistence)
    placement: str = ""
    mark_deletes_per_second: Rate = 0
    names_cluster: bool = False
    minimum_write_copies: int = 0
    ledger_entries_max: int = 50_000
    ledger_bytes_max: int = 2 << 30
    ledger_age_seconds_max: int = 4 * 3600
    retention_seconds: int = -1
    retention_bytes: int = -1
    message_ttl_seconds: int = 0
    backlog_quota_bytes: int = -1
    backlog_quota_seconds: int = -1
    backlog_quota_action: str = "producer_request_hold"
    backlog_quota_seconds_action: str = ""
    deduplication: bool = False
    deduplication_seconds: int = 86_400
    deduplication_snapshot_entries: int = 1_000
    deduplication_snapshot_seconds: int = 120
    publish_messages_per_second: Rate = 0
    publish_bytes_per_second: Rate = 0
    dispatch_messages_per_second: Rate = 0
    dispatch_bytes_per_second: Rate = 0
    dispatch_period_seconds: int = 1
    dispatch_relative: bool = False
    subscription_dispatch_messages_per_second: Rate = 0
    subscription_dispatch_bytes_per_second: Rate = 0
    subscription_dispatch_period_seconds: int = 1
    subscription_dispatch_relative: bool = False
    subscribes_per_second: Rate = 0
    subscribe_period_seconds: int = 30
    max_producers: int = 0
    max_consumers: int = 0
    max_consumers_per_subscription: int = 0
    max_subscriptions: int = 0
    max_unacked_per_consumer: int = 50_000
    max_unacked_per_subscription: int = 200_000
    max_message_bytes: int = 0
    subscription_types: str = ""
    encryption_required: bool = False
    delayed_delivery: bool = True
    delayed_tick_ms: int = 0
    delayed_ms_max: int = 0
    auto_create_subscriptions: bool = True
    inactive_delete: bool = True
    inactive_delete_seconds: int = 0
    inactive_delete_mode: str = "delete_when_no_subscriptions"
    subscription_expiration_seconds: int = 0
    compaction_threshold_bytes: int = 0
    schema_compatibility: str = "FULL"
    schema_auto_update: bool = True
    schema_validation_enforced: bool = False
    batching: str = ""
    payloads_masked: bool = False

    @property
    def deletes_after_seconds(self) -> int:
        """Return the time after which an unused topic is deleted, 0 for never."""
        return self.inactive_delete_seconds if self.inactive_delete else 0

    def of_subscription(self, name: str) -> Policies:
        return self


@dataclass(frozen=True, slots=True)
class AuthPolicies:
    """Rights of roles in a namespace, beyond its tenant's administrators. The names are Pulsar's.

    Args:
        namespace_auth: actions (``produce``, ``consume``, ...) on all topics, by role.
        destination_auth: actions on one topic, by the topic's full name and by role. Those on a partitioned topic hold
            for its partitions.
        subscription_auth_roles: the only roles that may use a subscription, by its name; none or no entry: all.
        subscription_auth_mode: ``None``, or ``Prefix``: the name of a subscription has to begin with the role.
    """

    namespace_auth: dict[str, tuple[str, ...]] = field(default_factory=dict)
    destination_auth: dict[str, dict[str, tuple[str, ...]]] = field(default_factory=dict)
    subscription_auth_roles: dict[str, tuple[str, ...]] = field(default_factory=dict)
    subscription_auth_mode: str = "None"


@dataclass(frozen=True, slots=True)
class NamespacePolicies(Policies):
    """The policies of all topics of a namespace that do not override them.

    Args:
        bundles: the number of equal bundles that the namespace began with.
        bundle_splits: further hashes, 0 to 2**32, at which bundles were split since.
        auto_create_topics: whether using a topic creates it.
        auto_create_partitions: the number of partitions of such a topic, 0 for a topic without partitions.
        max_topics: how many topics may exist, each partition counted, 0 without limit.
        allows_cluster: tools of Pulsar have named the cluster, the only one, as allowed for the namespace.
        properties: the user's notes by name.
        own: the names of the policies set for the namespace itself; the others have the defaults of the cluster. None
            in records of older versions: the policies that differ from the defaults.
        is_closing: its topics are being deleted by force; nothing is created in it.
        is_deleted: the namespace is being deleted; nothing in it can be used or created.
        auth_policies: the rights of roles in the namespace. Records of older versions hold none.
    """

    bundles: int = 8
    auto_create_topics: bool = True
    auto_create_partitions: int = 0
    max_topics: int = 0
    allows_cluster: bool = False
    properties: dict[str, str] = field(default_factory=dict)
    own: tuple[str, ...] | None = None
    bundle_splits: tuple[int, ...] = ()
    is_deleted: bool = False
    is_closing: bool = False
    auth_policies: AuthPolicies = field(default_factory=AuthPolicies)

    @property
    def has_own_copies(self) -> bool:
        """Return whether the namespace has its own numbers of copies, instead of the cluster's defaults.

        Records of older versions do not say which policies were set; they keep their numbers.
        """
        return self.own is None or not {"ensemble_size", "write_quorum", "ack_quorum"}.isdisjoint(self.own)


@dataclass(frozen=True, slots=True)
class TenantRecord:
    """A tenant: the roles that may administer its namespaces, and the clusters they may be in.

    The children of its node are the namespaces.
    """

    admin_roles: tuple[str, ...] = ()
    allowed_clusters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """The policies that one topic, with all its partitions, overrides, by the names of the fields of Policies; and the
    rates of single subscriptions, by subscription and then by field."""

    overrides: dict[str, PolicyValue] = field(default_factory=dict)
    subscriptions: dict[str, dict[str, PolicyValue]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SchemaVersion:
    """One version in a topic's schema history; an empty ``digest`` means that the schema was deleted at that point."""

    version: int
    digest: str
    created_ms: int = 0


@dataclass(frozen=True, slots=True)
class SchemaHistory:
    """The versions of a topic's schema, oldest first. Each definition is a child node named by its version."""

    versions: tuple[SchemaVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class SchemaRecord:
    """The definition of one schema version: Pulsar's type name, and the bytes in base64."""

    type: str
    data: str
    name: str = ""
    properties: dict[str, str] = field(default_factory=dict)


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
