"""The command line of one member of etcd, and its log lines. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from heliograph.base.peer import host_and_port
from heliograph.base.tls.contexts import PeerTlsFiles
from heliograph.metadata.etcd_member.config import EtcdConfig
from heliograph.metadata.etcd_member.membership import EtcdMember, EtcdMembership

_OWN_VARIABLES = "ETCD_"  # of the environment, which are flags of etcd
_KEPT = ("ETCD_UNSUPPORTED_ARCH",)


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The plan by which one member of a cluster runs on its node.

    Attributes:
        tls: TLS files for clients and peers, all of which have to show a certificate; None: no TLS.
        allowed_name: host name that the certificates of clients and peers must have; empty: any.
    """

    name: str
    membership: EtcdMembership
    config: EtcdConfig
    tls: PeerTlsFiles | None = None
    allowed_name: str = ""

    @property
    def member(self) -> EtcdMember:
        return self.membership.member(self.name)


def command_of(plan: MemberPlan, binary: str, data: Path, host: str, *, is_joining: bool) -> list[str]:
    """Return the command that runs a member.

    Args:
        data: etcd's own directory.
        host: address to bind to.
        is_joining: the member was added to a cluster that exists.
    """
    member, scheme = plan.member, "http" if plan.tls is None else "https"
    flags = {
        "name": member.name,
        "data-dir": str(data),
        "listen-client-urls": f"{scheme}://{host_and_port(host, member.client_port)}",
        "advertise-client-urls": member.client_url(plan.tls),
        "listen-peer-urls": f"{scheme}://{host_and_port(host, member.peer_port)}",
        "initial-advertise-peer-urls": member.peer_url(plan.tls),
        "initial-cluster": plan.membership.initial_cluster(plan.tls),
        "initial-cluster-token": plan.membership.cluster_id,
        "initial-cluster-state": "existing" if is_joining else "new",
        "heartbeat-interval": str(plan.config.heartbeat_ms),
        "election-timeout": str(plan.config.election_ms),
        "pre-vote": "true",  # a member that was away does not disturb the leader when it comes back
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": f"{plan.config.history_seconds}s",
        "quota-backend-bytes": str(plan.config.quota_bytes),
        "logger": "zap",
        "log-outputs": "stderr",
        "log-level": "warn",
        **_tls_flags(plan),
    }
    return [binary, *(f"--{name}={value}" for name, value in flags.items())]


def environment_of(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for etcd, without variables that would change its flags."""
    return {name: value for name, value in environment.items() if not name.startswith(_OWN_VARIABLES) or name in _KEPT}


def _tls_flags(plan: MemberPlan) -> dict[str, str]:
    if plan.tls is None:
        return {}
    flags: dict[str, str] = {}
    for prefix, names in (("", "client-cert"), ("peer-", "peer-cert")):
        flags |= {
            f"{prefix}cert-file": plan.tls.certificate,
            f"{prefix}key-file": plan.tls.key,
            f"{prefix}trusted-ca-file": plan.tls.ca,
            f"{prefix}client-cert-auth": "true",
        }
        if plan.allowed_name:
            flags[f"{names}-allowed-hostname"] = plan.allowed_name
    return flags


SERIOUS = ("error", "dpanic", "panic", "fatal")  # levels of lines that say why etcd ends


def text_of(line: str) -> tuple[str, str]:
    """Return the level and the text of a line, with its error, if any; lines in another form have level panic."""
    try:
        fields = json.loads(line)
        level, text = str(fields["level"]), str(fields["msg"])
    except (ValueError, TypeError, KeyError):
        return "panic", line.strip()
    return level, f"{text}: {fields['error']}" if fields.get("error") else text
