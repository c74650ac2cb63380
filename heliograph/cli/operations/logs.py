"""``helio logs``: the logs of the parts, of this machine and of the others, ordered by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.base.clock import wall_ms
from heliograph.base.errors import BadRequestError
from heliograph.cli.options import Home, Namespace, Target
from heliograph.cli.output import Output, note

if TYPE_CHECKING:
    from heliograph.cluster.logs.lines import LogLine

LINES_SHOWN = 200  # default of --lines


def logs(
    parts: Annotated[list[str] | None, typer.Argument(help="Such as bookie-1 or gateway. [default: all]")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with further lines as they come.")] = False,
    since: Annotated[str | None, typer.Option(help="Only lines of the last 10m, 2h, ...")] = None,
    level: Annotated[str, typer.Option(help="Lowest level: DEBUG, INFO, WARNING, ERROR or CRITICAL.")] = "INFO",
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Last lines to show. [default: 200; all with --since]")
    ] = None,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show the logs of the parts, ordered by time.

    Logs of this machine are read from its files, whether a cluster runs or not. The parts of other machines are asked
    for the last MiB of theirs, by way of the gateway; where it does not answer, or refuses the caller, through Ray.
    """
    from heliograph.auth.issuing import seconds_of
    from heliograph.cluster.logs.config import LEVELS
    from heliograph.cluster.logs.gathering import ClusterLogs

    level = level.upper()
    if level not in LEVELS:
        raise BadRequestError(f"{level} is no level: give one of {', '.join(LEVELS)}", field="level")
    since_ms = 0 if since is None else wall_ms() - seconds_of(since, "since") * 1000
    target = Target.of(namespace, home)
    found = ClusterLogs(target.home, target.namespace, parts or (), target.gateway())
    shown = found.ends(since_ms=since_ms, level=level)
    most = lines if lines is not None else (LINES_SHOWN if since is None else len(shown))
    _print(shown[len(shown) - min(most, len(shown)) :], as_json)
    if found.silent:
        note(f"no answer from {', '.join(sorted(found.silent))}")
    for part, why in sorted(found.refused.items()):
        note(f"{part} does not tell its lines: {why}")
    if follow:
        for more in found.follow(level=level):
            _print(more, as_json)


def _print(lines: Sequence[LogLine], as_json: bool) -> None:
    output = Output(as_json)
    for line in lines:
        output.result(line.as_fields())
        for text in line.as_text().split("\n"):
            output.progress(text)
