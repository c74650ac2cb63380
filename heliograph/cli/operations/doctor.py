"""``helio doctor``: check this machine, the settings and a running cluster."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.output import EXIT_FAILED


@single_command
def doctor(
    context: CommandContext,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with settings. [default: <home>/cluster.toml]")
    ] = None,
) -> None:
    """Check this machine, the settings and a running cluster. Exit code 1 if there is a problem.

    It works before the first start, too. Each disk is measured by 100 small synced writes. Of a running
    cluster it shows the operator's report, as `helio status` does.
    """
    from heliograph.cluster.doctor.examination import examine
    from heliograph.cluster.doctor.finding import Severity

    output, target = context.output, context.target
    with output.timed():
        found = list(examine(target.home, target.namespace, config_file))
    counts = Counter(finding.severity for finding in found)
    is_healthy = not counts[Severity.PROBLEM]
    output.result({"healthy": is_healthy, "findings": [asdict(finding) for finding in found]})
    output.table(
        "",
        ("", "check", "found", "way out"),
        [(finding.severity, finding.check, finding.found, finding.way_out) for finding in found],
    )
    output.progress(f"{counts[Severity.PROBLEM]} problems, {counts[Severity.WARNING]} warnings")
    if not is_healthy:
        raise typer.Exit(EXIT_FAILED)
