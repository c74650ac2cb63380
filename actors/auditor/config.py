"""Settings of an auditor, with their bounds (I15)."""

from __future__ import annotations

from dataclasses import dataclass, replace

from heliograph.actors.ledger.driver.config import LedgerClientConfig
from heliograph.base.errors import InvalidConfigError
from heliograph.base.settings import SAME, check_limits, setting

DUTIES = ("all", "audit", "repair")


@dataclass(frozen=True, slots=True)
class AuditorConfig:
    """Settings of one auditor and its replication worker."""

    identity: str = setting(
        "auditor", "name among the candidates or the replication workers", decided="the cluster, which has one auditor"
    )
    duties: str = setting(
        "all",
        "`audit`, `repair` or `all`: whether the process elects, repairs ledgers, or both",
        choices=DUTIES,
        decided="the nodes: where several have bookies, each of them has a replication worker",
    )
    lost_bookie_delay_ms: int = setting(
        30_000,
        "absence after which a bookie is lost and its data is copied; a restart takes about 2 s",
        least=0,
        decided=SAME,
    )
    audit_interval_ms: int = setting(
        60_000, "longest time between two audits; a change of bookies starts one at once", least=1, decided=SAME
    )
    open_ledger_grace_ms: int = setting(
        30_000, "time for a live writer to replace a lost bookie before its ledger is fenced", least=0, decided=SAME
    )
    session_timeout_ms: int = setting(10_000, "timeout of the session with the metadata store", least=1, decided=SAME)
    tasks_outstanding_max: int = setting(
        10_000, "tasks marked and not done; bounds the records that a mass failure adds to the store", least=1
    )
    ledgers_checked_per_audit_max: int = setting(
        200, "ledgers whose replicas one audit compares entry by entry", least=0
    )
    reads_at_once_max: int = setting(64, "metadata reads in flight during a scan", least=1)
    worker_poll_ms: int = setting(1_000, "longest time between two scans of the tasks", least=1)
    task_retry_ms: int = setting(
        1_000, "pause after a task's first failure; doubles up to `task_retry_ms_max`", least=1
    )
    task_retry_ms_max: int = setting(60_000, "longest pause after a task's failure", least=1)
    ensemble_size: int = setting(
        3, "bookies that a segment is spread over, in namespaces that do not say", least=1, decided=SAME
    )
    cluster_secret: str | None = setting(
        None, "secret of the bookies; None: they are open", is_secret=True, decided=SAME
    )
    ledger: LedgerClientConfig = setting(
        LedgerClientConfig(), "settings of the ledger client", decided="the section ledger"
    )

    def __post_init__(self) -> None:
        check_limits(self)
        if self.task_retry_ms_max < self.task_retry_ms:
            raise InvalidConfigError(
                f"task_retry_ms_max {self.task_retry_ms_max} is below task_retry_ms {self.task_retry_ms}",
                field="task_retry_ms_max",
                limit=">= task_retry_ms",
            )

    @property
    def ledgers(self) -> LedgerClientConfig:
        """Settings of the auditor's ledger client."""
        return replace(self.ledger, cluster_secret=self.cluster_secret)
