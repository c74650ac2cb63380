"""Settings of one broker process."""

from __future__ import annotations

from dataclasses import dataclass, field

from actors.ledger.driver import LedgerClientConfig
from actors.ledger.limits import WriterLimits
from actors.wire.frame import ENTRY_PAYLOAD_BYTES_MAX
from heliograph.errors import InvalidConfigError
from heliograph.protocol.frame import FRAME_SLACK_BYTES

MIB = 1 << 20


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
        connection_publish_bytes_max: published by one connection and not confirmed, before its socket is read no more.
        connection_write_bytes_max: waiting to be written to one connection, before its consumers get no more.
        connection_requests_max: commands of one connection under way with metadata or bookies; it is read no more then.
        connections_max: of this broker; further ones are closed at once.
        keep_alive_seconds: silence after which a peer is pinged; twice that ends the connection.
        housekeeping_seconds: between looks at retention and the age of ledgers.
        session_timeout_ms: of the broker's session in metadata, after which others may take its topics.
        shutdown_seconds_max: for confirming what is under way when the broker stops.
        cluster_secret: what bookies ask for; None where they are open.
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
    connection_publish_bytes_max: int = 16 * MIB
    connection_write_bytes_max: int = 4 * MIB
    connection_requests_max: int = 1_000
    connections_max: int = 10_000
    keep_alive_seconds: float = 30.0
    housekeeping_seconds: float = 10.0
    session_timeout_ms: int = 10_000
    shutdown_seconds_max: float = 10.0
    cluster_secret: str | None = field(default=None, repr=False)

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
        if not 0 <= self.port <= 65535:
            raise InvalidConfigError(f"port {self.port} does not exist", field="port", limit="0 to 65535")

    @property
    def ledgers(self) -> LedgerClientConfig:
        """Settings of the ledger client: an entry is a message's payload and the metadata around it."""
        return LedgerClientConfig(
            writer=WriterLimits(entry_bytes_max=self.max_message_bytes + FRAME_SLACK_BYTES),
            cluster_secret=self.cluster_secret,
        )
