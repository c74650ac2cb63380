"""``helio bookie decommission``: take a bookie out of a running cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from heliograph.cli.options import Home, Json, Namespace, Target
from heliograph.cli.output import EXIT_FAILED, Output

Bookie = Annotated[str, typer.Argument(help="Its name, such as bookie-3.")]


def decommission(
    bookie: Bookie,
    wait: Annotated[float, typer.Option(help="Wait up to so many seconds for its data to be moved.", min=0)] = 600.0,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Delete its directories, too.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let it stay, and take entries again.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Move a bookie's data to others and end it.

    Refused where the others could not hold every topic's ensemble. Its data is moved in the background, whether this
    command waits or not; call it again to wait again. Ends with 1 when the time was not enough.
    """
    from heliograph.cluster import decommission as work

    output, target = Output(as_json), Target.of(namespace, home)
    target.attach()
    if cancel:
        work.cancel(bookie, target.namespace)
        output.result({"bookie": bookie, "cancelled": True})
        output.progress(f"{bookie} stays; what was moved stays where it is")
        return
    outcome = work.decommission(
        bookie, target.namespace, wait_seconds=wait, delete_data=delete_data, progress=output.progress
    )
    output.result(asdict(outcome))
    if not outcome.done:
        output.progress(f"{outcome.ledgers_left} ledgers are still to be moved; call this again to wait for them")
        raise typer.Exit(EXIT_FAILED)
    rest = "with its data" if outcome.data_deleted else "its directories can be deleted"
    output.progress(f"{bookie} is out of the cluster, {rest}")
