"""Where the parts of a cluster serve their metrics, and what callers have to show."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.auth.config import AuthConfig
from heliograph.base.tls.contexts import TlsFiles
from heliograph.cluster.naming import kind_of
from heliograph.metrics.parts import reader_of

# The port of a part is `metrics_port`, this, and the part's number: 9403 is that of broker-3, 10402 that of bookie-2.
OFFSETS = {"auditor": 0, "broker": 0, "bookie": 1_000, "replicator": 2_000, "metadata": 3_000, "operator": 3_001}
LAST_OFFSET = 3_001


@dataclass(frozen=True, slots=True)
class WatchConfig:
    """The doors for metrics.

    Attributes:
        cluster: its name.
        host: address of the listeners, as that of the parts' own.
        port: the first port, see ``port_of``; 0: there are no doors.
        auth: who has to show what: a superuser's token, or certificate, where it is enabled.
        tls: files of the listeners; None: they speak HTTP.
        metadata_url: of the store with the list of revoked tokens, with the secret; empty: none is followed.
        allowed_hosts: names by which the parts are reached, as those of the gateway.
    """

    host: str
    port: int
    auth: AuthConfig = AuthConfig()  # noqa: RUF009  # it is immutable
    tls: TlsFiles | None = None
    cluster: str = ""
    metadata_url: str = field(default="", repr=False)
    allowed_hosts: tuple[str, ...] = ()

    def port_of(self, part: str) -> int:
        """Return the port of a part, 0 if it has no metrics of its own."""
        kind, number = kind_of(part), part.rpartition("-")[2]
        if not self.port or reader_of(part) is None:
            return 0
        return self.port + OFFSETS[kind] + (int(number) if number.isdecimal() else 0)


@dataclass(frozen=True, slots=True)
class WatchFiles:
    """Where the files are.

    Attributes:
        home: directory of the cluster.
        address: of the Ray node that has it.
        cluster: its name, a label of all targets.
    """

    home: str
    address: str
    cluster: str
