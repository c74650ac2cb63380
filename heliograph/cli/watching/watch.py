"""``helio watch``: a line, a command or a request for each change of the cluster's health."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from heliograph.base.clock import iso_time, wall_ms
from heliograph.base.errors import BadRequestError, HeliographError
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.operations.cluster import report_of
from heliograph.metadata.operator_records import ClusterReport
from heliograph.report.findings import ClusterFinding, findings, verdict

LOOKS = 2  # in a row that have to agree before a change is told: one answer that is late is none
EXEC_SECONDS_MAX = 60.0  # of a command; then it is killed
POST_SECONDS_MAX = 10.0  # of one attempt
POST_PAUSES = (0.0, 1.0, 5.0)  # seconds before each attempt of a request


class HealthState(StrEnum):
    """The verdict of a report."""

    WELL = "well"
    DEGRADED = "degraded"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Health:
    """A state, the sentence on its effects, and the problems."""

    state: HealthState
    verdict: str
    findings: tuple[ClusterFinding, ...] = ()

    @property
    def wrong(self) -> frozenset[str]:
        """The kinds of what is wrong: times and numbers change from look to look."""
        return frozenset(each.kind for each in self.findings)

    def is_like(self, other: Health) -> bool:
        """Return whether nothing came and nothing went."""
        return (self.state, self.wrong) == (other.state, other.wrong)


WELL = Health(HealthState.WELL, "all is well")


def health_of(report: ClusterReport) -> Health:
    """Return the health in a report. If no part of the cluster answers, the health is unknown."""
    if report.is_silent and not report.parts:
        return Health(HealthState.UNKNOWN, verdict(None, (), "; ".join(report.notes) or "nothing answers"))
    found = tuple(findings(report, None))
    said = verdict(report, found)
    if said.startswith("unknown"):
        return Health(HealthState.UNKNOWN, said, found)
    return Health(HealthState.DEGRADED if found else HealthState.WELL, said, found)


class HealthWatch:
    """Compares looks, and tells what changed (pure). Before the first look, all is taken to be well."""

    def __init__(self) -> None:
        self.told = WELL
        self._seen = WELL
        self._times = LOOKS

    def look(self, now: Health) -> dict[str, Any] | None:
        """Take a look; return the change that is to be told, None if there is none, or it may be gone soon."""
        self._times = self._times + 1 if now.is_like(self._seen) else 1
        self._seen = now
        before = self.told
        if self._times < LOOKS or now.is_like(before):
            return None
        self.told = now
        return {
            "at": iso_time(wall_ms()),
            "state": now.state.value,
            "before": before.state.value,
            "verdict": now.verdict,
            "came": [each.what for each in now.findings if each.kind not in before.wrong],
            "went": [each.what for each in before.findings if each.kind not in now.wrong],
            "findings": [asdict(each) for each in now.findings],
        }


@single_command
def watch(
    context: CommandContext,
    command: Annotated[
        str | None, typer.Option("--exec", help="Command for each change, which gets it as JSON on standard input.")
    ] = None,
    webhook: Annotated[
        str | None,
        typer.Option(help="http(s) URL to which each change is posted as JSON.", envvar="HELIOGRAPH_WEBHOOK"),
    ] = None,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 5.0,
    changes: Annotated[int | None, typer.Option("--changes", "-n", min=1, help="End after so many changes.")] = None,
) -> None:
    """Tell each change of the cluster's health, until Ctrl-C.

    A change is told once two looks in a row agree. A command has 60 s; it, and a request that fails three times, are
    noted, and watching goes on. While one runs, no other one does: what changes meanwhile is told as one change.
    """
    words = shlex.split(command) if command is not None else []
    if command is not None and not words:
        raise BadRequestError("the command is empty", field="exec")
    if webhook is not None and not _is_web_address(webhook):
        raise BadRequestError(f"{webhook} is no http or https URL", field="webhook")
    output, target = context.output, context.target
    watched, told = HealthWatch(), 0
    while changes is None or told < changes:
        change = watched.look(_looked(lambda: report_of(target)))
        if change is None:
            time.sleep(interval)
            continue
        told += 1
        output.result(change)
        output.progress(f"{change['at']}  {change['state']}: {change['verdict']}")
        for sign, key in (("+", "came"), ("-", "went")):
            for what in change[key]:
                output.progress(f"  {sign} {what}")
        for problem in _passed_on(change, words, webhook):
            output.warn(problem)


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and parts.port != 0  # a port that is no number raises
    except ValueError:
        return False
    return is_whole and parts.scheme in ("http", "https") and url.isascii() and url.isprintable() and " " not in url


def _looked(ask: Callable[[], ClusterReport]) -> Health:
    try:
        return health_of(ask())
    except HeliographError as error:
        return Health(HealthState.UNKNOWN, verdict(None, (), str(error)))


def _passed_on(change: dict[str, Any], words: list[str], webhook: str | None) -> list[str]:
    """Run the command and send the request; return what went wrong."""
    found = [] if not words else [run_command(words, change)]
    found += [] if webhook is None else [post(webhook, change)]
    return [problem for problem in found if problem]


def run_command(words: list[str], change: dict[str, Any], *, seconds: float = EXEC_SECONDS_MAX) -> str:
    """Run a command that gets a change; return what went wrong, empty if nothing did. A late command is killed with
    all its processes."""
    environment = {**os.environ, "HELIOGRAPH_STATE": change["state"], "HELIOGRAPH_VERDICT": change["verdict"]}
    try:
        done = subprocess.Popen(words, stdin=subprocess.PIPE, env=environment, text=True, start_new_session=True)
    except (OSError, ValueError) as error:
        return f"{words[0]} cannot be run: {error}"
    try:
        done.communicate(json.dumps(change), timeout=seconds)
    except subprocess.TimeoutExpired:
        _kill(done)
        return f"{words[0]} did not end in {seconds:.0f} s and was killed"
    except BaseException:
        _kill(done)
        raise
    return f"{words[0]} ended with {done.returncode}" if done.returncode else ""


def _kill(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def post(url: str, change: dict[str, Any], *, pauses: tuple[float, ...] = POST_PAUSES) -> str:
    """Post a change, with further attempts while the other side fails; return what went wrong, empty if nothing did."""
    import http.client
    import urllib.error
    import urllib.request

    body = json.dumps(change).encode()
    problem = ""
    for pause in pauses:
        time.sleep(pause)
        try:
            request = urllib.request.Request(url, body, {"Content-Type": "application/json"}, method="POST")
            with urllib.request.urlopen(request, timeout=POST_SECONDS_MAX):
                return ""
        except urllib.error.HTTPError as error:
            problem = f"the webhook answers {error.code}"
            if error.code < 500:
                break  # the same request would be refused again
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = f"the webhook does not answer: {error or type(error).__name__}"
    return problem
