"""The alerts: when each fires, what it means, and what to do (pure). Rules and runbooks are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

JOB = "heliograph"  # of the scrape configuration


class AlertSeverity(Enum):
    """How soon an operator has to look: ``CRITICAL`` at once, ``WARNING`` within a day."""

    CRITICAL = "critical"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert.

    Attributes:
        expression: in PromQL; it fires while this has a result for ``lasting``.
        summary: one line for the pager, with Prometheus' templates.
        meaning: for clients, and what goes on by itself.
        steps: what to do, the first thing first.
    """

    name: str
    severity: AlertSeverity
    expression: str
    lasting: str
    summary: str
    meaning: str
    steps: tuple[str, ...]


def p99(histogram: str, by: str) -> str:
    """Return the 99th percentile of the last five minutes, for each value of a label."""
    return f"histogram_quantile(0.99, sum by ({by}, le) (rate({histogram}_bucket[5m])))"


_CRITICAL, _WARNING = AlertSeverity.CRITICAL, AlertSeverity.WARNING

ALERTS: tuple[Alert, ...] = (
    Alert(
        "HeliographProbeFails",
        _CRITICAL,
        "heliograph_broker_is_probe_failing == 1",
        "15s",
        "{{ $labels.broker }} cannot publish and consume",
        "What the broker publishes to a topic of its own does not come back within 5 s. So it is with its clients.",
        (
            "`helio status`: too few bookies that take entries, or the metadata store is away while topics are opened?",
            "`helio logs {broker}` has the reason of the first probe that failed.",
            "The board of bookies: which one is slow, or away?",
            "One broker alone: `helio restart` it; others serve its topics meanwhile.",
        ),
    ),
    Alert(
        "HeliographGatewayDown",
        _CRITICAL,
        f'up{{job="{JOB}"}} == 0 or absent(up{{job="{JOB}"}})',
        "1m",
        "the gateway of Heliograph gives no metrics",
        "HTTP and WebSocket clients are not served, and no other alert can fire. Clients of Pulsar's protocol go on.",
        (
            "`helio status`: is `gateway` among the parts, and what is its note? Ray starts it again by itself.",
            "If it is well, Prometheus is refused: `curl` the address of the target, with the token of Prometheus.",
            "`helio logs gateway` has why it does not start.",
        ),
    ),
    Alert(
        "HeliographPartDown",
        _CRITICAL,
        "heliograph_part_up == 0",
        "1m",
        "{{ $labels.part }} is down",
        "A bookie less: publishing goes on with the others, and its copies are made again after a while. "
        "A broker less: its topics are served by others within seconds.",
        (
            "`helio status` says since when, and why if the part could write it down.",
            "`helio logs {part}` has its last words; `helio nodes` whether its machine is away.",
            "A disk that is broken: `helio bookies replace`. A machine that does not come back: `helio scale`.",
        ),
    ),
    Alert(
        "HeliographPublishingDegraded",
        _CRITICAL,
        "heliograph_publishing_problems > 0",
        "1m",
        "publishing is stopped, or goes on with fewer copies",
        "Topics take nothing, or new entries have fewer copies than their policy says. What is stored stays.",
        (
            "`helio status` has the sentence: how many topics, and which bookies are missing.",
            "Bring a bookie back, or add one: `helio scale bookies 4` where there are three.",
            "Bookies with full disks take nothing: see HeliographDiskFull.",
        ),
    ),
    Alert(
        "HeliographLedgersDamaged",
        _CRITICAL,
        "heliograph_ledgers_damaged > 0",
        "1m",
        "{{ $value }} ledgers have entries without a good copy",
        "Consumers that come to these entries wait. Everything else goes on.",
        (
            "`helio ledgers under-replicated` lists them, `helio ledgers describe` says where copies were.",
            "If a bookie with the missing copies can come back, start it: repair then goes on by itself.",
            "Otherwise [disaster-recovery.md](disaster-recovery.md) says how to accept the loss.",
        ),
    ),
    Alert(
        "HeliographUnderReplicated",
        _WARNING,
        "heliograph_ledgers_underreplicated > 0",
        "15m",
        "{{ $value }} ledgers miss copies",
        "One more loss may take data away. Repair goes on by itself, unless it is paused or has no bookie to copy to.",
        (
            "`helio ledgers repair-status` shows how far repair is.",
            "`helio status`: are there as many bookies that take entries as copies are wanted?",
        ),
    ),
    Alert(
        "HeliographRepairStalled",
        _WARNING,
        "(heliograph_ledgers_underreplicated > 0) "
        "and on() (sum(rate(heliograph_auditor_repaired_bytes_total[10m])) == 0) "
        "and on() (heliograph_repair_is_paused == 0)",
        "10m",
        "copies are missing and none is being made",
        "Nothing mends the missing copies.",
        (
            "`helio ledgers under-replicated` has the latest failure of each task.",
            "`helio logs auditor` and `helio logs replicator-1`: no bookie for the copies, or none with a good one?",
        ),
    ),
    Alert(
        "HeliographRepairPaused",
        _WARNING,
        "heliograph_repair_is_paused == 1",
        "6h",
        "repair is paused since six hours",
        "Lost copies are not made again.",
        ("`helio ledgers resume`, if the reason for the pause is over.",),
    ),
    Alert(
        "HeliographNoOperator",
        _WARNING,
        "heliograph_report_is_silent == 1 or heliograph_report_age_seconds > 60 "
        f'or (up{{job="{JOB}"}} == 1 unless on() heliograph_report_age_seconds)',
        "2m",
        "no operator reports",
        "Messages go on. Parts that end are not replaced, and what does not register is not seen.",
        (
            "`helio status`: the metadata store may be away, which stops changes of all kinds.",
            "`helio up` starts an operator where none runs; `helio logs operator` has its last words.",
        ),
    ),
    Alert(
        "HeliographNoAuditor",
        _WARNING,
        '(count(heliograph_part_up{kind="auditor"}) > 0) unless (max(heliograph_auditor_is_leader) == 1)',
        "5m",
        "no auditor is elected",
        "Lost copies are not found.",
        ("`helio status` and `helio logs auditor`: it waits for the metadata store, or does not start.",),
    ),
    Alert(
        "HeliographDiskFull",
        _CRITICAL,
        "heliograph_bookie_is_disk_full == 1",
        "1m",
        "a disk of {{ $labels.bookie }} is full",
        "The bookie is read-only. Others take its place for new entries while there are enough of them.",
        (
            "Shorten retention, or delete subscriptions that nobody reads: `helio topics stats`.",
            "Make room on the disk, or add a bookie. The bookie takes entries again by itself once there is room.",
        ),
    ),
    Alert(
        "HeliographDiskFilling",
        _WARNING,
        "predict_linear(heliograph_bookie_free_bytes[1h], 4 * 3600) < 0 and heliograph_bookie_is_disk_full == 0",
        "15m",
        "the disk of {{ $labels.bookie }} is full within four hours",
        "Nothing yet. When it is full, the bookie becomes read-only.",
        (
            "The boards show which namespaces publish most, and which backlogs keep data.",
            "[capacity.md](capacity.md) says how many bookies a load needs.",
        ),
    ),
    Alert(
        "HeliographBookieReadOnly",
        _WARNING,
        "heliograph_bookie_is_read_only == 1 and heliograph_bookie_is_disk_full == 0",
        "5m",
        "{{ $labels.bookie }} is read-only, and its disk is not full",
        "The bookie takes no new entries. Its copies are read.",
        ("`helio status` and `helio logs {bookie}` have the reason: it is being emptied, or a disk fails.",),
    ),
    Alert(
        "HeliographSlowJournal",
        _WARNING,
        p99("heliograph_bookie_journal_sync_latency_seconds", "bookie") + " > 0.05",
        "5m",
        "syncs of {{ $labels.bookie }} take {{ $value | humanizeDuration }} (p99)",
        "Publishing waits for the second of three bookies. One slow bookie is hidden, two are not.",
        (
            "Compare bookies: one alone is slow if its disk fails, or is shared. `helio doctor` measures the disk.",
            "All of them: more bookies, or a disk of its own for the journal (`bookie.journal_directories`).",
        ),
    ),
    Alert(
        "HeliographSlowPublish",
        _WARNING,
        p99("heliograph_broker_publish_latency_seconds", "broker") + " > 0.25",
        "5m",
        "publishing at {{ $labels.broker }} takes {{ $value | humanizeDuration }} (p99)",
        "Producers wait, and at their limit of messages without a receipt they stop.",
        (
            "The board of bookies: is a journal slow, or are adds slow at one bookie as brokers see it (network)?",
            "`helio brokers load`: is the broker itself at its limit? `helio scale brokers 3` adds one to two.",
        ),
    ),
    Alert(
        "HeliographSubscriptionFallsBehind",
        _WARNING,
        "heliograph_subscription_backlog_entries "
        "> 3600 * clamp_min(heliograph_subscription_acknowledged_entries_rate, 0.03) "
        "and deriv(heliograph_subscription_backlog_entries[15m]) > 0",
        "15m",
        "{{ $labels.subscription }} of {{ $labels.topic }} is more than an hour behind, and falls further",
        "Its consumers see messages late. The topic keeps everything that they have not acknowledged.",
        (
            "`helio topics stats {topic}`: are there consumers, have they permits, do they acknowledge?",
            "Add consumers (Shared, Key_Shared), or make each faster. Nobody reads it: `helio subscriptions delete`.",
            "To start over at the end: `helio subscriptions reset`.",
        ),
    ),
    Alert(
        "HeliographSubscriptionBlocked",
        _WARNING,
        "heliograph_subscription_is_blocked > 0",
        "10m",
        "{{ $labels.subscription }} of {{ $labels.topic }} is blocked by unacknowledged messages",
        "Nothing more is delivered until consumers acknowledge.",
        ("`helio topics stats {topic}` shows which consumer holds how many; restart the one that hangs.",),
    ),
    Alert(
        "HeliographDamagedEntries",
        _WARNING,
        "increase(heliograph_bookie_entries_damaged_total[1h]) > 0 "
        "or increase(heliograph_bookie_scrub_damaged_entries_total[1h]) > 0",
        "1m",
        "{{ $labels.bookie }} found entries with a wrong checksum",
        "Readers get other copies, and repair makes new ones. A disk that does this does it again.",
        ("`helio logs {bookie}` names the files. Look at the disk's own errors, and replace it in time.",),
    ),
    Alert(
        "HeliographMemory",
        _WARNING,
        "heliograph_broker_memory_bytes > heliograph_broker_memory_budget_bytes "
        "or heliograph_bookie_memory_bytes > heliograph_bookie_memory_budget_bytes "
        "or heliograph_gateway_memory_bytes > heliograph_gateway_memory_budget_bytes",
        "10m",
        "{{ $labels.broker }}{{ $labels.bookie }} uses more memory than its budget",
        "The node may run out of memory, and its kernel ends a process then.",
        ('[capacity.md](capacity.md), "Memory": what fills it, and which limits hold.',),
    ),
    Alert(
        "HeliographPartFlaps",
        _WARNING,
        "increase(heliograph_part_restarts_total[30m]) > 3",
        "1m",
        "{{ $labels.part }} was started again {{ $value | humanize }} times in half an hour",
        "Each start of a broker moves its topics, each start of a bookie changes ledgers.",
        ("`helio logs {part}`: how did the processes before end? `helio doctor` names memory and open files.",),
    ),
    Alert(
        "HeliographClockSkew",
        _WARNING,
        "abs(heliograph_part_clock_skew_seconds) > 5",
        "5m",
        "the clock of {{ $labels.part }} is {{ $value | humanizeDuration }} off",
        "Expiry, retention and delays of its topics go by that clock.",
        ("Have the machine follow a time server: `chronyc tracking`.",),
    ),
    Alert(
        "HeliographPartNotScraped",
        _WARNING,
        "heliograph_part_scraped == 0",
        "5m",
        "{{ $labels.part }} gives no metrics",
        "Alerts about it cannot fire.",
        ("`helio status` and `helio logs {part}`: its event loop may be stuck, or it is being started.",),
    ),
)
