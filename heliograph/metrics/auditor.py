"""The metrics of the auditor and of repair workers (pure).

Each counts since its session with the metadata store began. ``key`` is the name in ``AuditorStatistics`` or in
``WorkerStatistics``.
"""

from __future__ import annotations

from functools import partial

from heliograph.metrics.metric import WORK_BOUNDS, Metric, counter_of, gauge_of, histogram_of

counter = partial(counter_of, "heliograph_auditor", "worker")
gauge = partial(gauge_of, "heliograph_auditor", "worker")

AUDITOR_METRICS: tuple[Metric, ...] = (
    gauge("is_leader", "1 while this auditor is elected"),
    counter("audits", "audits that ended"),
    counter("audits_failed", "audits that failed and are repeated"),
    counter("records_read", "records of ledgers read, because they had changed or in a tour"),
    gauge("is_complete", "1 if the latest audit knew all ledgers, 0 while a tour looks for what may have been missed"),
    gauge("ledgers", "ledgers of the latest audit"),
    gauge(
        "ledgers_unreadable",
        "ledgers whose records are damaged or of a newer version and cannot be repaired",
        is_rays=True,
    ),
    gauge("ledgers_last_copy", "ledgers of which the latest audit found one copy left, of several, of some entries"),
    gauge("tasks_outstanding", "tasks marked and not done after the latest audit", is_rays=True),
    counter("tasks_marked", "tasks marked"),
    counter("ledgers_checked", "ledgers whose replicas were compared entry by entry"),
    counter("ledgers_repaired", "ledgers that have all their copies again"),
    counter("ledgers_recovered", "open ledgers that the worker fenced and closed"),
    counter("entries_repaired", "entries copied, also of the ledger that is being repaired"),
    counter("repaired_bytes", "payload of the entries copied", "bytes_repaired"),
    counter("repair_seconds", "time in repairs of ledgers"),
    histogram_of(
        "heliograph_auditor",
        "worker",
        "repair_duration_seconds",
        "time of one attempt to repair a ledger, also of attempts that end early",
        "repair_duration",
        WORK_BOUNDS,
    ),
    gauge("ledgers_damaged", "ledgers with entries of which the latest repair found no good copy", is_rays=True),
    counter("failures", "tasks that failed and are repeated"),
)
