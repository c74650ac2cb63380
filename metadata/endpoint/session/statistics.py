"""The counters of an endpoint, and the answers to four-letter words. No I/O."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from importlib import metadata as distribution

PROTOCOL_OF = "3.9.3"  # the ZooKeeper whose protocol is spoken
DISTRIBUTION = "heliograph-ray"


@dataclass(slots=True)
class Statistics:
    """Counts since the start; times in milliseconds."""

    frames_in: int = 0
    frames_out: int = 0
    bytes_in: int = 0
    events: int = 0
    refused_connections: int = 0
    answered: int = 0
    latency_ms_sum: float = 0.0
    latency_ms_min: float = 0.0
    latency_ms_max: float = 0.0
    requests: Counter[str] = field(default_factory=Counter)  # by operation
    errors: Counter[str] = field(default_factory=Counter)  # by code

    def answered_after(self, latency_ms: float) -> None:
        self.latency_ms_min = min(self.latency_ms_min, latency_ms) if self.answered else latency_ms
        self.latency_ms_max = max(self.latency_ms_max, latency_ms)
        self.latency_ms_sum += latency_ms
        self.answered += 1

    @property
    def latency_ms_mean(self) -> float:
        return self.latency_ms_sum / self.answered if self.answered else 0.0


@dataclass(frozen=True, slots=True)
class ConnectionFacts:
    """The state of a connection at one time; the session's id and timeout are 0 while it has none."""

    peer: str
    waiting: int  # requests that are not answered
    received: int = 0
    sent: int = 0
    session_id: int = 0
    timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class Facts:
    """The state of an endpoint at one time."""

    is_ready: bool
    address: str
    zxid: int
    connections: tuple[ConnectionFacts, ...]
    sessions: int
    expired_sessions: int
    moved_sessions: int
    watches: int
    acls: int
    session_timeout_ms_min: int
    session_timeout_ms_max: int
    connections_max: int  # of one address
    unfinished_bytes: int = 0
    unfinished_closed: int = 0

    @property
    def outstanding(self) -> int:
        return sum(connection.waiting for connection in self.connections)


def version() -> str:
    """Return the version that four-letter words show."""
    return f"{PROTOCOL_OF}-heliograph-{distribution.version(DISTRIBUTION)}, built on the metadata store's interface"


def answer(word: bytes, facts: Facts, counts: Statistics) -> str:
    """Return the text that answers a four-letter word."""
    match word:
        case b"ruok":
            return "imok" if facts.is_ready else "the metadata store is unreachable\n"
        case b"isro":
            return "rw"
        case b"srvr":
            return _served(facts, counts, clients=False)
        case b"stat":
            return _served(facts, counts, clients=True)
        case b"cons":
            return "".join(_connection(each) for each in facts.connections) + "\n"
        case b"mntr":
            return _monitored(facts, counts)
        case b"conf":
            return _configured(facts)
        case b"envi":
            return f"Environment:\nzookeeper.version={version()}\n"
        case _:
            return f"{word.decode()} is not executed because it is not in the whitelist.\n"


def _served(facts: Facts, counts: Statistics, *, clients: bool) -> str:
    lines = [f"Zookeeper version: {version()}"]
    if clients:
        lines += [
            "Clients:",
            *(
                f" /{each.peer}(queued={each.waiting},recved={each.received},sent={each.sent})"
                for each in facts.connections
            ),
            "",
        ]
    lines += [
        f"Latency min/avg/max: {counts.latency_ms_min:.0f}/{counts.latency_ms_mean:.4f}/{counts.latency_ms_max:.0f}",
        f"Received: {counts.frames_in}",
        f"Sent: {counts.frames_out}",
        f"Connections: {len(facts.connections)}",
        f"Outstanding: {facts.outstanding}",
        f"Zxid: {facts.zxid:#x}",
        "Mode: standalone",
    ]
    return "\n".join(lines) + "\n"


def _connection(each: ConnectionFacts) -> str:
    session = f",sid={each.session_id & (1 << 64) - 1:#x},to={each.timeout_ms}" if each.session_id else ""
    return f" /{each.peer}[1](queued={each.waiting},recved={each.received},sent={each.sent}{session})\n"


def _monitored(facts: Facts, counts: Statistics) -> str:
    values: dict[str, object] = {
        "zk_version": version(),
        "zk_server_state": "standalone",
        "zk_avg_latency": f"{counts.latency_ms_mean:.4f}",
        "zk_min_latency": f"{counts.latency_ms_min:.0f}",
        "zk_max_latency": f"{counts.latency_ms_max:.0f}",
        "zk_packets_received": counts.frames_in,
        "zk_packets_sent": counts.frames_out,
        "zk_num_alive_connections": len(facts.connections),
        "zk_outstanding_requests": facts.outstanding,
        "zk_global_sessions": facts.sessions,
        "zk_stale_sessions_expired": facts.expired_sessions,
        "zk_heliograph_sessions_moved_here": facts.moved_sessions,
        "zk_watch_count": facts.watches,
        "zk_bytes_received_count": counts.bytes_in,
        "zk_connection_rejected": counts.refused_connections,
        "zk_heliograph_unfinished_bytes": facts.unfinished_bytes,
        "zk_heliograph_unfinished_closed": facts.unfinished_closed,
        "zk_heliograph_ready": int(facts.is_ready),
        "zk_heliograph_acls": facts.acls,
        "zk_heliograph_watch_events": counts.events,
    }
    values |= {f"zk_heliograph_requests_{name}": count for name, count in sorted(counts.requests.items())}
    values |= {f"zk_heliograph_errors_{name}": count for name, count in sorted(counts.errors.items())}
    return "".join(f"{name}\t{value}\n" for name, value in values.items())


def _configured(facts: Facts) -> str:
    host, _, port = facts.address.rpartition(":")
    values: dict[str, object] = {
        "clientPort": port,
        "clientPortAddress": host,
        "maxClientCnxns": facts.connections_max,
        "minSessionTimeout": facts.session_timeout_ms_min,
        "maxSessionTimeout": facts.session_timeout_ms_max,
    }
    return "".join(f"{name}={value}\n" for name, value in values.items())
