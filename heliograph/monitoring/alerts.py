"""The alerts: condition, meaning and remedy of each (pure). Rules and runbooks are made of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from heliograph.metrics.broker import RETRYING

JOB = "heliograph"  # of the scrape configuration
SKEW = "heliograph_part_clock_skew_seconds"
PART = "{{ or $labels.broker $labels.bookie $labels.component }}"  # the gateway has no label of its own
ENDS = "heliograph_{}_certificate_end_timestamp_seconds"
GATEWAY_UP = f'up{{job="{JOB}", component="gateway"}}'


class AlertSeverity(Enum):
    """How soon an operator has to look: ``CRITICAL`` at once, ``WARNING`` within a day."""

    CRITICAL = "critical"
    WARNING = "warning"


# Bookies that serve and are not well, since they take no new entries: two alerts of their own say why.
READ_ONLY = 'label_replace(heliograph_bookie_is_read_only == 1, "part", "$1", "bookie", "(.*)")'


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


_NO_REPORT = "heliograph_report_is_silent == 1 or heliograph_report_age_seconds > 60"
# A part that is down has an alert. While no operator reports, nobody keeps the list of what is to be scraped.
_OTHER_ALERTS = (
    'unless on (cluster, name) label_replace(heliograph_part_up == 0, "name", "$1", "part", "(.*)") '
    f"unless on () ({_NO_REPORT})"
)
_CRITICAL, _WARNING = AlertSeverity.CRITICAL, AlertSeverity.WARNING

ALERTS: tuple[Alert, ...] = (
    Alert(
        "HeliographProbeFails",
        _CRITICAL,
        "heliograph_broker_is_probe_failing == 1",
        "15s",
        "{{ $labels.broker }} cannot publish and consume",
        "The broker's messages to its probe topic do not come back within 5 s. Its clients see the same.",
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
        f"{GATEWAY_UP} == 0 or absent({GATEWAY_UP})",
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
        f"heliograph_part_up == 0 unless on (cluster, part) {READ_ONLY}",
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
        "Topics take nothing, or new entries have fewer copies than their policy asks for. Stored entries stay.",
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
        "HeliographLastCopy",
        _CRITICAL,
        "max(heliograph_auditor_ledgers_last_copy) > 0",
        "1m",
        "{{ $value }} ledgers have one copy left of some entries",
        "The loss of one more disk loses messages. Repair makes new copies, these ledgers not before others.",
        (
            "`helio status`: which bookies are away? Start them again, if their disks are whole.",
            "`helio ledgers repair-status` shows how far repair is, and whether it is paused.",
            "Take no other bookie or machine away until it is done.",
        ),
    ),
    Alert(
        "HeliographMetadataAway",
        _CRITICAL,
        "heliograph_broker_metadata_silent_seconds > 15",
        "30s",
        "the metadata store does not answer {{ $labels.broker }}",
        "Topics that are open go on. None can be opened, created or moved, no lost part is replaced, and a ledger "
        "whose bookie is lost cannot go on.",
        (
            "`helio status` names the store; `helio logs metadata` has its last words. Ray starts it again by itself.",
            "Members of etcd: more than half of them have to run, see [metadata.md](metadata.md).",
            "A disk that is full or fails stops the store: `helio doctor`.",
        ),
    ),
    Alert(
        "HeliographSlowMetadata",
        _WARNING,
        p99("heliograph_broker_metadata_latency_seconds", "broker") + " > 0.5",
        "5m",
        "calls of {{ $labels.broker }} to the metadata store take {{ $value | humanizeDuration }} (p99)",
        "Topics open slowly, and ledgers are replaced slowly. Publishing to open topics is not slower.",
        (
            "The board of metadata: do all brokers see it? Then it is the store's disk or machine.",
            "`helio doctor` measures the disk. Put the store's journal on a disk without bookies.",
        ),
    ),
    Alert(
        "HeliographFenceStorm",
        _WARNING,
        "sum(increase(heliograph_broker_topics_fenced_total[10m])) > 10",
        "1m",
        "brokers took {{ $value | humanize }} open topics from each other in ten minutes",
        "Producers of these topics connect again each time, and unconfirmed messages are published again.",
        (
            "`helio brokers list`: does a process that was taken for dead still run, or do two have one name?",
            "`helio logs {broker}`: do sessions with the metadata store end, because the machine stalls?",
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
        "and on() ((sum(rate(heliograph_auditor_repaired_bytes_total[10m])) or vector(0)) == 0) "
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
        f"({_NO_REPORT} "
        f"or ({GATEWAY_UP} == 1 unless on() heliograph_report_age_seconds)) "
        "unless on() (max(heliograph_broker_metadata_silent_seconds) > 15)",
        "2m",
        "no operator reports",
        "Messages go on. Parts that end are not replaced, and parts that do not register are not seen.",
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
        f'heliograph_subscription_backlog_entries{{subscription!="{RETRYING}"}} '
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
        "HeliographOldestUnacknowledged",
        _WARNING,
        "heliograph_subscription_oldest_unacknowledged_seconds > heliograph_subscription_age_limit_seconds",
        "5m",
        "{{ $labels.subscription }} of {{ $labels.topic }} is {{ $value | humanizeDuration }} behind, above its quota",
        "The quota of backlogs acts: it holds or refuses producers, or skips unread messages.",
        (
            "`helio topics stats {topic}`: has the subscription consumers, do they acknowledge?",
            "Nobody reads it any more: `helio subscriptions delete`. To go on at the end: `helio subscriptions reset`.",
            "The limit is too low for the work: `helio topics policies set {topic} backlog_quota_seconds=...`.",
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
        f"{PART} uses more memory than its budget",
        "The node may run out of memory, and its kernel ends a process then.",
        ('[capacity.md](capacity.md), "Memory": its holders and their limits.',),
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
        "HeliographClockStep",
        _WARNING,
        f"max_over_time({SKEW}[5m]) - min_over_time({SKEW}[5m]) > 1",
        "1m",
        "the clock of {{ $labels.part }} made a step of {{ $value | humanizeDuration }}",
        "Messages are not lost by it. Delays, expiry and retention are off by the step. If all parts are named, the "
        "step was made by the clock of the operator's machine.",
        ("`chronyc tracking` on its machine: let the clock be slewed, not set, while parts run.",),
    ),
    Alert(
        "HeliographCertificateEnds",
        _WARNING,
        f"(({ENDS.format('broker')} or {ENDS.format('bookie')} or {ENDS.format('gateway')}) > 0) - time() < 14 * 86400",
        "1h",
        f"the certificate of {PART} ends in {{{{ $value | humanizeDuration }}}}",
        "When it has ended, nobody connects to the part any more; connections that are open stay.",
        (
            '`helio certs show` has all ends. Certificates of `tls = "auto"` are renewed at a start, 30 days before.',
            "Put renewed files in the place of the old ones: they are read at once, nothing has to be restarted.",
        ),
    ),
    Alert(
        "HeliographPartNotScraped",
        _WARNING,
        f'heliograph_part_scraped == 0 or (up{{job="{JOB}", component!="gateway"}} == 0 {_OTHER_ALERTS})',
        "5m",
        "{{ $labels.part }}{{ $labels.name }} gives no metrics",
        "Alerts about it cannot fire.",
        ("`helio status` and `helio logs {part}`: its event loop may be stuck, or it is being started.",),
    ),
)
