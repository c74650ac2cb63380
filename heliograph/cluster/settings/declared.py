"""The settings of a cluster: their names, defaults, bounds and meanings.

``heliograph/cluster/config.py`` checks settings against each other.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

from pydantic import SecretStr

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.base.settings import setting_of
from heliograph.base.system.processes import usable_cpus
from heliograph.cluster.labels import ONE_MACHINE, PARTS_MAX
from heliograph.cluster.settings.location import ClusterLocation, own
from heliograph.metadata.etcd_member.membership import COUNTS

KIB = 1024
MIB = 1024 * KIB
CORES_PER_PART = 8  # a broker and a bookie are one busy core each at most, and leave the others to what uses them
BROKERS_LEAST = 2  # one can fail
BOOKIES_LEAST = 3  # as many as there are copies

_CGROUP = Path("/sys/fs/cgroup/cpu.max")


def default_brokers(cores: int) -> int:
    return min(PARTS_MAX, max(BROKERS_LEAST, cores // CORES_PER_PART))


def joining_brokers(cores: int) -> int:
    """Return the number of brokers that a machine of so many cores brings into a cluster."""
    return min(PARTS_MAX, cores // CORES_PER_PART)


def default_bookies(cores: int) -> int:
    """Return the number of bookies for a machine of so many cores, where its disks do not say it."""
    return min(PARTS_MAX, max(BOOKIES_LEAST, cores // CORES_PER_PART))


def usable_cores(quota: Path = _CGROUP) -> int:
    """Return the cores that this process may use: those of its affinity, at most the quota of its container.

    Args:
        quota: file with microseconds and period, or ``max`` in place of the first.
    """
    cores = usable_cpus()
    try:
        allowed, period = quota.read_text().split()
        return cores if allowed == "max" else max(1, min(cores, int(allowed) // int(period)))
    except (OSError, ValueError):
        return cores


def _port(default: int, meaning: str) -> Any:
    return own(default, meaning, least=0, most=65_535)


def _shared(part: type[Any], name: str, **marks: Any) -> Any:
    """Declare a setting of the cluster that is the parts' setting of the same name: default and meaning are theirs."""
    declared = part.__dataclass_fields__[name]
    return own(declared.default, setting_of(declared).meaning, **marks)


