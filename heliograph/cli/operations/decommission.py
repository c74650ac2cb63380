"""``helio bookies decommission``: take a bookie out of a running cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.base.home import ClusterHome
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

    The command is refused if the other bookies cannot hold the ensemble of every topic. It is stored in the cluster's
    metadata, and carried out whether the command waits or not; run it again to wait again. Exits with 1 if the time was
    too short.
    """
    from heliograph.cluster.operator.wishes import DELETES_DATA
    from heliograph.cluster.wishing import wished
    from heliograph.metadata.operator_records import WishKind, WishState

    output, target = Output(as_json), Target.of(namespace, home)
    kind = WishKind.KEEP if cancel else WishKind.DECOMMISSION
    arguments = {"data": DELETES_DATA} if delete_data and not cancel else {}
    with output.timed() as watch:
        found = wished(
            kind,
            bookie,
            arguments,
            ClusterHome(target.home),
            target.namespace,
            wait_seconds=wait,
            progress=watch.progress,
        )
    is_done = found.state is WishState.DONE
    output.result(found.outcome or {"bookie": bookie, "done": False})
    if not is_done:
        output.warn(f"{bookie} is not out yet ({found.note or 'no operator has begun'}); call this again to wait")
        raise typer.Exit(EXIT_FAILED)
    if cancel:
        output.progress(f"{bookie} stays; what was moved stays where it is")
        return
    rest = "with its data" if found.outcome["data_deleted"] else "its directories can be deleted"
    output.done(f"{bookie} is out of the cluster, {rest}")
