"""The settings of the etcd members that a cluster runs itself."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.base.errors import InvalidConfigError
from heliograph.base.settings import check_limits, setting

ELECTION_HEARTBEATS_MIN = 5  # etcd's own rule


@dataclass(frozen=True, slots=True)
class EtcdConfig:
    """The settings that all members of a cluster share."""

    binary: str = setting("", "path of the program `etcd` on each node; empty: found in PATH")
    quota_bytes: int = setting(
        2 << 30,
        "size of a member's database from which etcd takes no more writes (alarm NOSPACE)",
        least=64 << 20,
        most=8 << 30,
    )
    history_seconds: int = setting(
        3_600, "history that is kept; older revisions are compacted by etcd itself", least=60, most=7 * 86_400
    )
    heartbeat_ms: int = setting(100, "time between two heartbeats of the leader", least=10, most=5_000)
    election_ms: int = setting(
        1_000,
        "time without a heartbeat after which members elect another leader; sessions last at least one and a half",
        least=50,
        most=50_000,
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if self.election_ms < ELECTION_HEARTBEATS_MIN * self.heartbeat_ms:
            raise InvalidConfigError(
                f"election_ms is {self.election_ms}, it must be at least {ELECTION_HEARTBEATS_MIN} heartbeat_ms",
                field="election_ms",
                limit=f"at least {ELECTION_HEARTBEATS_MIN} times heartbeat_ms",
            )