class ClusterSettings(ClusterLocation):
    """The cluster's own settings, and a section of settings for each kind of part."""

    config_file: Path | None = own(None, "TOML file with further settings; None: `<home>/cluster.toml` if it exists")
    sections: dict[str, dict[str, Any]] = own(dict, "settings of the parts, by section")
    nodes: dict[str, dict[str, dict[str, Any]]] = own(
        dict,
        "settings of the parts of one node: the table `[nodes.NAME.bookie]` and its siblings for "
        "brokers and the gateway. NAME is the node's address in Ray, its host name or its label `heliograph.io/host`, "
        "or `*` for every node; `disks` of a table for bookies are directories, each for a bookie of its own",
    )
    data_directory: Path | None = own(None, "journals, entry logs and metadata, on each node; None: `<home>/data`")
    host: str = own(
        "127.0.0.1",
        "address that every listener binds to; `node`: the address of the Ray node that runs the part, and "
        "`0.0.0.0`: all addresses, of which the Ray node's is advertised",
        min_length=1,
    )
    node_address: str | None = own(
        None,
        "address of this machine's Ray node, when `helio up` starts Ray; None: `host` if it is "
        "an address of one machine, else Ray's own choice",
        min_length=1,
    )

    lean: bool = own(
        False,
        "a Ray that `helio up` starts has no dashboard, log monitor and autoscaler monitor, which no "
        "message meets; metrics are exported nevertheless",
    )
    parts: Literal["apart", "together"] | None = own(
        None,
        "`apart`: each part is a process of its own; `together`: the parts that can run on the node of "
        "`helio up` only share one process there, which needs much less memory, has one core, and ends as one; None: "
        "`together` if `lean` is set and `host` is a loopback address, else `apart`",
    )
    ray_on_loopback: bool = own(
        False,
        "all ports of a Ray that `helio up` starts are on loopback; other programs that join it need "
        "`RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER=0` in their environment, `helio` and `heliograph.connect` do not",
    )

    secure: bool = own(
        False,
        "authentication, TLS at every listener (`tls = auto` unless files are given) and no plain port, and an audit "
        "log: the same as `auth.enabled`, `tls`, `tls_only` and `gateway_tls`",
    )
    insecure: bool = own(
        False,
        "allow unauthenticated access on an address that other machines reach",
    )

    cluster_secret: SecretStr | None = own(
        None,
        "secret that clients of bookies and of the embedded metadata store prove; None: the cluster makes one, and "
        "keeps it in `<home>/cluster.secret`",
    )
    previous_cluster_secret: SecretStr | None = own(
        None, "secret that is still valid beside `cluster_secret`, so that it can be changed without a stop"
    )

    tls: Literal["files", "auto", "parts"] = own(
        "files",
        "`auto`: every listener speaks TLS by certificates of an authority of the cluster's own, in "
        "`<home>/certificates` on this machine; `parts`: only bookies and the metadata store do, as by default with "
        "`auth.enabled` and etcd members; `files`: by the files that the settings below name",
    )
    tls_certificate_file: Path | None = own(
        None, "PEM with the brokers' certificate and its chain, on each node; None: no TLS"
    )
    tls_key_file: Path | None = own(None, "PEM with the private key of the certificate")
    tls_ca_file: Path | None = own(None, "PEM of the authority that signs the certificates of clients")
    tls_require_client_certificate: bool = own(False, "refuse clients without a certificate signed by `tls_ca_file`")

    tls_trust_file: Path | None = own(
        None,
        "PEM of the authority that signs the brokers' certificate, which the gateway and clients on this "
        "machine trust; None: `tls_ca_file`, and without that the machine's trusted authorities",
    )
    tls_only: bool = own(False, "brokers open no plain port, and a gateway has to have `gateway_tls`")

    internal_tls_certificate_file: Path | None = own(
        None,
        "PEM with the certificate that each part shows the others, and its chain, on each node, good for "
        "servers and clients; None: bookies and the embedded metadata store speak no TLS",
    )
    internal_tls_key_file: Path | None = own(None, "PEM with the private key of that certificate")
    internal_tls_ca_file: Path | None = own(None, "PEM of the authority that signs the certificates of the parts")

    bookies: int = own(
        lambda: default_bookies(usable_cores()),
        "storage nodes to start; default: 3, or one for each 8 cores of this machine if that is more, at "
        "most 16; where `[nodes.NAME.bookie]` names disks, each of them has one",
        least=1,
        most=999,
    )
    brokers: int = own(
        lambda: default_brokers(usable_cores()),
        "brokers to start; default: 2, of which one can fail, or one for each 8 cores of this machine if "
        "that is more, at most 16, and then one for each 8 cores of a machine that joins",
        least=1,
        most=999,
    )
    gateway: bool = own(True, "start the HTTP and WebSocket gateway")
    auditor: bool = own(True, "start the auditor, without which lost copies are not restored")
    operator: bool = own(
        True, "start the operator, which gives joining nodes their parts, scales, and restarts parts in turn"
    )

    metadata_kind: Literal["embedded", "etcd"] = own(
        "embedded",
        "metadata store that the cluster runs itself: `embedded` is one actor with one disk; `etcd` is "
        "one, three or five members of etcd, on the nodes labelled `heliograph.io/metadata=true`",
    )
    metadata_members: int | None = own(
        None,
        'members of `metadata_kind = "etcd"`, 1, 3 or 5, kept from the first start on; None: as many as '
        "nodes are labelled for them then",
    )
    metadata_url: str | None = own(None, "existing metadata store; None: the cluster runs its own, see `metadata_kind`")
    metadata_password: SecretStr | None = own(
        None, "password of the user that `metadata_url` names; kept out of files and listings"
    )
    metadata_port: int = _port(0, "port of the embedded store; 0: a free one, kept over restarts")
    etcd_port: int = own(
        2379,
        'port for clients of the first member of `metadata_kind = "etcd"`, etcd\'s own; the other members '
        "reach it at the next port, and each further member has both ports 2 higher",
        least=1,
        most=65_535 - 2 * max(COUNTS),
    )
    bookie_port: int = _port(
        0,
        "port of the first bookie, such as BookKeeper's 3181, and 1 more for each other one; 0: free ones, which "
        "they keep",
    )
    broker_port: int = _port(
        6650, "port of the first broker, Pulsar's own, and 2 more for each other one; 0: free ones"
    )
    gateway_tls: bool = own(False, "the gateway speaks https, with the brokers' certificate")
    gateway_tls_port: int | None = own(
        None,
        "port where the gateway speaks https, such as Pulsar's 8443, beside http at `gateway_port`; None: it has one "
        "port, and `gateway_tls` decides between http and https",
        least=1,
        most=65_535,
    )
    broker_tls_port: int = _port(
        6651,
        "port for TLS of the first broker, with `tls_certificate_file`, and 2 more for each other one; 0: free ones",
    )
    gateway_port: int = _port(8080, "port of the gateway, Pulsar's own; 0: a free one")
    metrics_port: int = own(
        9400,
        "port of the auditor's `/metrics`; broker-N serves its own at a port that is N higher, bookie-N 1000 + N, "
        "replicator-N 2000 + N, the metadata store 3000, the operator 3001; a part whose port is taken uses a free "
        "one; 0: parts serve none",
        least=0,
        most=65_535 - 3_001,
    )
    dashboard_port: int = _port(8265, "port of the Ray dashboard; 0, or 8265 if that is in use: a free one")
    ray_port: int = _port(
        0,
        "port of a Ray head that `helio up` starts, where other nodes join it (6379 is usual); 0: a free one, which a "
        "head that is started again has again",
    )

    ensemble_size: int = own(3, "E: bookies that a segment is spread over")
    write_quorum: int = own(3, "Qw: copies of each entry")
    ack_quorum: int = own(2, "Qa: fsynced copies before a publish is acknowledged")

    max_message_bytes: int = own(
        5 * MIB, "largest message; frames and caches are sized for 5 MiB", least=1 * KIB, most=5 * MIB
    )
    session_timeout_ms: int = own(
        10_000,
        "timeout of the sessions with the metadata store, after which a part that is silent is replaced",
        least=1_000,
        most=300_000,
    )
    lost_bookie_delay_ms: int = _shared(AuditorConfig, "lost_bookie_delay_ms", least=0)
    audit_interval_ms: int = _shared(AuditorConfig, "audit_interval_ms", least=100)
    open_ledger_grace_ms: int = _shared(AuditorConfig, "open_ledger_grace_ms", least=0)
    start_timeout_ms: int = own(120_000, "time for each part of the cluster to be ready", least=1_000)

    require_labels: bool = own(True, "place actors only on nodes that have `heliograph.io/` labels")
    actor_cpus: float = own(
        0,
        "CPUs of Ray's that each actor holds, which tasks then lack; an autoscaler leaves its node alone "
        "in any case, because it holds a mebibyte of Ray's resource `memory`, too",
        least=0,
        most=64,
    )
    ray_cpus: int = own(
        lambda: max(8, os.cpu_count() or 1),
        "logical CPUs of a Ray head that `helio up` starts, for tasks beside the actors; default: the "
        "machine's, at least 8",
        least=1,
    )
    ray_labels: str = own(
        ",".join(f"{label}={value}" for label, value in ONE_MACHINE.items()),
        "labels of a Ray head that `helio up` starts, `name=value,name=value`; where a part is for another "
        "node, `helio up` waits `start_timeout_ms` for it to join",
        pattern=r"^[^=,\s]+=[^=,\s]+(,[^=,\s]+=[^=,\s]+)*$",
    )
    ray_object_store_bytes: int = own(
        512 * MIB, "object store of a Ray head that `helio up` starts; messages do not pass through it", least=80 * MIB
    )
