"""Settings of a cluster in one process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.peer import is_loopback, is_wildcard
from heliograph.base.settings import check_limits, setting
from heliograph.gateway.config import GatewayConfig
from heliograph.metadata.model import Persistence
from heliograph.protocol.frame import MESSAGE_BYTES_MAX

if TYPE_CHECKING:
    from heliograph.standalone.security import Security

BROKER = "broker-1"
COPIES_MAX = 3  # of each entry, unless a number is given
LOOPBACK = "127.0.0.1"
# All parts are in one process, which keeps time for all of them: a session can only end with it, or by mistake.
SESSION_TIMEOUT_MS = 30_000
# Settings that are not the caller's.
DECIDED = ("bookie_id", "broker_id", "auth", "tls", "port", "host", "cluster_secret")

C = TypeVar("C")


@dataclass(frozen=True, slots=True)
class StandaloneConfig:
    """The settings of a cluster in one process.

    Raises:
        InvalidConfigError: a setting is out of range or contradicts another; names it.
    """

    bookies: int = setting(1, "storage nodes", least=1, most=99)
    replication: int | None = setting(None, "copies of each message; None: as many as bookies, at most 3", least=1)
    host: str = setting(LOOPBACK, "address of the broker's and the gateway's listener")
    advertised_host: str = setting("", "host for clients; empty: `host`, or loopback for all addresses")
    port: int = setting(0, "port of the broker; 0: a free one", least=0, most=65_535)
    http_port: int = setting(0, "port of the gateway; 0: a free one", least=0, most=65_535)
    max_message_bytes: int = setting(MESSAGE_BYTES_MAX, "largest message", least=1024, most=MESSAGE_BYTES_MAX)
    insecure: bool = setting(False, "listen on an address that other machines reach; callers are not authenticated")
    secure: bool = setting(False, "callers are authenticated, and broker and gateway speak TLS and nothing else")
    bookie: Mapping[str, Any] = field(default_factory=dict)  # further settings of each bookie
    broker: Mapping[str, Any] = field(default_factory=dict)
    gateway: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_limits(self)
        if self.copies > self.bookies:
            raise InvalidConfigError(
                f"{self.bookies} bookies cannot hold {self.copies} copies",
                field="replication",
                limit=f"at most {self.bookies}",
            )
        if self.secure and self.insecure:
            raise InvalidConfigError("secure and insecure are set: leave one of them out", field="secure,insecure")
        if not is_loopback(self.host) and not (self.insecure or self.secure):
            raise InvalidConfigError(
                f"other machines reach {self.host}, and authentication is disabled: leave the host on "
                "loopback, set secure, or set insecure if everyone who reaches it may do everything",
                field="host",
                limit="a loopback address, unless secure or insecure is set",
            )

    @property
    def copies(self) -> int:
        return min(self.bookies, COPIES_MAX) if self.replication is None else self.replication

    @property
    def persistence(self) -> Persistence:
        """The quorums: a majority of the copies is fsynced before an entry is acknowledged."""
        return Persistence(self.copies, self.copies, self.copies // 2 + 1)

    @property
    def reached_at(self) -> str:
        return self.advertised_host or (LOOPBACK if is_wildcard(self.host) else self.host)

    def bookie_config(self, bookie_id: str, directory: Path, secret: str) -> BookieConfig:
        """Return the settings of one bookie, which keeps everything in ``directory``; its clients prove the secret."""
        made = {
            "bookie_id": bookie_id,
            "journal_directories": (directory / "journal",),
            "data_directories": (directory / "ledgers",),
            "cluster_secret": secret,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
        }
        return _made(BookieConfig, made, self.bookie, "bookie.")

    def check_parts(self, secret: str, security: Security | None) -> None:
        """Raise InvalidConfigError if a setting of a part is wrong. Nothing is started or opened."""
        self.bookie_config("bookie-1", Path("bookie-1"), secret)
        self.broker_config(secret, security)
        self.gateway_config(security)

    def broker_config(self, secret: str, security: Security | None) -> BrokerConfig:
        """Return the settings of the broker, which proves the secret to bookies."""
        copies = self.persistence
        secured: dict[str, Any] = {}
        if security is not None:
            secured = {"auth": security.auth, "audit": security.audit, "tls": security.tls}
            secured |= {"tls_port": self.port, "tls_only": True}
        made = {
            "broker_id": BROKER,
            "actor_name": BROKER,
            "host": self.host,
            "port": self.port,
            "advertised_host": self.reached_at,
            "max_message_bytes": self.max_message_bytes,
            "ensemble_size": copies.ensemble_size,
            "write_quorum": copies.write_quorum,
            "ack_quorum": copies.ack_quorum,
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "cluster_secret": secret,
            "probe_seconds": 0.0,  # one process needs no proof that its parts reach each other
            **secured,
        }
        return _made(BrokerConfig, made, self.broker, "broker.")

    def gateway_config(self, security: Security | None) -> GatewayConfig:
        made: dict[str, Any] = {"host": self.host, "port": self.http_port, "advertised_host": self.reached_at}
        made["max_message_bytes"] = self.max_message_bytes
        if security is not None:
            files = security.tls
            made |= {"auth": security.auth, "audit_file": security.gateway_audit_file, "tls_ca_file": files.client_ca}
            made |= {"tls_certificate_file": files.certificate, "tls_key_file": files.key}
        return _made(GatewayConfig, made, self.gateway, "gateway.")


def _made(part: type[C], made: Mapping[str, Any], given: Mapping[str, Any], prefix: str) -> C:
    """Return the configuration of a part.

    Raises:
        InvalidConfigError: a given setting is unknown, out of range or not the caller's to set; names it.
    """
    if wrong := [name for name in given if name in DECIDED]:
        raise InvalidConfigError(f"{prefix}{wrong[0]} cannot be set for a part of one process", field=wrong[0])
    if given:
        from heliograph.base.section import from_mapping  # which loads pydantic

        checked = from_mapping(part, {**made, **given}, prefix)
        given = {name: getattr(checked, name) for name in given}
    return part(**{**made, **given})
