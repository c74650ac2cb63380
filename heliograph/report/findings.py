"""Problems of a cluster, in sentences: since when, their effects, what still works, which command helps (pure)."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.metadata.operator_records import ClusterReport, PartReport

BEHIND_SECONDS = 60.0  # of work that a backlog is, before its subscription counts as behind
RATE_MIN = 0.1  # entries in a second; a slower consumer counts as this fast
NOT_STARTING = "does not start"  # of the note of a part, before the reason
SUBSCRIPTIONS_MAX = 20  # that are named, the largest backlogs first

_MEANINGS = {
    "bookie": "publishing and reading go on with the other copies",
    "broker": "brokers that are left serve its topics; clients find them within seconds",
    "auditor": "messages go on; lost copies are not found meanwhile",
    "replicator": "messages go on; repair is slower",
    "gateway": "HTTP and WebSocket are not served there; clients of Pulsar's protocol go on",
    "metadata": "open topics are served; changes of metadata wait if no majority is left",
    "operator": "messages go on; parts that end are not replaced meanwhile",
}


@dataclass(frozen=True, slots=True)
class ClusterFinding:
    """One thing that is wrong.

    Attributes:
        since_ms: milliseconds since the epoch; 0: not known.
        meaning: for clients.
        meanwhile: what goes on by itself, and until when; empty: nothing.
        command: that helps, or says more.
        is_warning: nothing is missing yet.
        kind: which thing this is, and of what: the same at each look, as the sentences with their numbers are not.
    """

    what: str
    meaning: str
    command: str
    meanwhile: str = ""
    since_ms: int = 0
    is_warning: bool = False
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Lag:
    """One subscription: messages and entries that are not acknowledged, and entries that are each second; messages
    that come to the topic and that are delivered each second."""

    topic: str
    subscription: str
    messages: float
    backlog: float
    acknowledged_rate: float
    in_rate: float
    out_rate: float
    consumers: int

    @property
    def is_behind(self) -> bool:
        return self.backlog > BEHIND_SECONDS * max(self.acknowledged_rate, RATE_MIN)


def findings(report: ClusterReport, repair: Mapping[str, Any] | None, lags: Iterable[Lag] = ()) -> list[ClusterFinding]:
    """Return the known problems, the worst first.

    Args:
        repair: what ``AuditorService.repair_status`` returns; None if nobody tells it.
        lags: of subscriptions that do not keep up.
    """
    found = [_publishing(note, report) for note in report.publishing_notes]
    found += [_down(part, report, repair) for part in report.parts if not part.is_well]
    if report.ledgers_damaged > 0:
        found.append(
            ClusterFinding(
                f"{_ledgers(report.ledgers_damaged)} entries without a good copy",
                "consumers that come to these entries wait",
                "helio ledgers under-replicated",
                kind="damaged ledgers",
            )
        )
    if report.underreplicated_ledgers > 0:
        found.append(_repair(report, repair))
    if report.is_silent:
        found.append(
            ClusterFinding(
                "no operator reports: parts that do not register are not seen",
                "messages go on; parts that end are not replaced",
                "helio up",
                since_ms=report.as_of_ms,
                kind="no operator",
            )
        )
    known = {part.name for part in report.parts if not part.is_well}
    found += [
        ClusterFinding(
            f"{bookie}: {text}",
            "a bookie with a full disk takes no new entries",
            _more_bookies(report),
            kind=f"full disk of {bookie}",
        )
        for bookie, text in report.full_disks.items()
        if bookie not in known
    ]
    behind = sorted((lag for lag in lags if lag.is_behind), key=lambda lag: -lag.messages)
    return found + [_behind(lag) for lag in behind[:SUBSCRIPTIONS_MAX]]


def verdict(
    report: ClusterReport | None,
    found: Sequence[ClusterFinding],
    problem: str = "",
    topics: tuple[int, int] | None = None,
) -> str:
    """Return the first line: whether all is well, else the effects.

    Args:
        report: None if it cannot be read.
        problem: why that is so, or why it is not known what brokers serve; empty: it is known.
        topics: how many open topics brokers serve that answer, and how many are open; None: not known.
    """
    if report is None:
        return f"unknown: {problem}"
    is_degraded = any(not finding.is_warning for finding in found)
    state = _hold_up(report)
    if not state and (unknown := problem or _silence(report)):
        return f"unknown: {unknown}"
    if not state and is_degraded:
        state = "degraded, publishing goes on" + (f" for {topics[0]:,} of {topics[1]:,} topics" if topics else "")
    elif not state:
        state = "well, and a subscription is behind" if found else "all is well"
    return state + (", nothing is lost" if is_degraded and report.ledgers_damaged == 0 else "")


def _hold_up(report: ClusterReport) -> str:
    """Return how publishing is held up; empty if it goes on, as far as the report says."""
    brokers = _brokers(report)
    if brokers and not any(_serves(part) or part.is_well for part in brokers):
        return "publishing is stopped: no broker serves"
    return "publishing is limited" if report.publishing_notes else ""


def _silence(report: ClusterReport) -> str:
    """Return why nobody says whether publishing goes on; empty: a broker that is well does."""
    brokers = _brokers(report)
    return "no broker is well" if brokers and not any(part.is_well for part in brokers) else ""


def _brokers(report: ClusterReport) -> list[PartReport]:
    return [part for part in report.parts if part.kind == "broker"]


def _down(part: PartReport, report: ClusterReport, repair: Mapping[str, Any] | None) -> ClusterFinding:
    logs = f"helio logs {shlex.quote(part.name)}"
    if _serves(part):
        kind = f"{part.name} not well"
        return ClusterFinding(f"{part.name}: {part.note}", "it serves, but not as it should", logs, kind=kind)
    meaning = _MEANINGS.get(part.kind, "see its log")
    meanwhile = _until_repair(part, report, repair) if part.kind == "bookie" else ""
    what, kind = f"{part.name} is down: {part.note}", f"{part.name} down"
    return ClusterFinding(what, meaning, logs, meanwhile, since_ms=part.since_ms, kind=kind)


def _serves(part: PartReport) -> bool:
    """Return whether a failing part is reached. A part that does not start keeps its last address."""
    return bool(part.address) and NOT_STARTING not in part.note


def _until_repair(bookie: PartReport, report: ClusterReport, repair: Mapping[str, Any] | None) -> str:
    delay_ms = repair.get("lost_bookie_delay_ms") if repair is not None else None
    if report.is_repair_paused:
        return "copies that it had are not made again while repair is paused"
    if repair is None or delay_ms is None or not bookie.since_ms:
        return "copies that it had are made again on other bookies if it does not come back soon"
    left = (bookie.since_ms + delay_ms - report.as_of_ms) / 1000
    if left > 0:
        return f"copies that it had are made again on other bookies if it is not back in {_time(left)}"
    absent = repair.get("absent_bookies")
    is_marked = absent is not None and (bookie.name not in absent or bookie.name in repair["lost_bookies"])
    if is_marked and repair.get("ledgers_left") == 0:
        return "the copies that it had are made again: other bookies have all of them"
    return "copies that it had are made again on other bookies"


def _publishing(note: str, report: ClusterReport) -> ClusterFinding:
    kind = re.sub(r"[\d,]+ (\w+?)s?\b", r"\1", note.partition(":")[0])  # "on 3 topics", "on 1 topic"
    return ClusterFinding(note, "new entries wait, or have fewer copies until then", _more_bookies(report), kind=kind)


def _more_bookies(report: ClusterReport) -> str:
    known = sum(part.kind == "bookie" for part in report.parts)
    return f"helio scale bookies {known + 1}"


def _repair(report: ClusterReport, repair: Mapping[str, Any] | None) -> ClusterFinding:
    what = f"{_ledgers(report.underreplicated_ledgers)} fewer copies than wanted"
    meaning = "nothing is missing for clients; another loss may take entries away"
    if report.is_repair_paused:
        return ClusterFinding(what, meaning, "helio ledgers resume", "repair is paused", kind="repair paused")
    if repair is not None and (without := repair.get("ledgers_without_place", 0)):
        meanwhile = f"{without} of them wait for a bookie that can take the copies"
        return ClusterFinding(what, meaning, _more_bookies(report), meanwhile, kind="repair")
    meanwhile = f"repair goes on with {report.ledgers_in_repair} of them now"
    if repair is not None and repair.get("seconds_left") is not None:
        meanwhile += f", and is done in about {_time(repair['seconds_left'])}"
    elif repair is not None:
        meanwhile += "; how long it takes is not known yet"
    return ClusterFinding(what, meaning, "helio ledgers repair-status", meanwhile, kind="repair")


def _behind(lag: Lag) -> ClusterFinding:
    if not lag.consumers:
        meanwhile = "no consumer is connected"
    elif lag.in_rate >= lag.out_rate:
        meanwhile = (
            f"it falls further behind: {lag.in_rate:.1f} messages come a second, {lag.out_rate:.1f} are delivered"
        )
    else:
        gained = max(lag.acknowledged_rate * (1 - lag.in_rate / lag.out_rate), RATE_MIN)
        seconds = lag.backlog / gained
        meanwhile = f"it catches up in about {_time(seconds)}"
    name = lag.topic.removeprefix("persistent://public/default/")
    return ClusterFinding(
        f"{lag.subscription} of {name} is {lag.messages:,.0f} messages behind",
        "its consumers see messages late",
        f"helio topics stats {'-- ' * name.startswith('-')}{shlex.quote(name)}",
        meanwhile,
        is_warning=True,
        kind=f"{lag.subscription} of {lag.topic} behind",
    )


def _ledgers(count: int) -> str:
    return "1 ledger has" if count == 1 else f"{count} ledgers have"


def _time(seconds: float) -> str:
    if seconds < 120:
        return f"{max(seconds, 1):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
