"""The configuration of a cluster: the sources of its settings, the checks of them, and the settings of each part.

A setting comes from an argument, else from the environment variable ``HELIOGRAPH_<NAME>`` or
``HELIOGRAPH_<SECTION>__<NAME>``, else from a TOML file, else it has its default. Sizes are bytes and times are
milliseconds unless the name says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import field_validator, model_validator
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
from heliograph.base.peer import NODE, is_loopback
from heliograph.base.section import Declared, from_environment, unknown_setting
from heliograph.base.tls.contexts import PeerTlsFiles, TlsFiles
from heliograph.client.discovery import GATEWAY
from heliograph.cluster.logs.config import LogsConfig
from heliograph.cluster.ports import require_distinct
from heliograph.cluster.settings.declared import ClusterSettings
from heliograph.cluster.settings.environment import check_environment
from heliograph.cluster.settings.file import file_of
from heliograph.cluster.settings.location import PREFIX
from heliograph.cluster.settings.metadata_url import check_metadata
from heliograph.cluster.settings.nodes import DIRECTORIES, check_nodes
from heliograph.cluster.settings.pickling import reduced
from heliograph.cluster.settings.quorums import check_quorum, check_secrets
from heliograph.cluster.settings.sections import SECTIONS, lifted
from heliograph.cluster.settings.secure import with_security
from heliograph.cluster.settings.tls import (
    INTERNAL_TLS,
    OUTER_TLS,
    check_tls,
    gateway_files,
    outer_files,
    with_own_certificates,
)
from heliograph.cluster.watch.config import WatchConfig, WatchFiles
from heliograph.gateway.config import GatewayConfig
from heliograph.metadata.backends.embedded.limits import ServerLimits
from heliograph.metadata.endpoint.limits import EndpointLimits
from heliograph.metadata.etcd_member.config import EtcdConfig
from heliograph.metadata.model import Persistence

C = TypeVar("C")


class ClusterConfig(ClusterSettings):
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

    @override
    def __init__(self, **values: Any) -> None:
        check_environment(os.environ, self.known_settings())
        super().__init__(**lifted(values))

    @override
    @classmethod
    def declared(cls) -> Iterator[Declared]:
        yield from super().declared()
        for section in SECTIONS.values():
            yield from section.settings()

    @override
    @classmethod
    def known_settings(cls) -> Collection[str]:
        return [*super().known_settings(), *SECTIONS]

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
        sections = InitSettingsSource(settings_cls, lifted(from_environment(os.environ, PREFIX, SECTIONS)))
        file = InitSettingsSource(settings_cls, file_of({**env_settings(), **init_settings()}))
        return init_settings, env_settings, sections, file

    @field_validator("config_file", "data_directory", "tls_trust_file", *OUTER_TLS, *INTERNAL_TLS)
    @classmethod
    def _absolute(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser().absolute()

    @model_validator(mode="before")
    @classmethod
    def _complete(cls, values: dict[str, Any]) -> dict[str, Any]:
        return with_own_certificates(with_security(values))

    @field_validator("sections")
    @classmethod
    def _read_sections(cls, tables: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for name in tables:
            if name not in SECTIONS:
                raise unknown_setting(name, SECTIONS)
        return {name: section.read(tables.get(name, {})) for name, section in SECTIONS.items()}

    @model_validator(mode="after")
    def _check_quorum(self) -> Self:
        check_quorum(self)
        check_secrets(self)
        return self

    @property
    def persistence(self) -> Persistence:
        """The number of copies for namespaces that set none."""
        return Persistence(self.ensemble_size, self.write_quorum, self.ack_quorum)

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
        if self.gateway_tls_port is not None:
            fields = (*fields, "gateway_tls_port")
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
    def shares_process(self) -> bool:
        """Whether the parts that can run on one node only share a process."""
        if self.parts is None:
            return self.lean and is_loopback(self.host)
        return self.parts == "together"

    @property
    def serves_https(self) -> bool:
        """Whether the gateway has a port for https."""
        return self.gateway_tls or self.gateway_tls_port is not None

    @property
    def has_own_authority(self) -> bool:
        """Whether ``helio up`` makes the certificates of the parts."""
        return self.tls in ("auto", "parts")

    @property
    def has_embedded_store(self) -> bool:
        return self.metadata_url is None and self.metadata_kind == "embedded"

    @property
    def has_etcd_members(self) -> bool:
        return self.metadata_url is None and self.metadata_kind == "etcd"

    @property
    def fixed_host(self) -> str:
        """The address on which the head's ports have to be free."""
        return "0.0.0.0" if self.host == NODE else self.host

    @property
    def fixed_ports(self) -> dict[str, int]:
        """The ports of the head's parts, by setting; 0: a free one."""
        used = {
            "metadata_port": self.has_embedded_store,
            "etcd_port": self.has_etcd_members,
            "broker_port": not self.tls_only,
            "gateway_port": self.gateway,
            "gateway_tls_port": self.gateway and self.gateway_tls_port is not None,
        }
        return {setting: getattr(self, setting) for setting, is_used in used.items() if is_used}

    # -- configurations of the parts

    def bookie_config(
        self, bookie_id: str, directory: Path, *, port: int = 0, rack: str = "default", disk: str = ""
    ) -> BookieConfig:
        """Return the configuration of a bookie.

        A directory that the section ``bookie`` names holds one directory for each bookie, with its journal or ledgers.

        Args:
            directory: where the bookie keeps what the section names no directory for; with ``disk``, all that it keeps.
        """
        given = self.sections["bookie"]
        placed = {}
        for name, leaf in DIRECTORIES.items():
            roots = [root.expanduser().absolute() / bookie_id for root in given.get(name, ()) if not disk]
            placed[name] = tuple(root / leaf for root in roots or [directory])
        return self._build(
            BookieConfig, {**given, **placed}, bookie_id=bookie_id, port=port, rack=rack, disk=disk, tls=self.peer_tls
        )

    def broker_config(self, name: str, *, port: int = 0, tls_port: int = 0) -> BrokerConfig:
        """Return the configuration of a broker. With authentication, an audit log goes to a file unless it is set."""
        auth = self.auth_config()
        given = self.sections["broker"]
        if auth.is_enabled and not {"file", "topic"} & given.get("audit", {}).keys():
            given = {**given, "audit": {**given.get("audit", {}), "file": self._audit_file("{broker_id}")}}
        return self._build(
            BrokerConfig,
            given,
            broker_id=name,
            actor_name=name,
            ray_namespace=self.namespace,
            port=port,
            tls_port=tls_port if self.tls_certificate_file is not None else None,
            tls=self.outer_tls,
            tls_only=self.tls_only,
            ledger=self.ledger_config(),
            auth=auth,
        )

    def auditor_config(self, name: str = "auditor", duties: str = "all") -> AuditorConfig:
        return self._build(AuditorConfig, identity=name, duties=duties, ledger=self.ledger_config())

    def gateway_config(self, *, port: int = 0, metadata_url: str = "", dashboard_url: str = "") -> GatewayConfig:
        """Return the configuration of the gateway; its ``metadata_url`` includes the password."""
        auth = self.auth_config()
        made = {"audit_file": self._audit_file(GATEWAY)} if auth.is_enabled else {}
        return self._build(
            GatewayConfig,
            {**made, **self.sections["gateway"]},
            port=port,
            ray_namespace=self.namespace,
            service_urls=(),
            metadata_url=metadata_url,
            dashboard_url=dashboard_url,
            **gateway_files(self.outer_tls, self.trusted_authority, is_served=self.serves_https),
            tls_port=self.gateway_tls_port,
            auth=auth,
        )

    def _audit_file(self, part: str) -> str:
        return str(self.home_directory / LOGS / f"audit-{part}.json")

    def metadata_limits(self) -> ServerLimits:
        """Return the limits that the embedded metadata store is started with."""
        return self._build(ServerLimits)

    def etcd_config(self) -> EtcdConfig:
        return self._build(EtcdConfig)

    def endpoint_limits(self, *, container_check_ms: int) -> EndpointLimits:
        """Return the limits that the ZooKeeper endpoint is started with."""
        return self._build(EndpointLimits, container_check_ms=container_check_ms)

    def auth_config(self) -> AuthConfig:
        """Return who may do what, which all parts are started with."""
        return self._build(AuthConfig)

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return reduced(self)

    def with_auth(self, values: Mapping[str, Any]) -> Self:
        """Return this configuration with other settings of the section ``auth``."""
        auth = {**self.sections["auth"], **values}
        return self.model_copy(update={"sections": {**self.sections, "auth": auth}})

    def ledger_config(self) -> LedgerClientConfig:
        return self._build(
            LedgerClientConfig, tls=self.peer_tls, writer={"entry_bytes_max": entry_bytes_max(self.max_message_bytes)}
        )

    def watch_config(self, metadata_url: str) -> WatchConfig:
        """Return the addresses at which parts serve their metrics; over https if the gateway speaks it."""
        tls = self.outer_tls if self.serves_https else None
        hosts = self.gateway_config().allowed_hosts
        return WatchConfig(self.host, self.metrics_port, self.auth_config(), tls, self.namespace, metadata_url, hosts)

    def watch_files(self, address: str) -> WatchFiles:
        """Return the paths of the files that Prometheus reads; ``address`` is the node that has the home."""
        return WatchFiles(str(self.home_directory), address, self.namespace)

    def logs_config(self) -> LogsConfig:
        return self._build(LogsConfig, directory=self.home_directory / LOGS)

    def _build(self, part: type[C], given: Mapping[str, Any] | None = None, **decided: Any) -> C:
        name, section = next((name, section) for name, section in SECTIONS.items() if section.part is part)
        names = {name.partition(".")[0] for name in section.decided()}
        shared = {name: getattr(self, name) for name in names - decided.keys()}
        if "cluster_secret" in shared:
            shared["cluster_secret"] = self.secrets
        assert decided.keys() <= names, "users cannot set a field that the cluster decides"
        made: C = section.build(self.sections[name] if given is None else given, shared | decided)
        return made

    @property
    def peer_tls(self) -> PeerTlsFiles | None:
        """The files by which parts know each other; None without TLS between them."""
        certificate, key, ca = (getattr(self, name) for name in INTERNAL_TLS)
        return None if certificate is None else PeerTlsFiles(str(certificate), str(key), str(ca))

    @property
    def trusted_authority(self) -> Path | None:
        """The authority that signs the brokers' certificate; None: an authority that the machine trusts."""
        return self.tls_trust_file or self.tls_ca_file

    @property
    def outer_tls(self) -> TlsFiles | None:
        """The files of listeners for clients; None without TLS."""
        return outer_files(self)
