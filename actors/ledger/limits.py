"""Bounds of the cores, each with its unit, and the relations that must hold between them (I15)."""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.errors import InvalidConfigError

KIB = 1 << 10
MIB = 1 << 20


def _check(holds: bool, field: str, limit: str) -> None:
    if not holds:
        raise InvalidConfigError(f"{field} must satisfy: {limit}", field=field, limit=limit)


@dataclass(frozen=True, slots=True)
class MetadataLimits:
    """How long a compare-and-set may go on against conflicts and lost replies."""

    retry_ms: int = 200
    wait_ms: int = 30_000

    def __post_init__(self) -> None:
        _check(0 < self.retry_ms <= self.wait_ms, "retry_ms", "0 < retry_ms <= wait_ms")


@dataclass(frozen=True, slots=True)
class QuarantineLimits:
    """When failing bookies are passed over.

    Args:
        pause_ms: a bookie that just failed replaces nobody for this long: two dead ones would swap places for ever.
        failures: failures within ``window_ms`` after which others are preferred to it, for ``quarantine_ms``.
    """

    pause_ms: int = 2_000
    failures: int = 5
    window_ms: int = 60_000
    quarantine_ms: int = 300_000

    def __post_init__(self) -> None:
        _check(self.pause_ms >= 0, "pause_ms", "at least 0 ms")
        _check(self.failures >= 1, "failures", "at least 1 failure")
        _check(self.window_ms > 0, "window_ms", "more than 0 ms")
        _check(self.quarantine_ms >= 0, "quarantine_ms", "at least 0 ms")


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of a writer.

    Args:
        in_flight_entries_max: adds held, counted until all Qw bookies answered or were given up, not until Qa did.
        in_flight_bytes_max: their payload bytes; one entry is always taken, however big.
        entry_bytes_max: payload bytes of one entry.
        quorum_wait_ms: how long adds wait when too few bookies are left for an ack quorum, before the writer fails.
        add_timeout_ms: greatest age of an unconfirmed add, whatever the reason, before the writer fails.
        ensemble_change_delay_ms: how long a failed bookie may stay in the ensemble while every entry still gets its
            ack quorum; 0 replaces it at once.
        degraded_retry_ms: pause between attempts to fill the places of failed bookies.
        explicit_lac_interval_ms: idle time after which the LAC is told to bookies without an entry; 0 never does.
    """

    in_flight_entries_max: int = 10_000
    in_flight_bytes_max: int = 32 * MIB
    entry_bytes_max: int = 5 * MIB
    quorum_wait_ms: int = 10_000
    add_timeout_ms: int = 30_000
    ensemble_change_delay_ms: int = 0
    degraded_retry_ms: int = 1_000
    explicit_lac_interval_ms: int = 200
    metadata: MetadataLimits = MetadataLimits()

    def __post_init__(self) -> None:
        _check(self.in_flight_entries_max >= 1, "in_flight_entries_max", "at least 1 entry")
        _check(
            0 < self.entry_bytes_max <= self.in_flight_bytes_max,
            "in_flight_bytes_max",
            "0 < entry_bytes_max <= in_flight_bytes_max",
        )
        _check(0 < self.quorum_wait_ms <= self.add_timeout_ms, "quorum_wait_ms", "0 < quorum_wait_ms <= add_timeout_ms")
        _check(self.ensemble_change_delay_ms >= 0, "ensemble_change_delay_ms", "at least 0 ms")
        _check(self.degraded_retry_ms > 0, "degraded_retry_ms", "more than 0 ms")
        _check(self.explicit_lac_interval_ms >= 0, "explicit_lac_interval_ms", "at least 0 ms")


@dataclass(frozen=True, slots=True)
class RecoveryLimits:
    """Bounds of a recovery.

    Args:
        reads_max: entries being read at once.
        in_flight_entries_max: entries being written back at once.
        in_flight_bytes_max: their payload bytes, beyond which no further entry is read.
        progress_timeout_ms: time without any progress after which the recovery gives up.
    """

    reads_max: int = 16
    in_flight_entries_max: int = 256
    in_flight_bytes_max: int = 16 * MIB
    progress_timeout_ms: int = 30_000
    metadata: MetadataLimits = MetadataLimits()

    def __post_init__(self) -> None:
        _check(self.in_flight_entries_max >= 1, "in_flight_entries_max", "at least 1 entry")
        _check(self.in_flight_bytes_max >= 1, "in_flight_bytes_max", "at least 1 byte")
        _check(
            1 <= self.reads_max <= self.in_flight_entries_max, "reads_max", "1 <= reads_max <= in_flight_entries_max"
        )
        _check(self.progress_timeout_ms > 0, "progress_timeout_ms", "more than 0 ms")


@dataclass(frozen=True, slots=True)
class ReaderLimits:
    """Bounds of one read.

    Args:
        speculative_ms: silence after which the next replica is asked too; doubles with each further one.
        batch_bytes_max: bytes asked of one bookie at once.
        runs_max: requests for different runs of entries under way at once (striped ledgers only).
    """

    speculative_ms: int = 500
    batch_bytes_max: int = 5 * MIB
    runs_max: int = 8

    def __post_init__(self) -> None:
        _check(self.speculative_ms > 0, "speculative_ms", "more than 0 ms")
        _check(self.batch_bytes_max > 0, "batch_bytes_max", "more than 0 bytes")
        _check(self.runs_max >= 1, "runs_max", "at least 1 run")


@dataclass(frozen=True, slots=True)
class RepairLimits:
    """Bounds of a repair run: copies read or under way at once. Half of each is read while the other half is sent."""

    in_flight_entries_max: int = 256
    in_flight_bytes_max: int = 16 * MIB
    metadata: MetadataLimits = MetadataLimits()

    def __post_init__(self) -> None:
        _check(self.in_flight_entries_max >= 1, "in_flight_entries_max", "at least 1 entry")
        _check(self.in_flight_bytes_max >= 1, "in_flight_bytes_max", "at least 1 byte")
