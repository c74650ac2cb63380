"""``helio bookies decommission``: take a bookie out of a running cluster."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from heliograph.cli.options import Home, Json, Namespace, Target
from heliograph.cli.output import EXIT_FAILED, Output

Bookie = Annotated[str, typer.Argument(help="Name of the bookie, such as bookie-3.")]


def decommission(
    bookie: Bookie,
    wait: Annotated[float, typer.Option(help="Seconds to wait for its data to be moved.", min=0)] = 600.0,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Delete its directories, too.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Keep the bookie, and let it take entries again.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Move a bookie's data to other bookies and end it.

    The command is refused if the other bookies cannot hold the ensemble of every topic. The data is moved in the
    background, whether the command waits or not; run it again to wait again. Exits with 1 if the time was too short.
    It joins Ray, to end the bookie's process; --cancel goes by the gateway.
    """
    output, target = Output(as_json), Target.of(namespace, home)
    if cancel:
        target.ask_auditor("cancel_decommission", bookie)
        output.result({"bookie": bookie, "cancelled": True})
        output.progress(f"{bookie} stays; what was moved stays where it is")
        return
    from heliograph.cluster import decommission as work

    target.attach()
    with output.timed() as watch:
        outcome = work.decommission(
            bookie, target.namespace, wait_seconds=wait, delete_data=delete_data, progress=watch.progress
        )
    output.result(asdict(outcome))
    if not outcome.done:
        output.warn(f"{outcome.ledgers_left} ledgers are still to be moved; call this again to wait for them")
        raise typer.Exit(EXIT_FAILED)
    rest = "with its data" if outcome.data_deleted else "its directories can be deleted"
    output.done(f"{bookie} is out of the cluster, {rest}")
