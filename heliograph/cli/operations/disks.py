"""``helio bookies replace``, ``recover`` and ``move``: what to do about the disk of a bookie of a running cluster."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from heliograph.base.errors import BadRequestError
from heliograph.cli.operations.decommission import Bookie
from heliograph.cli.options import Home, Json, Namespace, Target
from heliograph.cli.output import EXIT_FAILED, Output

Wait = Annotated[float, typer.Option(help="Seconds to wait for the copies.", min=0)]


def replace(
    bookie: Bookie,
    empty_disk: Annotated[
        bool, typer.Option("--empty-disk", help="Confirm that its data is lost and that its directories are empty.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on even if it may hold the last copies of entries.")
    ] = False,
    wait: Wait = 600.0,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Start a bookie again after its disk died.

    It starts on empty directories, under the same name. Until its copies are made again from the other bookies, it
    answers "unknown" for everything that it may have held. The command is refused while the bookie serves, and if it
    may hold the last copies of entries. Exits with 1 if the time was too short; the cluster goes on, and the command
    "recover" waits again.
    """
    from heliograph.cluster.replacement import disk as work

    if not empty_disk:
        raise BadRequestError(
            f"this gives up what the disks of {bookie} held: confirm with --empty-disk", field="empty_disk"
        )
    output, target = Output(as_json), Target.of(namespace, home)
    target.attach()
    with output.timed() as watch:
        outcome = work.replace(
            bookie, target.namespace, accept_loss=accept_loss, wait_seconds=wait, progress=watch.progress
        )
    output.result(asdict(outcome))
    if not outcome.is_alive:
        output.warn(f"{bookie} has not started yet; helio status says why")
    elif outcome.ledgers_left:
        output.warn(f"{outcome.ledgers_left} ledgers are still to be repaired: helio bookies recover {bookie}")
    else:
        output.done(f"{bookie} has its copies again; ledgers that are still open get theirs when they are closed")
    if not outcome.done:
        raise typer.Exit(EXIT_FAILED)


def recover(
    bookie: Bookie,
    wait: Wait = 600.0,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Make the copies of a lost bookie again now.

    Those of a dead bookie are made on others, and one that serves gets what it lacks. Without the command, the auditor
    waits for a lost bookie for lost_bookie_delay_ms. It is refused if the other bookies are too few to hold the copies.
    Exits with 1 if the time was too short; run it again to wait again.
    """
    from heliograph.cluster.replacement.recovery import recover as work

    output, target = Output(as_json), Target.of(namespace, home)
    with output.timed() as watch:
        outcome = work(bookie, target.ask_auditor, wait_seconds=wait, progress=watch.progress)
    output.result(asdict(outcome))
    if not outcome.done:
        output.warn(f"{outcome.ledgers_left} ledgers are still to be repaired; call this again to wait for them")
        raise typer.Exit(EXIT_FAILED)
    output.done(f"every ledger of {bookie} has its copies")


def move(
    bookie: Bookie,
    to: Annotated[Path | None, typer.Option(help="Directory that is to hold the bookie's, on its node.")] = None,
    journal_to: Annotated[Path | None, typer.Option(help="The same for its journals. [default: --to]")] = None,
    node: Annotated[str | None, typer.Option(help="Address of another Ray node, which has --to.")] = None,
    already_copied: Annotated[
        bool, typer.Option("--already-copied", help="Copy nothing; without --to, only stop the bookie.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Stop it even if topics then lack bookies for their ensemble.")
    ] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait until it serves again.", min=0)] = 120.0,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Move a bookie to another disk or node.

    It is stopped, its directories are copied and read again, and it starts at the new place, then and later. The old
    directories get names that end in .moved; remove them when you like. Refused if the other bookies are too few for
    the widest ensemble. If you copy by hand: --already-copied stops the bookie, and with --to starts it on the copies.
    It joins Ray, whose tasks copy on the nodes.
    """
    from heliograph.cluster.moving import move as work
    from heliograph.cluster.replacement import disk

    output, target = Output(as_json), Target.of(namespace, home)
    if to is None and not already_copied:
        raise BadRequestError(
            f"say where {bookie} goes: --to DIRECTORY, and --node ADDRESS if that is on another node", field="to"
        )
    target.attach()
    if to is None:
        with output.timed():
            disk.stop_for_move(bookie, target.namespace, force=force)
        output.result({"bookie": bookie, "stopped": True})
        output.done(
            f"{bookie} is stopped: copy its directories whole, then run this again with --to, which has them in "
            f"{bookie}/; or name them in the settings, and run helio up. Its copies are made on other bookies if it is "
            "away for longer than lost_bookie_delay_ms"
        )
        return
    with output.timed() as timer:
        if already_copied:
            outcome = work.adopt(bookie, target.namespace, to=to, journal_to=journal_to, node=node, wait_seconds=wait)
        else:
            outcome = work.move(
                bookie,
                target.namespace,
                to=to,
                journal_to=journal_to,
                node=node,
                force=force,
                wait_seconds=wait,
                progress=timer.progress,
            )
    output.result(asdict(outcome))
    if not outcome.serving:
        output.warn(f"{bookie} does not serve yet; helio status says why")
        raise typer.Exit(EXIT_FAILED)
    output.done(f"{bookie} serves from {', '.join((*outcome.journal_directories, *outcome.data_directories))}")
