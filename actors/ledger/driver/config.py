"""Settings of a ledger client."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.actors.ledger.limits import (
    MIB,
    QuarantineLimits,
    ReaderLimits,
    RecoveryLimits,
    RepairLimits,
    WriterLimits,
)
from heliograph.actors.wire.entry import ENTRY_HEADER_BYTES
from heliograph.actors.wire.frame import FRAME_BYTES_MAX, FRAME_SLACK_BYTES
from heliograph.base.errors import InvalidConfigError
from heliograph.base.guard.handshake import check_secret
from heliograph.base.settings import SAME, check_limits, setting
from heliograph.base.tls.contexts import PeerTlsFiles

ENTRY_BYTES_MAX = FRAME_BYTES_MAX - FRAME_SLACK_BYTES - ENTRY_HEADER_BYTES  # payload that a frame has room for


@dataclass(frozen=True, slots=True)
class LedgerClientConfig:
    """Settings of one process's ledger client."""

    request_timeout_ms: int = setting(5_000, "silence after which a request to a bookie has failed", least=1)
    tick_ms: int = setting(50, "time between two checks of timeouts; the cores learn the time as often", least=1)
    waiting_adds_max: int = setting(
        100_000, "adds of one writer that wait for room in its window, above which it refuses more", least=1
    )
    waiting_bytes_max: int = setting(64 * MIB, "payload of the adds of one writer that wait for room", least=1)
    placement: str = setting(
        "rack",
        "policy that chooses bookies: `random`, `rack`, `random-weighted`, `rack-weighted`, or a name that "
        "`placements` registers",
    )
    placements: str = setting(
        "",
        "further policies, as `name=module:Class,...`: classes that follow `actors/ledger/placement/placement.py`, "
        "imported when the process starts",
    )
    hole_search_delay_ms: int = setting(
        1_000, "pause after a recovery before bookies are asked which entries of the dead writer they lack", least=1
    )
    cluster_secret: str | None = setting(
        None, "secret of the bookies; None: they are open", is_secret=True, decided=SAME
    )
    tls: PeerTlsFiles | None = setting(
        None,
        "files of mutual TLS with bookies; None: connections are plain",
        decided="internal_tls_certificate_file, internal_tls_key_file and internal_tls_ca_file",
    )
    writer: WriterLimits = field(default_factory=WriterLimits)
    recovery: RecoveryLimits = field(default_factory=RecoveryLimits)
    reader: ReaderLimits = field(default_factory=ReaderLimits)
    repair: RepairLimits = field(default_factory=RepairLimits)
    quarantine: QuarantineLimits = field(default_factory=QuarantineLimits)

    def __post_init__(self) -> None:
        check_limits(self)
        check_secret(self.cluster_secret)
        if self.writer.entry_bytes_max > ENTRY_BYTES_MAX:
            raise InvalidConfigError(
                f"entries of {self.writer.entry_bytes_max} bytes do not fit a frame of the bookie protocol",
                field="entry_bytes_max",
                limit=f"at most {ENTRY_BYTES_MAX} bytes",
            )
