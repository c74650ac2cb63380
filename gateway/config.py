"""Settings of a gateway, with their bounds (I15)."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from heliograph.auth.config import AuthConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.guard.listener import UNSENT_TOTAL_BYTES_MAX
from heliograph.base.settings import SAME, check_limits, fields_added, port_setting, setting
from heliograph.base.tls.contexts import ClientTlsFiles, TlsFiles
from heliograph.protocol.compression import INLINE_BYTES_MAX
from heliograph.tracing.config import TracingConfig

MIB = 1 << 20
BASE64_GROWTH = (4, 3)  # four characters carry three bytes
_HOST_NAME = re.compile(r"(\*\.)?[\w-]+(\.[\w-]+)*")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[\w-]+(\.[\w-]+)*)(:\d{1,5})?", re.IGNORECASE)
FRAME_SLACK_BYTES = 64 * 1024  # room in a WebSocket frame for properties, key and context
# Messages that consumers and readers request in advance, all together, but for the least share of each.  # I15
RECEIVERS_BYTES_MAX = 256 << 20
UNPACKED_BYTES_MAX = 256 << 20  # payloads above INLINE_BYTES_MAX that consumers have decompressed and not handed out
RECEIVER_SHARE_LEAST = 64 << 10  # bytes of one, however many there are; one larger message is taken all the same
JOB_STATE_BYTES = 400  # of one job that is followed, about
SESSION_BYTES = 64 << 10  # of the objects of one session or connection, about


@fields_added(
    *("tls_port", "audit_file", "tracing", "ray_events_topic"),
    *("task_queues_max", "task_queues_per_caller_max", "task_states_max", "task_queue_idle_ms"),
    *("open_requests_max", "open_requests_per_caller_max", "reply_wait_ms_max"),
)
@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of one gateway process."""

    host: str = setting("127.0.0.1", "address of the listener", decided=SAME, is_of_nodes=True)
    port: int = port_setting(8080, "port of the listener; 0: a free one", decided="gateway_port")
    advertised_host: str = setting("", "host in the URLs that users get; empty: `host`")
    ray_namespace: str = setting("heliograph", "Ray namespace of the cluster's actors", decided="namespace")
    service_urls: tuple[str, ...] = setting(
        (), "addresses of brokers; empty: found through Ray", decided="Ray, through which the gateway finds the brokers"
    )
    metadata_url: str = setting(
        "",
        "metadata store, for the lists of brokers and bookies and for revoked tokens; empty: they cannot be asked for",
        is_secret=True,  # it may hold a password
        decided=SAME,
    )
    cluster_name: str = setting("standalone", "name of the one cluster in answers to Pulsar's tools")
    dashboard_url: str = setting("", "Ray dashboard of the status page; empty: no link", decided="dashboard_port")
    allowed_hosts: tuple[str, ...] = setting(
        (),
        "names by which the gateway and the parts' metrics are reached, `name` or `*.name`; addresses, `localhost`,"
        " `host` and the machine's name are always taken; `*`: any name, which lets strangers' pages in"
        " where callers need no credentials",
    )
    trusted_proxies: tuple[str, ...] = setting(
        (),
        "addresses or networks of proxies in front of the gateway; their headers `X-Forwarded-For` and"
        " `X-Forwarded-Proto` name the caller, and those of other callers are ignored",
    )
    allowed_origins: tuple[str, ...] = setting(
        (),
        "origins of web pages of others that may use the gateway, `https://name:port`; `*`: any, without the"
        " credentials that a browser adds by itself",
    )
    tls_port: int | None = port_setting(
        None,
        "port of https beside http at `port`; None: `port` has https if there is a certificate, and http if not",
        decided="gateway_tls_port",
    )
    tls_certificate_file: str = setting(
        "", "PEM with the certificate and its chain; empty: plain http", decided="gateway_tls and tls_certificate_file"
    )
    tls_key_file: str = setting(
        "", "PEM with the private key of the certificate", decided="gateway_tls and tls_key_file"
    )
    tls_ca_file: str = setting(
        "", "PEM of the authority of callers; empty: they show no certificate", decided="gateway_tls and tls_ca_file"
    )
    tls_require_client_certificate: bool = setting(
        False, "refuse callers without a certificate", decided="gateway_tls and tls_require_client_certificate"
    )
    broker_tls_enabled: bool = setting(
        False, "connect to brokers by TLS only; their certificates name their hosts", decided="tls_certificate_file"
    )
    broker_ca_file: str = setting(
        "", "PEM of the authority of brokers; empty: those of the machine", decided="tls_trust_file and tls_ca_file"
    )
    broker_certificate_file: str = setting(
        "", "PEM with the certificate that brokers are shown; empty: none", decided="tls_certificate_file"
    )
    broker_key_file: str = setting("", "PEM with the private key of that certificate", decided="tls_key_file")
    auth: AuthConfig = setting(AuthConfig(), "rights of roles", decided="the section auth")
    audit_file: str = setting(
        "",
        "audit log of failed log-ins, in files named as those of `broker.audit.file`. Not set: "
        "`<home>/logs/audit-gateway.json` where callers are authenticated; empty: none",
    )
    tracing: TracingConfig = TracingConfig()  # noqa: RUF009  # it is immutable
    ray_events_topic: str = setting(
        "", "topic that keeps what Ray's agents post to `/ray/events`; it has to exist; empty: none is kept"
    )
    max_message_bytes: int = setting(5 * MIB, "largest payload of a message", least=1, decided=SAME)
    connections_max: int = setting(4096, "open connections", least=1)
    connections_per_address_max: int = setting(512, "open connections of one address", least=1)
    request_header_seconds: float = setting(10.0, "time in which the headers of a request have to arrive", above=0)
    request_body_seconds: float = setting(
        30.0, "time in which a body has to arrive, and one second more for each 16 KiB of it", above=0
    )
    held_bytes_max: int = setting(
        256 * MIB,
        "bodies and frames held for all callers until they are answered; one address may have a quarter of it",
        least=1,
    )
    address_requests_per_second: float = setting(
        0.0, "requests and WebSocket frames of one address; 0: any number", least=0
    )
    address_bytes_per_second: float = setting(0.0, "bytes of bodies and frames of one address; 0: any number", least=0)
    role_requests_per_second: float = setting(0.0, "the same of one role; 0: any number", least=0)
    role_bytes_per_second: float = setting(0.0, "the same of one role; 0: any number", least=0)
    tenant_requests_per_second: float = setting(0.0, "the same for one tenant; 0: any number", least=0)
    tenant_bytes_per_second: float = setting(0.0, "the same for one tenant; 0: any number", least=0)
    principals_max: int = setting(
        256, "roles that have connections to brokers; those of the least recently used are closed first", least=1
    )
    principal_idle_ms: int = setting(
        60_000, "time after which unused connections on behalf of a role are closed", least=1
    )
    request_bytes_max: int = setting(32 * MIB, "largest HTTP body, which may carry many messages", least=1)
    websocket_sessions_max: int = setting(1024, "open WebSocket sessions", least=1)
    websocket_sessions_per_caller_max: int = setting(
        256, "open WebSocket sessions of one address, and of one role", least=1
    )
    websocket_ping_seconds: float = setting(30.0, "time between two pings to a WebSocket peer", least=1)
    websocket_idle_seconds: float = setting(
        300.0, "time after which a WebSocket peer that answers no ping is disconnected", least=1
    )
    producer_window_messages: int = setting(1000, "messages of one WebSocket producer without a receipt", least=1)
    producer_window_bytes: int = setting(32 * MIB, "payload of one WebSocket producer without a receipt", least=1)
    receiver_bytes_max: int = setting(16 * MIB, "payload that one consumer or reader requests ahead", least=1)
    rest_producers_max: int = setting(
        256, "open producers of REST produce; the least recently used is closed first", least=1
    )
    rest_producers_per_caller_max: int = setting(
        64, "open producers of REST produce of one address, and of one role", least=1
    )
    rest_producer_idle_ms: int = setting(60_000, "time after which an unused REST producer is closed", least=1)
    rest_consumers_max: int = setting(256, "open consumers of REST consume", least=1)
    rest_consumers_per_caller_max: int = setting(
        64, "open consumers of REST consume of one address, and of one role", least=1
    )
    rest_consumer_idle_ms: int = setting(60_000, "time after which an unused REST consumer is closed", least=1)
    rest_ack_timeout_ms: int = setting(
        60_000,
        "time after which an unacknowledged message of REST consume is delivered again; 0: when its consumer is closed",
        least=0,
    )
    rest_messages_max: int = setting(1000, "messages in one answer of REST consume", least=1)
    rest_answer_bytes_max: int = setting(
        8 * MIB, "payload after which an answer of REST consume takes no further message", least=1
    )
    task_queues_max: int = setting(
        8, "queues of tasks whose jobs are followed; the one used longest ago is closed first", least=1
    )
    task_queues_per_caller_max: int = setting(4, "queues of tasks of one address, and of one role", least=1)
    task_states_max: int = setting(20_000, "jobs with a state of one queue of tasks; more are not followed", least=1)
    task_queue_idle_ms: int = setting(60_000, "time after which an unused queue of tasks is closed", least=1)
    open_requests_max: int = setting(256, "requests that wait for replies", least=1)
    open_requests_per_caller_max: int = setting(
        64, "requests of one address, and of one role, that wait for replies", least=1
    )
    reply_wait_ms_max: int = setting(300_000, "longest wait for the reply to a request", least=1)
    rest_wait_ms_max: int = setting(30_000, "longest wait for messages in one call of REST consume", least=1)

    def __post_init__(self) -> None:
        check_limits(self)
        for certificate, key in (
            ("tls_certificate_file", "tls_key_file"),
            ("broker_certificate_file", "broker_key_file"),
        ):
            if bool(getattr(self, certificate)) != bool(getattr(self, key)):
                raise InvalidConfigError(
                    f"a certificate needs its key: give {certificate} and {key} together", field=f"{certificate},{key}"
                )
        if (
            self.tls_port is not None or self.tls_ca_file or self.tls_require_client_certificate
        ) and not self.tls_certificate_file:
            raise InvalidConfigError(
                "TLS needs a certificate with its key: give tls_certificate_file and tls_key_file",
                field="tls_certificate_file",
            )
        if self.tls_require_client_certificate and not self.tls_ca_file:
            raise InvalidConfigError(
                "certificates of callers are required, but tls_ca_file names no authority that signs them",
                field="tls_ca_file",
            )
        for host in self.allowed_hosts:
            if host != "*" and not _HOST_NAME.fullmatch(host):
                raise InvalidConfigError(
                    f"{host!r} is no name of a host: give it without scheme, port and path", field="allowed_hosts"
                )
        for proxy in self.trusted_proxies:
            try:
                ipaddress.ip_network(proxy)
            except ValueError:
                raise InvalidConfigError(
                    f"{proxy!r} is no address and no network: write 10.0.0.7 or 10.0.0.0/24", field="trusted_proxies"
                ) from None
        for origin in self.allowed_origins:
            if origin != "*" and not _ORIGIN.fullmatch(origin):
                raise InvalidConfigError(
                    f"{origin!r} is no origin: give scheme, name and port, such as https://app.example.org",
                    field="allowed_origins",
                )
        if self.request_bytes_max < self.max_message_bytes:
            raise InvalidConfigError(
                f"request_bytes_max {self.request_bytes_max} is below max_message_bytes {self.max_message_bytes}: "
                "no request could carry the largest message",
                field="request_bytes_max",
                limit=">= max_message_bytes",
            )

    @property
    def tls(self) -> TlsFiles | None:
        """The files of the listener; None: it speaks plain HTTP."""
        if not self.tls_certificate_file:
            return None
        return TlsFiles(
            self.tls_certificate_file, self.tls_key_file, self.tls_ca_file, self.tls_require_client_certificate
        )

    @property
    def broker_tls(self) -> ClientTlsFiles | None:
        """The files of connections to brokers; None: they are plain."""
        if not self.broker_tls_enabled:
            return None
        return ClientTlsFiles(self.broker_ca_file, self.broker_certificate_file, self.broker_key_file)

    @property
    def memory_bounds(self) -> dict[str, int]:
        """The bytes that the gateway holds at most, by what holds them (I15)."""
        receivers = self.rest_consumers_max + self.websocket_sessions_max + self.open_requests_max
        return {
            "bodies and frames until they are answered": self.held_bytes_max,
            "messages requested ahead": RECEIVERS_BYTES_MAX + receivers * RECEIVER_SHARE_LEAST,
            "messages that are decompressed": UNPACKED_BYTES_MAX + receivers * INLINE_BYTES_MAX,
            "answers that callers do not read": UNSENT_TOTAL_BYTES_MAX,
            "the answer that is being made": 4 * self.rest_answer_bytes_max,  # payloads, their text, JSON, its bytes
            "states of jobs": self.task_queues_max * self.task_states_max * JOB_STATE_BYTES,
            "connections and sessions": (self.connections_max + receivers) * SESSION_BYTES,
        }

    @property
    def websocket_frame_bytes_max(self) -> int:
        """The largest WebSocket frame that is read, in bytes.

        It is twice what the largest message needs, so that a message slightly above the limit is answered with an error
        frame. Only a larger frame ends the session, with close code 1009.
        """
        times, per = BASE64_GROWTH
        return 2 * (self.max_message_bytes * times // per) + FRAME_SLACK_BYTES

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> GatewayConfig:
        """Make a configuration from plain settings, such as an actor's argument.

        Raises:
            InvalidConfigError: a name is unknown, or a value has the wrong type or is out of range; names it.
        """
        from heliograph.base.section import from_mapping  # pydantic, which this module does without otherwise

        made: GatewayConfig = from_mapping(cls, settings)
        return made
