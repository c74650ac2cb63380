"""Bounds of the cores, each with its unit, and the relations that must hold between them (I15)."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.base.errors import InvalidConfigError
from heliograph.base.settings import check_limits, fields_added, setting

KIB = 1 << 10
MIB = 1 << 20
WINDOWS_BYTES_MAX = 256 * MIB  # payload of the adds in flight of all ledgers that a client writes, beyond the least
WINDOW_BYTES_LEAST = 64 * 1024  # of each ledger, so that small adds never go one by one; a larger add goes alone


def _check(holds: bool, field: str, limit: str) -> None:
    if not holds:
        raise InvalidConfigError(f"{field} must satisfy: {limit}", field=field, limit=limit)


@dataclass(frozen=True, slots=True)
class MetadataLimits:
    """How long a compare-and-set is retried after conflicts and lost replies."""

    retry_ms: int = setting(200, "pause between two attempts of a metadata change", least=1)
    wait_ms: int = setting(30_000, "time for all attempts together", least=1)

    def __post_init__(self) -> None:
        check_limits(self)
        _check(self.retry_ms <= self.wait_ms, "retry_ms", "0 < retry_ms <= wait_ms")


@dataclass(frozen=True, slots=True)
class QuarantineLimits:
    """When writers avoid a bookie that failed."""

    # Without the pause, two dead bookies would replace each other for ever.
    pause_ms: int = setting(2_000, "time after a failure in which a bookie replaces no other", least=0)
    failures: int = setting(5, "failures within `window_ms` after which other bookies are preferred", least=1)
    window_ms: int = setting(60_000, "time in which failures are counted", least=1)
    quarantine_ms: int = setting(300_000, "time for which other bookies are preferred", least=0)

    def __post_init__(self) -> None:
        check_limits(self)


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of a writer.

    An add is in flight until all Qw bookies have answered or were abandoned, not only until Qa have. One entry is
    always accepted, whatever its size.
    """

    in_flight_entries_max: int = setting(10_000, "adds in flight", least=1)
    in_flight_bytes_max: int = setting(32 * MIB, "payload of the adds in flight; at least `entry_bytes_max`", least=1)
    entry_bytes_max: int = setting(5 * MIB, "largest payload of an entry", least=1, decided="max_message_bytes")
    quorum_wait_ms: int = setting(
        4_000,
        "time for which adds wait when too few bookies are left for an ack quorum; then the writer fails, and "
        "publishing is refused with the reason",
        least=1,
    )
    add_timeout_ms: int = setting(
        30_000, "greatest age of an unconfirmed add, whatever the reason; then the writer fails", least=1
    )
    ensemble_change_delay_ms: int = setting(
        0,
        "time for which a failed bookie may stay in the ensemble while every entry still gets its ack quorum; 0: it is "
        "replaced at once",
        least=0,
    )
    degraded_retry_ms: int = setting(1_000, "pause between two attempts to replace failed bookies", least=1)
    explicit_lac_interval_ms: int = setting(
        200, "idle time after which the writer sends the LAC to bookies without an entry; 0: never", least=0
    )
    metadata: MetadataLimits = MetadataLimits()

    def __post_init__(self) -> None:
        check_limits(self)
        _check(
            self.entry_bytes_max <= self.in_flight_bytes_max,
            "in_flight_bytes_max",
            "0 < entry_bytes_max <= in_flight_bytes_max",
        )
        _check(self.quorum_wait_ms <= self.add_timeout_ms, "quorum_wait_ms", "0 < quorum_wait_ms <= add_timeout_ms")


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Bounds of a recovery."""

    reads_max: int = setting(16, "entries read at once; at most `in_flight_entries_max`", least=1)
    in_flight_entries_max: int = setting(256, "entries written back at once", least=1)
    in_flight_bytes_max: int = setting(
        16 * MIB, "payload of the entries written back, above which no further entry is read", least=1
    )
    progress_timeout_ms: int = setting(30_000, "time without progress after which the recovery fails", least=1)
    metadata: MetadataLimits = MetadataLimits()

    def __post_init__(self) -> None:
        check_limits(self)
        _check(self.reads_max <= self.in_flight_entries_max, "reads_max", "1 <= reads_max <= in_flight_entries_max")


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Bounds of one read."""

    speculative_ms: int = setting(
        500, "silence after which the next replica is asked, too; it doubles with each further replica", least=1
    )
    batch_bytes_max: int = setting(5 * MIB, "bytes requested of one bookie at once", least=1)
    runs_max: int = setting(8, "requests in flight for different runs of entries; striped ledgers only", least=1)

    def __post_init__(self) -> None:
        check_limits(self)


@fields_added("in_flight_bytes_least", "copy_ms")
@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Bounds of a repair. Half of each is read while the other half is sent."""

    in_flight_entries_max: int = setting(256, "copies read or sent at once", least=1)
    in_flight_bytes_max: int = setting(16 * MIB, "payload of the copies read or sent at once", least=1)
    in_flight_bytes_least: int = setting(
        512 * KIB,
        "the same while bookies are slow, so that repair goes on however busy they are; less if "
        "`in_flight_bytes_max` is",
        least=1,
    )
    copy_ms: int = setting(
        5,
        "time in which bookies are to store a copy: while they take longer, fewer bytes are copied at once, so that "
        "clients wait less; they take as long for the adds of clients",
        least=1,
    )
    bytes_per_second: int = setting(0, "payload that one repair copies in a second; 0: no limit", least=0)
    metadata: MetadataLimits = MetadataLimits()

    def __post_init__(self) -> None:
        check_limits(self)
