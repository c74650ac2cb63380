"""Every setting of a cluster, with its unit, its reason and its limits.

Each field can be given as an argument, or as the environment variable ``HELIOGRAPH_<FIELD>``. Sizes are bytes, times
are milliseconds unless the name says otherwise.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from heliograph.errors import InvalidConfigError, InvalidQuorumError

KIB = 1024
MIB = 1024 * KIB

DEFAULT_NAMESPACE = "heliograph"
SECRET_CHARACTERS_MIN = 16
_BOUNDS = {"ge": ">=", "gt": ">", "le": "<=", "lt": "<", "pattern": "pattern"}  # pydantic's words, in ours
METADATA_SCHEMES = ("embedded", "etcd", "etcds", "zk")


def default_state_root() -> Path:
    """Where clusters started on this machine keep their state: ``HELIOGRAPH_STATE_ROOT`` or ``~/.heliograph``."""
    return Path(os.environ.get("HELIOGRAPH_STATE_ROOT", "~/.heliograph")).expanduser()


def _port(default: int, description: str) -> Any:
    return Field(default=default, ge=0, le=65535, description=description)


class ClusterConfig(BaseSettings):
    """What ``helio up`` builds.

    Raises:
        InvalidQuorumError: not E >= Qw >= Qa >= 1, or fewer bookies than E.
        InvalidConfigError: any other setting is out of range or contradicts another; names the field and the limit.
    """

    model_config = SettingsConfigDict(env_prefix="HELIOGRAPH_", extra="forbid", frozen=True)

    namespace: str = Field(
        default=DEFAULT_NAMESPACE,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        description="Ray namespace of the actors",
    )
    home: Path | None = Field(
        default=None, description="state of the cluster on this machine; None: <state root>/<namespace>"
    )
    data_directory: Path | None = Field(
        default=None, description="journals, entry logs and metadata, on each node; None: <home>/data"
    )
    host: str = Field(default="127.0.0.1", min_length=1, description="address that every listener binds to")

    cluster_secret: SecretStr | None = Field(
        default=None,
        description="what bookies ask of brokers, auditor and pipelines; None: bookies are open, on loopback only",
    )

    tls_certificate_file: Path | None = Field(
        default=None,
        description="PEM with the brokers' certificate and its chain, on each node; None: no TLS",
    )
    tls_key_file: Path | None = Field(default=None, description="PEM with the private key to it")
    tls_ca_file: Path | None = Field(default=None, description="PEM of who signs the certificates of clients")
    tls_require_client_certificate: bool = Field(
        default=False, description="refuse clients that show no certificate signed by tls_ca_file"
    )

    bookies: int = Field(default=3, ge=1, le=999, description="storage nodes to start")
    brokers: int = Field(default=2, ge=1, le=999, description="brokers to start; two so that one can die")
    gateway: bool = Field(default=True, description="start the HTTP and WebSocket gateway")
    auditor: bool = Field(default=True, description="start the auditor, without which lost copies are not restored")

    metadata_url: str | None = Field(
        default=None, description="an existing metadata store; None: start the embedded one in an actor"
    )
    metadata_password: SecretStr | None = Field(
        default=None, description="of the user that metadata_url names; kept out of files and listings"
    )
    metadata_port: int = _port(0, "port of the embedded store; 0: a free one, kept over restarts")
    broker_port: int = _port(6650, "port of the first broker, Pulsar's own; 0: a free one, as the other brokers have")
    gateway_tls: bool = Field(default=False, description="have the gateway speak https, with the brokers' certificate")
    broker_tls_port: int = _port(
        6651, "port for TLS of the first broker, with tls_certificate_file; 0: a free one, as the other brokers have"
    )
    gateway_port: int = _port(8080, "port of the gateway, Pulsar's own; 0: a free one")
    dashboard_port: int = _port(8265, "port of the Ray dashboard; 0, or 8265 being in use: a free one")

    ensemble_size: int = Field(default=3, description="E: bookies that a fragment is spread over")
    write_quorum: int = Field(default=3, description="Qw: copies of each entry")
    ack_quorum: int = Field(default=2, description="Qa: fsynced copies before a publish is acknowledged")

    max_message_bytes: int = Field(
        default=5 * MIB, ge=1 * KIB, le=5 * MIB, description="largest message; frames and caches are sized for 5 MiB"
    )
    session_timeout_ms: int = Field(
        default=10_000, ge=1_000, le=300_000, description="silence of the auditor after which another takes over"
    )
    lost_bookie_delay_ms: int = Field(
        default=30_000, ge=0, description="absence after which a bookie's data is copied; a restart takes about 2 s"
    )
    audit_interval_ms: int = Field(
        default=60_000, ge=100, description="longest time between two audits; a change of bookies starts one at once"
    )
    open_ledger_grace_ms: int = Field(
        default=30_000, ge=0, description="time a live writer gets to replace a lost bookie before its ledger is fenced"
    )
    start_timeout_ms: int = Field(
        default=120_000, ge=1_000, description="time for each part of the cluster to be ready"
    )

    require_labels: bool = Field(
        default=True, description="place actors only on nodes that carry heliograph.io/ labels"
    )
    actor_cpus: float = Field(
        default=0.1,
        gt=0,
        le=64,
        description="CPUs each actor holds: above 0, or the autoscaler removes its node as idle",
    )
    ray_cpus: int = Field(
        default=max(8, os.cpu_count() or 1),
        ge=1,
        description="logical CPUs of a Ray head that we start, for tasks beside us",
    )
    ray_object_store_bytes: int = Field(
        default=512 * MIB, ge=80 * MIB, description="object store of a Ray head that we start; messages do not pass it"
    )

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _as_config_error(error) from None

    @field_validator("home", "data_directory", "tls_certificate_file", "tls_key_file", "tls_ca_file")
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @model_validator(mode="after")
    def _check_quorum(self) -> Self:
        if not self.ensemble_size >= self.write_quorum >= self.ack_quorum >= 1:
            raise InvalidQuorumError(
                f"ensemble size {self.ensemble_size}, write quorum {self.write_quorum}, ack quorum {self.ack_quorum} "
                "must satisfy ensemble >= write quorum >= ack quorum >= 1",
                field="ensemble_size,write_quorum,ack_quorum",
                limit="E >= Qw >= Qa >= 1",
            )
        if self.bookies < self.ensemble_size:
            raise InvalidQuorumError(
                f"{self.bookies} bookies cannot hold an ensemble of {self.ensemble_size}: start at least "
                f"{self.ensemble_size} bookies, or lower ensemble_size, write_quorum and ack_quorum",
                field="bookies",
                limit=f"bookies >= ensemble_size ({self.ensemble_size})",
            )
        return self

    @model_validator(mode="after")
    def _check_secret(self) -> Self:
        if self.cluster_secret is not None and len(self.cluster_secret.get_secret_value()) < SECRET_CHARACTERS_MIN:
            raise InvalidConfigError(
                f"cluster_secret is shorter than {SECRET_CHARACTERS_MIN} characters",
                field="cluster_secret",
                limit=f"at least {SECRET_CHARACTERS_MIN} characters",
            )
        return self

    @model_validator(mode="after")
    def _check_tls(self) -> Self:
        if (self.tls_certificate_file is None) != (self.tls_key_file is None):
            raise InvalidConfigError(
                "a certificate needs its key: give tls_certificate_file and tls_key_file together",
                field="tls_certificate_file,tls_key_file",
            )
        if self.gateway_tls and self.tls_certificate_file is None:
            raise InvalidConfigError(
                "gateway_tls needs tls_certificate_file and tls_key_file", field="tls_certificate_file"
            )
        if self.tls_require_client_certificate and self.tls_ca_file is None:
            raise InvalidConfigError(
                "clients' certificates can be asked for only where tls_ca_file says whom to trust", field="tls_ca_file"
            )
        return self

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        fields: tuple[str, ...] = ("metadata_port", "broker_port", "gateway_port", "dashboard_port")
        if self.tls_certificate_file is not None:
            fields = (*fields, "broker_tls_port")
        taken: dict[int, str] = {}
        for field in fields:
            port = getattr(self, field)
            if port and port in taken:
                raise InvalidConfigError(
                    f"{field} and {taken[port]} are both {port}: give each its own port, or 0 for a free one",
                    field=field,
                    limit="ports differ",
                )
            taken[port] = field
        return self

    @model_validator(mode="after")
    def _check_metadata_url(self) -> Self:
        if self.metadata_url is not None and self.metadata_url.partition("://")[0] not in METADATA_SCHEMES:
            raise InvalidConfigError(
                f"metadata_url {self.metadata_url!r} does not start with one of "
                + ", ".join(f"{scheme}://" for scheme in METADATA_SCHEMES),
                field="metadata_url",
            )
        return self

    @model_validator(mode="after")
    def _check_metadata_password(self) -> Self:
        rest = (self.metadata_url or "").partition("://")[2]
        user, at, _ = rest.partition("/")[0].rpartition("@")
        if at and ":" in user:
            raise InvalidConfigError(
                "metadata_url holds a password, and would be shown: leave it out and give metadata_password",
                field="metadata_url",
            )
        return self

    @property
    def home_directory(self) -> Path:
        """The cluster's state on this machine."""
        return self.home or default_state_root() / self.namespace

    @property
    def data_root(self) -> Path:
        """Journals, entry logs and metadata."""
        return self.data_directory or self.home_directory / "data"


def _as_config_error(error: ValidationError) -> InvalidConfigError:
    """The first problem of a failed validation, as one sentence."""
    first = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in first["loc"]) or None
    limits = [f"{_BOUNDS[name]} {value}" for name, value in first.get("ctx", {}).items() if name in _BOUNDS]
    if first["type"] == "extra_forbidden":
        return InvalidConfigError(f"there is no setting named {field}", field=field)
    return InvalidConfigError(
        f"{field} = {first['input']!r}: {first['msg']}", field=field, limit=", ".join(limits) or None
    )
