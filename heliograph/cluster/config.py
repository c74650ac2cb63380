"""The configuration of a cluster: its own settings, and a section for each kind of part.

A setting comes from an argument, else from the environment variable ``HELIOGRAPH_<NAME>`` or
``HELIOGRAPH_<SECTION>__<NAME>``, else from a TOML file, else it has its default. Sizes are bytes and times are
milliseconds unless the name says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource
from typing_extensions import override

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.broker.config import BrokerConfig, entry_bytes_max
from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.auth.config import AuthConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.guard.handshake import joined_secrets
from heliograph.base.home import LOGS
from heliograph.base.section import Section, build, from_environment
from heliograph.base.settings import setting_of
from heliograph.base.tls.contexts import PeerTlsFiles, TlsFiles
from heliograph.cluster.labels import ONE_MACHINE
from heliograph.cluster.logs.config import LogsConfig
from heliograph.cluster.ports import require_distinct
from heliograph.cluster.settings.environment import check_environment
from heliograph.cluster.settings.file import file_of
from heliograph.cluster.settings.location import PREFIX, ClusterLocation
from heliograph.cluster.settings.metadata_url import check_metadata
from heliograph.cluster.settings.nodes import check_nodes
from heliograph.cluster.settings.pickling import reduced
from heliograph.cluster.settings.quorums import check_quorum, check_secrets
from heliograph.cluster.settings.sections import (
    PARTS,
    Sections,
    check_not_decided,
    decided_in,
    lifted,
    section_settings,
    with_directories,
)
from heliograph.cluster.settings.tls import (
    INTERNAL_TLS,
    OUTER_TLS,
    check_tls,
    gateway_files,
    outer_files,
    with_own_certificates,
)
from heliograph.gateway.config import GatewayConfig
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.etcd_member.config import EtcdConfig
from heliograph.metadata.etcd_member.membership import COUNTS

KIB = 1024
MIB = 1024 * KIB


def _port(default: int, description: str) -> Any:
    return Field(default=default, ge=0, le=65535, description=description)


def _shared(part: type[Any], name: str, **limits: Any) -> Any:
    """Declare a setting of the cluster that is the parts' setting of the same name: default and meaning are theirs."""
    declared = part.__dataclass_fields__[name]
    return Field(default=declared.default, description=setting_of(declared).meaning, **limits)


