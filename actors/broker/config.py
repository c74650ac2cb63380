"""Settings of one broker process."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.broker.load_balancer import BalanceLimits, SplitLimits
from actors.broker.tls import TlsFiles
from actors.ledger.driver import LedgerClientConfig
from actors.ledger.limits import WriterLimits
from actors.wire.frame import ENTRY_PAYLOAD_BYTES_MAX
from heliograph.errors import InvalidConfigError
from heliograph.protocol.frame import FRAME_SLACK_BYTES

MIB = 1 << 20
ORPHAN_GRACE_SESSIONS_MIN = 6  # session timeouts that a ledger's maker has to name it


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Everything that a broker can be told.

    Args:
        broker_id: stable over restarts; a new incarnation ends its predecessor's session by it.
        host: where the listener binds, and the name in ``service_url`` unless ``advertised_host`` says otherwise.
        port: 0 takes any free one.
        actor_name: the Ray actor that other brokers forward admin calls to.
        ray_namespace: where the brokers' actors are found. Ray's own idea of it is that of whoever created the actor.
        max_message_bytes: of one entry's payload, a batch as a whole.
        cache_bytes: of the tail cache, over all topics.
        publish_bytes_max: published by all connections and not confirmed, before no socket that publishes is read.
        publish_messages_per_second: of all producers of the broker together, 0 for no limit; bytes likewise. Sockets
            of producers above it are read no more for a while.
        connection_publish_bytes_max: published by one connection and not confirmed, before its socket is read no more.
        connection_write_bytes_max: waiting to be written to one connection, before its consumers get no more.
        connection_requests_max: commands of one connection under way with metadata or bookies; it is read no more then.
        connections_max: of this broker; further ones are closed at once.
        keep_alive_seconds: silence after which a peer is pinged; twice that ends the connection.
        housekeeping_seconds: between looks at retention, the age of ledgers and the age of messages.
        failover_delay_seconds: from a change of a Failover subscription's active consumer to its first delivery, for
            the acknowledgements of the one before to arrive.
        key_shared_splits_ranges: Key_Shared gives newcomers half of the widest range, instead of a ring of hashes.
        session_timeout_ms: of the broker's session in metadata, after which others may take its topics.
        shutdown_seconds_max: for confirming what is under way when the broker stops.
        cluster_secret: what bookies ask for; None where they are open.
        tls_port: for clients that speak TLS, Pulsar's own is 6651; 0 takes any free one, None: there is none.
        tls: the files that TLS needs, with ``tls_port``.
        idle_topic_seconds: after which a topic that nobody uses leaves memory, 0 never.
        load_report_seconds: between two looks at this broker's load.
        balance_seconds: between two looks of the leader at everybody's load; 0: bundles are never shed.
        balance: when bundles are shed.
        split: when a bundle is split by itself.
        tour_seconds: between two looks of the leader at topics that are in no broker's memory, 0 never.
        orphan_sweep_seconds: between two searches of the leader for ledgers that nothing names, 0 never.
        orphan_grace_seconds: age below which such a ledger is left alone; far above any session timeout.
    """

    broker_id: str
    host: str = "127.0.0.1"
    port: int = 0
    actor_name: str = ""
    ray_namespace: str = "heliograph"
    advertised_host: str = ""
    max_message_bytes: int = 5 * MIB
    cache_bytes: int = 64 * MIB
    publish_bytes_max: int = 128 * MIB
    publish_messages_per_second: int = 0
    publish_bytes_per_second: int = 0
    connection_publish_bytes_max: int = 16 * MIB
    connection_write_bytes_max: int = 4 * MIB
    connection_requests_max: int = 1_000
    connections_max: int = 10_000
    keep_alive_seconds: float = 30.0
    housekeeping_seconds: float = 10.0
    failover_delay_seconds: float = 1.0
    key_shared_splits_ranges: bool = False
    session_timeout_ms: int = 10_000
    shutdown_seconds_max: float = 10.0
    cluster_secret: str | None = field(default=None, repr=False)
    tls_port: int | None = None
    tls: TlsFiles | None = None
    idle_topic_seconds: float = 600.0
    load_report_seconds: float = 10.0
    balance_seconds: float = 60.0
    balance: BalanceLimits = field(default_factory=BalanceLimits)
    split: SplitLimits = field(default_factory=SplitLimits)
    tour_seconds: float = 600.0
    orphan_sweep_seconds: float = 3_600.0
    orphan_grace_seconds: float = 3_600.0

    def __post_init__(self) -> None:
        if not self.broker_id or "/" in self.broker_id:
            raise InvalidConfigError("a broker needs an id without slashes", field="broker_id")
        for name in ("max_message_bytes", "cache_bytes", "connection_publish_bytes_max", "connection_write_bytes_max"):
            if getattr(self, name) <= 0:
                raise InvalidConfigError(f"{name} must be positive", field=name, limit="at least 1 byte")
        if self.max_message_bytes > ENTRY_PAYLOAD_BYTES_MAX:
            raise InvalidConfigError(
                f"messages of {self.max_message_bytes} bytes do not fit the frames of bookies",
                field="max_message_bytes",
                limit=f"{ENTRY_PAYLOAD_BYTES_MAX} bytes",
            )
        for name in ("port", "tls_port"):
            if not 0 <= (getattr(self, name) or 0) <= 65535:
                raise InvalidConfigError(f"port {getattr(self, name)} does not exist", field=name, limit="0 to 65535")
        if (self.tls_port is None) != (self.tls is None):
            raise InvalidConfigError("TLS needs a port and a certificate with its key", field="tls_port")
        if self.orphan_grace_seconds * 1000 < ORPHAN_GRACE_SESSIONS_MIN * self.session_timeout_ms:
            raise InvalidConfigError(
                f"an orphan_grace_seconds of {self.orphan_grace_seconds} could reach ledgers that are being made",
                field="orphan_grace_seconds",
                limit=f"at least {ORPHAN_GRACE_SESSIONS_MIN} session timeouts",
            )

    @property
    def ledgers(self) -> LedgerClientConfig:
        """Settings of the ledger client: an entry is a message's payload and the metadata around it."""
        return LedgerClientConfig(
            writer=WriterLimits(entry_bytes_max=self.max_message_bytes + FRAME_SLACK_BYTES),
            cluster_secret=self.cluster_secret,
        )
