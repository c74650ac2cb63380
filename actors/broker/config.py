"""Settings of a broker, with their bounds (I15)."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from heliograph.actors.broker.listeners import check_listeners
from heliograph.actors.broker.policy_defaults import PolicyDefaults
from heliograph.actors.broker.records.entry_stamp import ENTRY_METADATA
from heliograph.actors.ledger.driver import LedgerClientConfig
from heliograph.actors.wire.frame import ENTRY_PAYLOAD_BYTES_MAX
from heliograph.auth.config import AuditConfig, AuthConfig
from heliograph.base.errors import InvalidConfigError, InvalidTopicNameError
from heliograph.base.guard.frame_budget import BUDGET_LEAST
from heliograph.base.guard.listener import ListenerLimits
from heliograph.base.settings import SAME, check_limits, described, fields_added, port_setting, setting
from heliograph.base.tls.contexts import TlsFiles
from heliograph.metadata.model import Persistence, check_quorum
from heliograph.protocol.entry import BROKER_METADATA_BYTES_MAX
from heliograph.protocol.frame import FRAME_SLACK_BYTES
from heliograph.protocol.topic_name import TopicName
from heliograph.tracing.config import TracingConfig

MIB = 1 << 20
WATCHED_TOPICS_MAX = 100  # I15
ORPHAN_GRACE_SESSIONS_MIN = 6  # session timeouts within which the creator of a ledger names it


def entry_bytes_max(max_message_bytes: int) -> int:
    """Return the size of the largest entry in bytes: a message's payload, its metadata, and the broker's in front."""
    return max_message_bytes + FRAME_SLACK_BYTES + BROKER_METADATA_BYTES_MAX


@dataclass(frozen=True, slots=True)
class BalanceLimits:
    """When a broker sheds bundles, and how many."""

    messages_per_second: float = setting(
        200_000.0, "messages in and out together that count as a load of 1", above=0, is_live=True
    )
    bytes_per_second: float = setting(
        500e6, "bytes in and out together that count as a load of 1", above=0, is_live=True
    )
    shed_load_min: float = setting(0.5, "load below which a broker never sheds", least=0, is_live=True)
    shed_gap: float = setting(0.25, "load above the brokers' average at which shedding begins", least=0, is_live=True)
    settle_gap: float = setting(
        0.1, "load above the average at which shedding ends; below `shed_gap`", least=0, is_live=True
    )
    rounds: int = setting(3, "consecutive rounds that a broker has to be above before it sheds", least=1, is_live=True)
    moves_max: int = setting(4, "bundles that move in one round, over all brokers", least=0, is_live=True)
    rest_seconds: float = setting(600.0, "time for which a bundle that moved is not moved again", least=0, is_live=True)

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True)
class SplitLimits:
    """When a broker splits one of its bundles; a limit of 0 is not checked."""

    topics: int = setting(1_000, "loaded topics of the bundle", least=0, is_live=True)
    messages_per_second: float = setting(30_000.0, "messages in and out together", least=0, is_live=True)
    bytes_per_second: float = setting(100e6, "bytes in and out together", least=0, is_live=True)
    bundles_max: int = setting(
        16_384,  # ``namespaces.bundles.BUNDLES_MAX``: as many as a namespace may have
        "bundles of a namespace from which on the broker splits none",
        least=0,
        is_live=True,
    )

    def __post_init__(self) -> None:
        check_limits(self)


@fields_added(
    *("local_sockets", "producers_per_role_max", "minimum_write_copies", "defaults", "compacted_deletions_seconds"),
    *("probe_seconds", "watched_topics", "tracing"),
)
@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Settings of one broker process."""

    broker_id: str = field(
        metadata=described(
            "name in the metadata, stable over restarts; a restarted broker ends its old session by it",
            decided="brokers",
        )
    )
    host: str = setting("127.0.0.1", "address of the listener", decided=SAME, is_of_nodes=True)
    port: int = port_setting(0, "port of the listener; 0: a free one", decided="broker_port")
    actor_name: str = setting("", "Ray actor to which other brokers forward admin calls", decided="brokers")
    ray_namespace: str = setting("heliograph", "Ray namespace of the brokers' actors", decided="namespace")
    advertised_host: str = setting("", "host that clients connect to; empty: `host`")
    local_sockets: bool = setting(
        True, "clients of the same machine and user connect by a Unix socket, unless the broker has TLS"
    )
    advertised_listeners: str = setting(
        "",
        "further names and addresses, which clients choose by `listenerName`: `name=pulsar://host:port` or "
        "`name=pulsar+ssl://host:port`, joined by commas; `{broker_id}`, `{host}`, `{port}` and `{tls_port}` are those "
        "of the broker",
    )
    internal_listener_name: str = setting(
        "", "the advertised listener for clients that name none; empty: `advertised_host` and the listener's port"
    )
    entry_metadata: str = setting(
        "none",
        "the broker's metadata of entries that clients see, by which they then seek: `time` (when the entry was "
        "stored), `index` (that, and the number of its last message in the topic, which is counted then), `both` "
        "(the same) or `none`",
        choices=tuple(ENTRY_METADATA),
    )
    entry_metadata_exposed: bool = setting(
        True, "push entries with that to consumers whose clients can read it; otherwise without"
    )
    max_message_bytes: int = setting(5 * MIB, "largest payload of one entry, a batch as a whole", least=1, decided=SAME)
    cache_bytes: int = setting(64 * MIB, "tail cache of all topics together", least=1, is_live=True)
    publish_bytes_max: int = setting(
        128 * MIB,
        "unconfirmed publishes of all connections, above which no producer's socket is read",
        least=0,
        is_live=True,
    )
    publish_messages_per_second: int = setting(
        0,
        "rate of all producers, above which their sockets are not read for a while; 0: no limit",
        least=0,
        is_live=True,
    )
    publish_bytes_per_second: int = setting(
        0,
        "rate of all producers, above which their sockets are not read for a while; 0: no limit",
        least=0,
        is_live=True,
    )
    tenant_publish_bytes_per_second: int = setting(
        0,
        "rate of all producers of one tenant's topics, above which their sockets are not read for a while; 0: no limit",
        least=0,
        is_live=True,
    )
    connection_publish_bytes_max: int = setting(
        16 * MIB, "unconfirmed publishes of one connection, above which its socket is not read", least=1, is_live=True
    )
    connection_write_bytes_max: int = setting(
        4 * MIB, "unsent bytes of one connection, above which its consumers get no more", least=1
    )
    connection_requests_max: int = setting(
        1_000,
        "requests of one connection that wait for metadata or bookies, above which its socket is not read",
        least=1,
        is_live=True,
    )
    connections_max: int = setting(10_000, "open connections; further ones are closed at once", least=0, is_live=True)
    connections_per_address_max: int = setting(
        5_000, "the same of one address; an IPv6 address counts by its /64", least=0, is_live=True
    )
    namespaces_per_tenant_max: int = setting(
        0, "namespaces that a tenant may have when one is created; 0: any number", least=0, is_live=True
    )
    connections_per_role_max: int = setting(
        5_000, "the same of one role, where `auth.enabled` is set; 0: any number", least=0, is_live=True
    )
    producers_per_role_max: int = setting(
        20_000, "producers of one role, where `auth.enabled` is set; 0: any number", least=0, is_live=True
    )
    connect_ms_max: int = setting(
        10_000, "time in which a client has to be connected and authenticated; it has 8 KiB for that", least=1
    )
    unfinished_bytes_max: int = setting(
        256 * MIB,
        "bytes of frames that are not complete, of all connections; one address may have half of it. Above it sockets "
        "are not read, and connections whose frames do not go on are closed",
        least=BUDGET_LEAST,
        is_live=True,
    )
    unfinished_ms_max: int = setting(
        30_000, "time in which a frame has to arrive, and one second more for each 16 KiB of it", least=1, is_live=True
    )
    keep_alive_seconds: float = setting(
        30.0, "silence after which a peer is pinged; twice that ends the connection", above=0, is_live=True
    )
    ensemble_size: int = setting(
        3, "bookies that a segment is spread over, in namespaces that do not say", least=1, decided=SAME
    )
    write_quorum: int = setting(3, "copies of each entry, in namespaces that do not say", least=1, decided=SAME)
    ack_quorum: int = setting(
        2, "durable copies that acknowledge an entry, in namespaces that do not say", least=1, decided=SAME
    )
    minimum_write_copies: int = setting(
        0,
        "bookies that have to take a topic's entries, or publishing is refused, in namespaces that do not say; at "
        "least `ack_quorum` and at most `write_quorum` count",
        least=0,
    )
    default_retention_seconds: int = setting(
        -1,
        "time for which messages are kept after every subscription has acknowledged them, in namespaces that set no "
        "retention; -1: without end, 0: not at all, which is Pulsar's default",
        least=-1,
        is_live=True,
    )
    defaults: PolicyDefaults = setting(PolicyDefaults(), "policies in namespaces that do not set them")
    compacted_deletions_seconds: int = setting(
        86_400,
        "time for which the compacted form of a topic keeps messages that delete a key, after the first compaction "
        "that read them: readers that take no longer to read it hear of every deletion; 0: not at all",
        least=0,
        is_live=True,
    )
    watched_topics: str = setting(
        "",
        "topics that have metrics of their own however small they are, joined by commas, with their partitions; the "
        "first 100 count",
        is_live=True,
    )
    probe_seconds: float = setting(
        5.0,
        "time between two probes: messages that the broker publishes to its probe topic and consumes; 0: none",
        least=0,
        is_live=True,
    )
    housekeeping_seconds: float = setting(
        10.0,
        "time between two checks of retention, of the age of ledgers and of the age of messages",
        above=0,
        is_live=True,
    )
    failover_delay_seconds: float = setting(
        1.0,
        "time from a change of a Failover subscription's active consumer to its first delivery, in which the previous "
        "consumer's acknowledgements arrive",
        least=0,
        is_live=True,
    )
    key_shared_splits_ranges: bool = setting(
        False, "give a new Key_Shared consumer half of the widest hash range, instead of a ring of hashes", is_live=True
    )
    session_timeout_ms: int = setting(
        10_000,
        "timeout of the session with the metadata store, after which others take over the topics",
        least=1,
        decided=SAME,
    )
    shutdown_seconds_max: float = setting(
        10.0, "time to confirm pending publishes when the broker stops", least=0, is_live=True
    )
    cluster_secret: str | None = setting(
        None, "secret of the bookies; None: they are open", is_secret=True, decided=SAME
    )
    read_grant_seconds: int = setting(
        43_200,
        "how long a grant to read ledgers from bookies lasts, which Spark and Ray tasks have instead of the secret",
        least=60,
        most=2_592_000,
    )
    tls_port: int | None = port_setting(
        None, "port for clients that speak TLS; 0: a free one, None: no TLS", decided="broker_tls_port"
    )
    tls: TlsFiles | None = setting(
        None, "files that TLS needs, with `tls_port`", decided="tls_certificate_file, tls_key_file and tls_ca_file"
    )
    tls_only: bool = setting(
        False, "open no plain port: `tls_port` is the only listener, and `port` is not used", decided=SAME
    )
    auth: AuthConfig = setting(AuthConfig(), "rights of roles", decided="the section auth")
    idle_topic_seconds: float = setting(
        600.0, "time after which an unused topic leaves memory; 0: never", least=0, is_live=True
    )
    load_report_seconds: float = setting(
        10.0, "time between two measurements of the broker's load", above=0, is_live=True
    )
    balance_seconds: float = setting(
        10.0, "time between two rounds of the leader's load balancing; 0: bundles are never shed", least=0, is_live=True
    )
    balance: BalanceLimits = BalanceLimits()
    split: SplitLimits = SplitLimits()
    audit: AuditConfig = AuditConfig()  # noqa: RUF009  # it is immutable
    tracing: TracingConfig = TracingConfig()  # noqa: RUF009  # it is immutable
    inactive_topic_scan_seconds: float = setting(
        600.0, "time between two scans of the leader for unloaded topics with work due; 0: never", least=0, is_live=True
    )
    orphan_sweep_seconds: float = setting(
        3_600.0,
        "time between two searches of the leader for ledgers that no record names; 0: never",
        least=0,
        is_live=True,
    )
    orphan_grace_seconds: float = setting(
        3_600.0, "age below which such a ledger is kept; at least 6 session timeouts", least=0
    )
    ledger: LedgerClientConfig = setting(
        LedgerClientConfig(), "settings of the ledger client", decided="the section ledger"
    )

    def __post_init__(self) -> None:
        if not self.broker_id or "/" in self.broker_id:
            raise InvalidConfigError("a broker needs an id without slashes", field="broker_id")
        check_limits(self)
        _ = self.watched  # which refuses invalid names
        check_quorum(self.ensemble_size, self.write_quorum, self.ack_quorum)
        check_listeners(self.advertised_listeners, self.internal_listener_name, tls_only=self.tls_only)
        if self.max_message_bytes > ENTRY_PAYLOAD_BYTES_MAX:
            raise InvalidConfigError(
                f"messages of {self.max_message_bytes} bytes do not fit the frames of bookies",
                field="max_message_bytes",
                limit=f"{ENTRY_PAYLOAD_BYTES_MAX} bytes",
            )
        if (self.tls_port is None) != (self.tls is None):
            raise InvalidConfigError("TLS needs a port and a certificate with its key", field="tls_port")
        if self.tls_only and self.tls is None:
            raise InvalidConfigError(
                "without its plain port a broker needs one for TLS: give a certificate with its key", field="tls_only"
            )
        if self.orphan_grace_seconds * 1000 < ORPHAN_GRACE_SESSIONS_MIN * self.session_timeout_ms:
            raise InvalidConfigError(
                f"orphan_grace_seconds {self.orphan_grace_seconds} could reach ledgers that are being created",
                field="orphan_grace_seconds",
                limit=f"at least {ORPHAN_GRACE_SESSIONS_MIN} session timeouts",
            )

    @property
    def watched(self) -> frozenset[str]:
        """The full names of the watched topics.

        Raises:
            InvalidConfigError: a name is invalid.
        """
        names = [name for each in self.watched_topics.split(",") if (name := each.strip())]
        try:
            return frozenset(TopicName.parse(name).partitioned_name for name in names[:WATCHED_TOPICS_MAX])
        except InvalidTopicNameError as error:
            raise InvalidConfigError(str(error), field="watched_topics") from error

    @property
    def listener(self) -> ListenerLimits:
        """The limits of the listeners for clients, which share one guard."""
        return ListenerLimits(
            self.connections_max, self.connections_per_address_max, self.unfinished_bytes_max, self.unfinished_ms_max
        )

    @property
    def policy_defaults(self) -> dict[str, Any]:
        """Return the policies of namespaces that do not set them, by the names of the fields of ``NamespacePolicies``.

        The size of what is retained counts where something is.
        """
        seconds = self.default_retention_seconds
        return {
            **self.defaults.values(),
            "retention_seconds": seconds,
            "retention_bytes": self.defaults.retention_bytes if seconds else 0,
            "persistence": Persistence(self.ensemble_size, self.write_quorum, self.ack_quorum),
            "minimum_write_copies": self.minimum_write_copies,
        }

    @property
    def ledgers(self) -> LedgerClientConfig:
        """Settings of the broker's ledger client."""
        writer = replace(self.ledger.writer, entry_bytes_max=entry_bytes_max(self.max_message_bytes))
        return replace(self.ledger, writer=writer, cluster_secret=self.cluster_secret)