class ClusterConfig(ClusterLocation):
    """The configuration of one cluster, as ``helio up`` builds it.

    ``ClusterConfig(bookies=5, bookie={"read_cache_bytes": 1 << 30})`` sets one of the cluster's own settings and one of
    the section ``bookie``. The sections are ``bookie``, ``broker``, ``auditor``, ``gateway``, ``ledger``, ``etcd``,
    ``auth`` and ``logs``; each has the settings of the part's own configuration class but those that the cluster
    decides.

    Raises:
        InvalidQuorumError: not E >= Qw >= Qa >= 1, or fewer bookies than E.
        InvalidConfigError: a setting is unknown, out of range, decided by another one or contradicts another; names the
            setting and the limit. Or the configuration file cannot be read.
    """

    config_file: Path | None = Field(
        default=None, description="TOML file with further settings; None: `<home>/cluster.toml` if it exists"
    )
    sections: Sections = Field(  # type: ignore[valid-type]  # derived from the parts' own configurations
        default_factory=Sections, description="settings of the parts, by section"
    )
    nodes: dict[str, dict[str, dict[str, Any]]] = Field(
        default_factory=dict,
        description="settings of the parts of one node: the table `[nodes.NAME.bookie]` and its siblings for "
        "brokers and the gateway. NAME is the node's address in Ray, its host name or its label `heliograph.io/host`, "
        "or `*` for every node; `disks` of a table for bookies are directories, each for a bookie of its own",
    )
    data_directory: Path | None = Field(
        default=None, description="journals, entry logs and metadata, on each node; None: `<home>/data`"
    )
    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="address that every listener binds to; `node`: the address of the Ray node that runs the part, and "
        "`0.0.0.0`: all addresses, of which the Ray node's is advertised",
    )
    node_address: str | None = Field(
        default=None,
        min_length=1,
        description="address of this machine's Ray node, when `helio up` starts Ray; None: `host` if it is "
        "an address of one machine, else Ray's own choice",
    )

    lean: bool = Field(
        default=False,
        description="a Ray that `helio up` starts has no dashboard, log monitor, autoscaler monitor and Ray Client "
        "server, which no message meets; `helio status` then joins Ray, which takes seconds",
    )
    ray_on_loopback: bool = Field(
        default=False,
        description="all ports of a Ray that `helio up` starts are on loopback; other programs that join it need "
        "`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0` in their environment, `helio` and `heliograph.connect` do not",
    )

    insecure: bool = Field(
        default=False,
        description="start on an address that other machines reach, although callers need not say who they are",
    )

    cluster_secret: SecretStr | None = Field(
        default=None,
        description="secret that clients of bookies and of the embedded metadata store prove; None: these are open, "
        "and listen on loopback only",
    )
    previous_cluster_secret: SecretStr | None = Field(
        default=None,
        description="secret that is still valid beside `cluster_secret`, so that it can be changed without a stop",
    )

    tls: Literal["files", "auto"] = Field(
        default="files",
        description="`auto`: every listener speaks TLS by certificates of an authority of the cluster's own, in "
        "`<home>/certificates` on this machine; `files`: by the files that the settings below name",
    )
    tls_certificate_file: Path | None = Field(
        default=None,
        description="PEM with the brokers' certificate and its chain, on each node; None: no TLS",
    )
    tls_key_file: Path | None = Field(default=None, description="PEM with the private key of the certificate")
    tls_ca_file: Path | None = Field(
        default=None, description="PEM of the authority that signs the certificates of clients"
    )
    tls_require_client_certificate: bool = Field(
        default=False, description="refuse clients without a certificate signed by `tls_ca_file`"
    )

    tls_trust_file: Path | None = Field(
        default=None,
        description="PEM of the authority that signs the brokers' certificate, which the gateway and clients on this "
        "machine trust; None: `tls_ca_file`, and without that what the machine trusts",
    )
    tls_only: bool = Field(
        default=False, description="brokers open no plain port, and a gateway has to have `gateway_tls`"
    )

    internal_tls_certificate_file: Path | None = Field(
        default=None,
        description="PEM with the certificate that each part shows the others, and its chain, on each node, good for "
        "servers and clients; None: bookies and the embedded metadata store speak no TLS",
    )
    internal_tls_key_file: Path | None = Field(default=None, description="PEM with the private key of that certificate")
    internal_tls_ca_file: Path | None = Field(
        default=None, description="PEM of the authority that signs the certificates of the parts"
    )

    bookies: int = Field(default=3, ge=1, le=999, description="storage nodes to start")
    brokers: int = Field(default=2, ge=1, le=999, description="brokers to start; with two, one can fail")
    gateway: bool = Field(default=True, description="start the HTTP and WebSocket gateway")
    auditor: bool = Field(default=True, description="start the auditor, without which lost copies are not restored")
    operator: bool = Field(
        default=True,
        description="start the operator, which gives joining nodes their parts, scales, and restarts parts in turn",
    )

    metadata_kind: Literal["embedded", "etcd"] = Field(
        default="embedded",
        description="metadata store that the cluster runs itself: `embedded` is one actor with one disk; `etcd` is "
        "one, three or five members of etcd, on the nodes labelled `heliograph.io/metadata=true`",
    )
    metadata_members: int | None = Field(
        default=None,
        description='members of `metadata_kind = "etcd"`, 1, 3 or 5, kept from the first start on; None: as many as '
        "nodes are labelled for them then",
    )
    metadata_url: str | None = Field(
        default=None, description="existing metadata store; None: the cluster runs its own, see `metadata_kind`"
    )
    metadata_password: SecretStr | None = Field(
        default=None, description="password of the user that `metadata_url` names; kept out of files and listings"
    )
    metadata_port: int = _port(0, "port of the embedded store; 0: a free one, kept over restarts")
    etcd_port: int = Field(
        default=2379,
        ge=1,
        le=65_535 - 2 * max(COUNTS),
        description='port for clients of the first member of `metadata_kind = "etcd"`, etcd\'s own; the other members '
        "reach it at the next port, and each further member has both ports 2 higher",
    )
    bookie_port: int = _port(
        0, "port of the first bookie, such as BookKeeper's 3181, and 1 more for each other one; 0: free ones"
    )
    broker_port: int = _port(
        6650, "port of the first broker, Pulsar's own, and 2 more for each other one; 0: free ones"
    )
    gateway_tls: bool = Field(default=False, description="the gateway speaks https, with the brokers' certificate")
    broker_tls_port: int = _port(
        6651,
        "port for TLS of the first broker, with `tls_certificate_file`, and 2 more for each other one; 0: free ones",
    )
    gateway_port: int = _port(8080, "port of the gateway, Pulsar's own; 0: a free one")
    dashboard_port: int = _port(8265, "port of the Ray dashboard; 0, or 8265 if that is in use: a free one")
    ray_port: int = _port(
        0,
        "port of a Ray head that `helio up` starts, where other nodes join it (6379 is usual); 0: a free one, which a "
        "head that is started again has again",
    )

    ensemble_size: int = Field(default=3, description="E: bookies that a segment is spread over")
    write_quorum: int = Field(default=3, description="Qw: copies of each entry")
    ack_quorum: int = Field(default=2, description="Qa: fsynced copies before a publish is acknowledged")

    max_message_bytes: int = Field(
        default=5 * MIB, ge=1 * KIB, le=5 * MIB, description="largest message; frames and caches are sized for 5 MiB"
    )
    session_timeout_ms: int = Field(
        default=10_000,
        ge=1_000,
        le=300_000,
        description="timeout of the sessions with the metadata store, after which a part that is silent is replaced",
    )
    lost_bookie_delay_ms: int = _shared(AuditorConfig, "lost_bookie_delay_ms", ge=0)
    audit_interval_ms: int = _shared(AuditorConfig, "audit_interval_ms", ge=100)
    open_ledger_grace_ms: int = _shared(AuditorConfig, "open_ledger_grace_ms", ge=0)
    start_timeout_ms: int = Field(
        default=120_000, ge=1_000, description="time for each part of the cluster to be ready"
    )

    require_labels: bool = Field(
        default=True, description="place actors only on nodes that have `heliograph.io/` labels"
    )
    actor_cpus: float = Field(
        default=0.1,
        gt=0,
        le=64,
        description="CPUs that each actor holds; with 0 the autoscaler would remove its node as idle",
    )
    ray_cpus: int = Field(
        default_factory=lambda: max(8, os.cpu_count() or 1),
        ge=1,
        description="logical CPUs of a Ray head that `helio up` starts, for tasks beside the actors; default: the "
        "machine's, at least 8",
    )
    ray_labels: str = Field(
        default=",".join(f"{label}={value}" for label, value in ONE_MACHINE.items()),
        pattern=r"^[^=,\s]+=[^=,\s]+(,[^=,\s]+=[^=,\s]+)*$",
        description="labels of a Ray head that `helio up` starts, `name=value,name=value`; where a part is for another "
        "node, `helio up` waits `start_timeout_ms` for it to join",
    )
    ray_object_store_bytes: int = Field(
        default=512 * MIB,
        ge=80 * MIB,
        description="object store of a Ray head that `helio up` starts; messages do not pass through it",
    )

    @override
    def __init__(self, **values: Any) -> None:
        check_environment(os.environ, self.known_settings())
        super().__init__(**lifted(values))

    @override
    @classmethod
    def known_settings(cls) -> Collection[str]:
        return [name for name in cls.model_fields if name != "sections"] + [*PARTS] + section_settings()

    @override
    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        *_: PydanticBaseSettingsSource,
        **__: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        sections = InitSettingsSource(settings_cls, lifted(from_environment(os.environ, PREFIX, PARTS)))
        file = InitSettingsSource(settings_cls, file_of({**env_settings(), **init_settings()}))
        return init_settings, env_settings, sections, file

    @field_validator("config_file", "data_directory", "tls_trust_file", *OUTER_TLS, *INTERNAL_TLS)
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: dict[str, Any]) -> dict[str, Any]:
        check_not_decided(values.get("sections", {}))
        return with_own_certificates(values)

    @model_validator(mode="after")
    def _check_quorum(self) -> Self:
        check_quorum(self)
        check_secrets(self)
        return self

    @property
    def secrets(self) -> str | None:
        """The valid secrets, one a line, as parts are given them."""
        given = (self.cluster_secret, self.previous_cluster_secret)
        return joined_secrets(*(secret.get_secret_value() if secret is not None else None for secret in given))

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        fields: tuple[str, ...] = ("metadata_port", "broker_port", "gateway_port", "dashboard_port", "ray_port")
        if self.metadata_kind == "etcd":
            fields = (*fields, "etcd_port")
        if self.tls_certificate_file is not None:
            fields = (*fields, "broker_tls_port")
        require_distinct({field: getattr(self, field) for field in fields})
        return self

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        check_metadata(self)
        check_nodes(self.nodes)
        check_tls(self)
        return self

    @model_validator(mode="after")
    def _check_sections(self) -> Self:
        try:
            self.bookie_config("bookie-1", self.data_root)
            self.broker_config("broker-1")
            self.auditor_config()
            self.gateway_config()
            self.logs_config()
            self.etcd_config()
        except InvalidConfigError as error:
            if "." in (error.field or ""):  # of a section; the others are checked when the parts are made
                raise
        return self

    @property
    def data_root(self) -> Path:
        """Journals, entry logs and metadata."""
        return self.data_directory or self.home_directory / "data"

    @property
    def has_embedded_store(self) -> bool:
        """Whether the cluster runs the embedded metadata store."""
        return self.metadata_url is None and self.metadata_kind == "embedded"

    @property
    def has_etcd_members(self) -> bool:
        """Whether the cluster runs members of etcd."""
        return self.metadata_url is None and self.metadata_kind == "etcd"

    # -- configurations of the parts

    def bookie_config(
        self, bookie_id: str, directory: Path, *, port: int = 0, rack: str = "default", disk: str = ""
    ) -> BookieConfig:
        """Return what a bookie is started with; ``directory`` is below ``data_root``, or on the disk it has alone."""
        made: BookieConfig = self._build(
            "bookie",
            with_directories(self.sections.bookie, bookie_id, directory, is_alone=bool(disk)),  # type: ignore[attr-defined]
            bookie_id=bookie_id,
            port=port,
            rack=rack,
            disk=disk,
            tls=self.peer_tls,
        )
        return made

    def broker_config(self, name: str, *, port: int = 0, tls_port: int = 0) -> BrokerConfig:
        """Return what a broker is started with."""
        made: BrokerConfig = self._build(
            "broker",
            broker_id=name,
            actor_name=name,
            ray_namespace=self.namespace,
            port=port,
            tls_port=tls_port if self.tls_certificate_file is not None else None,
            tls=self.outer_tls,
            tls_only=self.tls_only,
            ledger=self.ledger_config(),
            auth=self.auth_config(),
        )
        return made

    def auditor_config(self, name: str = "auditor", duties: str = "all") -> AuditorConfig:
        """Return what the auditor, or a replication worker, is started with."""
        made: AuditorConfig = self._build("auditor", identity=name, duties=duties, ledger=self.ledger_config())
        return made

    def gateway_config(self, *, port: int = 0, metadata_url: str = "", dashboard_url: str = "") -> GatewayConfig:
        """Return what the gateway is started with; ``metadata_url`` includes the password."""
        made: GatewayConfig = self._build(
            "gateway",
            port=port,
            ray_namespace=self.namespace,
            service_urls=(),
            metadata_url=metadata_url,
            dashboard_url=dashboard_url,
            **gateway_files(self.outer_tls, self.trusted_authority, is_served=self.gateway_tls),
            auth=self.auth_config(),
        )
        return made

    def metadata_limits(self) -> ServerLimits:
        """Return the limits that the embedded metadata store is started with."""
        made: ServerLimits = self._build("metadata")
        return made

    def etcd_config(self) -> EtcdConfig:
        """Return the settings of the etcd members."""
        made: EtcdConfig = self._build("etcd")
        return made

    def endpoint_limits(self, *, container_check_ms: int) -> EndpointLimits:
        """Return the limits that the ZooKeeper endpoint is started with."""
        made: EndpointLimits = self._build("endpoint", container_check_ms=container_check_ms)
        return made

    def auth_config(self) -> AuthConfig:
        """Return who may do what, which all parts are started with."""
        made: AuthConfig = self._build("auth")
        return made

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def with_auth(self, values: Mapping[str, Any]) -> Self:
        """Return this configuration with other settings of the section ``auth``."""
        sections: Any = self.sections
        changed = sections.model_copy(update={"auth": sections.auth.model_copy(update=values)})
        return self.model_copy(update={"sections": changed})

    def ledger_config(self) -> LedgerClientConfig:
        """Return what the ledger clients of brokers and auditor are made with."""
        made: LedgerClientConfig = self._build(
            "ledger", tls=self.peer_tls, writer={"entry_bytes_max": entry_bytes_max(self.max_message_bytes)}
        )
        return made

    def logs_config(self) -> LogsConfig:
        """Return what the logs of all parts are made with."""
        made: LogsConfig = self._build("logs", directory=self.home_directory / LOGS)
        return made

    def _build(self, section: str, given: Section | None = None, **decided: Any) -> Any:
        names = {name.partition(".")[0] for name in decided_in(section)}
        shared = {name: getattr(self, name) for name in names - decided.keys()}
        if "cluster_secret" in shared:
            shared["cluster_secret"] = self.secrets
        assert decided.keys() <= names, "what the cluster decides, users cannot set"
        return build(given or getattr(self.sections, section), f"{section}.", shared | decided)

    @property
    def peer_tls(self) -> PeerTlsFiles | None:
        """The files by which parts know each other; None without TLS between them."""
        certificate, key, ca = (getattr(self, name) for name in INTERNAL_TLS)
        return None if certificate is None else PeerTlsFiles(str(certificate), str(key), str(ca))

    @property
    def trusted_authority(self) -> Path | None:
        """The authority that signs the brokers' certificate; None: one that the machine trusts."""
        return self.tls_trust_file or self.tls_ca_file

    @property
    def outer_tls(self) -> TlsFiles | None:
        """The files of listeners for clients; None without TLS."""
        return outer_files(self)
