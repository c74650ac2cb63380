"""What an auditor is told at start, with every bound it keeps. Times are milliseconds."""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.errors import InvalidConfigError


@dataclass(frozen=True, slots=True)
class AuditorConfig:
    """Settings of one auditor and its replication worker.

    Args:
        identity: its name among the candidates of the election.
        lost_bookie_delay_ms: a bookie absent for so long is lost, and its copies are made again elsewhere.
        audit_interval_ms: longest time between two audits; a change of bookies starts one at once.
        open_ledger_grace_ms: time a live writer gets to replace a lost bookie before its ledger is fenced.
        session_timeout_ms: of the session with the metadata store.
        tasks_outstanding_max: tasks marked and not yet done, so that a mass failure does not flood the store.
        ledgers_checked_per_audit_max: ledgers whose replicas one audit compares entry by entry.
        reads_at_once_max: metadata reads under way during a scan.
        worker_poll_ms: longest time between two looks at the tasks.
        task_retry_ms: first pause after a task failed; it doubles up to ``task_retry_ms_max``.
        task_retry_ms_max: longest pause after a task failed.
        cluster_secret: what bookies ask for; None where they are open.
    """

    identity: str = "auditor"
    lost_bookie_delay_ms: int = 30_000
    audit_interval_ms: int = 60_000
    open_ledger_grace_ms: int = 30_000
    session_timeout_ms: int = 10_000
    tasks_outstanding_max: int = 10_000
    ledgers_checked_per_audit_max: int = 200
    reads_at_once_max: int = 64
    worker_poll_ms: int = 1_000
    task_retry_ms: int = 1_000
    task_retry_ms_max: int = 60_000
    cluster_secret: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("lost_bookie_delay_ms", "open_ledger_grace_ms"):
            if getattr(self, name) < 0:
                raise InvalidConfigError(f"{name} must not be negative", field=name, limit=">= 0 ms")
        for name in ("audit_interval_ms", "tasks_outstanding_max", "reads_at_once_max", "worker_poll_ms"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} must be at least 1", field=name, limit=">= 1")
        if self.task_retry_ms_max < self.task_retry_ms:
            raise InvalidConfigError(
                f"task_retry_ms_max {self.task_retry_ms_max} is below task_retry_ms {self.task_retry_ms}",
                field="task_retry_ms_max",
                limit=">= task_retry_ms",
            )
