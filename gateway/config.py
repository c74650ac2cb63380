"""What one gateway process is told at start: where it listens, what it reaches, and every bound it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from heliograph.errors import InvalidConfigError

MIB = 1 << 20
BASE64_GROWTH = (4, 3)  # four characters carry three bytes
FRAME_SLACK_BYTES = 64 * 1024  # room in a WebSocket frame for properties, key and context


@dataclass(frozen=True, slots=True)
class GatewayConfig:
    """Settings of a gateway; all of them have defaults, and ``validated`` states the cross-field rules.

    Args:
        host: address to listen on; loopback unless told otherwise.
        port: TCP port to listen on, 0 for any free one.
        ray_namespace: Ray namespace in which the cluster's actors are found.
        service_urls: broker addresses (``pulsar://host:port``); empty: found through Ray.
        metadata_url: where brokers and bookies are registered, for the lists of them; empty: not listed.
        cluster_name: the one cluster's name, as Pulsar's tools expect to see one.
        dashboard_url: address of the Ray dashboard, linked from the console page; empty: no link.
        tls_certificate_file: PEM with the certificate and its chain to speak https with; empty: plain http.
        tls_key_file: PEM with the private key to it.
        max_message_bytes: largest payload accepted, in bytes.
        request_bytes_max: largest HTTP body accepted, in bytes; a body may carry many messages.
        websocket_sessions_max: WebSocket sessions at once.
        websocket_ping_seconds: time between pings to a WebSocket peer, in seconds.
        websocket_idle_seconds: a peer that answers no ping for so long is dropped, in seconds.
        producer_window_messages: messages of one WebSocket producer that wait for their receipt.
        producer_window_bytes: payload bytes of one WebSocket producer that wait for their receipt.
        receiver_bytes_max: payload bytes that one consumer or reader asks for ahead.
        rest_producers_max: producers kept open for REST produce, the least recently used is closed first.
        rest_producer_idle_ms: a REST producer unused for so long is closed, in milliseconds.
        rest_consumers_max: consumers kept open for REST consume.
        rest_consumer_idle_ms: a REST consumer unused for so long is closed, in milliseconds.
        rest_ack_timeout_ms: a message handed out over REST and not acknowledged for so long is delivered again, in
            milliseconds; 0: only when its consumer is closed.
        rest_messages_max: messages in one answer of REST consume.
        rest_answer_bytes_max: payload bytes after which an answer of REST consume takes no further message.
        rest_wait_ms_max: longest wait for messages in one REST consume call, in milliseconds.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    ray_namespace: str = "heliograph"
    service_urls: tuple[str, ...] = ()
    metadata_url: str = ""
    cluster_name: str = "standalone"
    dashboard_url: str = ""
    tls_certificate_file: str = ""
    tls_key_file: str = ""
    max_message_bytes: int = 5 * MIB
    request_bytes_max: int = 32 * MIB
    websocket_sessions_max: int = 1024
    websocket_ping_seconds: float = 30.0
    websocket_idle_seconds: float = 300.0
    producer_window_messages: int = 1000
    producer_window_bytes: int = 32 * MIB
    receiver_bytes_max: int = 16 * MIB
    rest_producers_max: int = 256
    rest_producer_idle_ms: int = 60_000
    rest_consumers_max: int = 256
    rest_consumer_idle_ms: int = 60_000
    rest_ack_timeout_ms: int = 60_000
    rest_messages_max: int = 1000
    rest_answer_bytes_max: int = 8 * MIB
    rest_wait_ms_max: int = 30_000

    @property
    def websocket_frame_bytes_max(self) -> int:
        """Largest WebSocket frame read, in bytes.

        Twice what the largest message needs, so that a message somewhat above the limit is answered with an error
        frame; only a frame beyond this ends the session, with close code 1009.
        """
        times, per = BASE64_GROWTH
        return 2 * (self.max_message_bytes * times // per) + FRAME_SLACK_BYTES

    def validated(self) -> GatewayConfig:
        """This configuration.

        Raises:
            InvalidConfigError: a setting is out of range; names it.
        """
        if not 0 <= self.port <= 65_535:
            raise InvalidConfigError(f"port {self.port} is out of range", field="port", limit="0..65535")
        for item in fields(self):
            value = getattr(self, item.name)
            lowest = 0 if item.name in ("port", "rest_ack_timeout_ms") else 1
            if isinstance(value, int | float) and value < lowest:
                raise InvalidConfigError(
                    f"{item.name} is {value}, it must be at least {lowest}", field=item.name, limit=f">= {lowest}"
                )
        if bool(self.tls_certificate_file) != bool(self.tls_key_file):
            raise InvalidConfigError("a certificate needs its key", field="tls_certificate_file,tls_key_file")
        if self.request_bytes_max < self.max_message_bytes:
            raise InvalidConfigError(
                f"request_bytes_max {self.request_bytes_max} is below max_message_bytes {self.max_message_bytes}: "
                "no request could carry the largest message",
                field="request_bytes_max",
            )
        return self

    @classmethod
    def from_mapping(cls, settings: Mapping[str, Any]) -> GatewayConfig:
        """A validated configuration from plain settings, such as an actor's argument.

        Raises:
            InvalidConfigError: an unknown name, a value of the wrong type or out of range; names it.
        """
        kinds = {item.name: type(item.default) for item in fields(cls)}
        unknown = sorted(set(settings) - set(kinds))
        if unknown:
            raise InvalidConfigError(f"unknown gateway setting {unknown[0]!r}", field=unknown[0])
        values: dict[str, Any] = {}
        for name, value in settings.items():
            try:
                values[name] = _converted(kinds[name], value)
            except (TypeError, ValueError) as error:
                raise InvalidConfigError(f"{name} is {value!r}: {error}", field=name) from error
        return cls(**values).validated()


def _converted(kind: type[Any], value: Any) -> Any:
    if kind is tuple and isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    if kind is int and isinstance(value, bool):
        raise TypeError("a number is expected")
    return kind(value) if value is not None else kind()
