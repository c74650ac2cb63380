"""Commands by which the operator changes one bookie: ``helio bookies decommission``, ``replace`` and ``move``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from heliograph.base.errors import BadRequestError
from heliograph.cli.context import CommandContext
from heliograph.cli.output import EXIT_FAILED
from heliograph.metadata.operator_records import Wish, WishKind, WishState

Bookie = Annotated[str, typer.Argument(help="Name of the bookie, such as bookie-3.")]
Wait = Annotated[float, typer.Option(help="Seconds to wait for the copies.", min=0)]
Serving = Annotated[float, typer.Option(help="Seconds to wait until it serves.", min=0)]
Force = Annotated[bool, typer.Option("--force", help="Stop it even if topics then lack bookies for their ensemble.")]


def decommission(
    context: CommandContext,
    bookie: Bookie,
    wait: Annotated[float, typer.Option(help="Seconds to wait until its data has moved.", min=0)] = 600.0,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Delete its directories, too.")] = False,
    cancel: Annotated[bool, typer.Option("--cancel", help="Keep the bookie, and let it take entries again.")] = False,
) -> None:
    """Move a bookie's data to other bookies and end it.

    The command is refused if the other bookies cannot hold the ensemble of every topic. It is stored in the cluster's
    metadata, and carried out whether the command waits or not; run it again to wait again. Exits with 1 if the time was
    too short.
    """
    from heliograph.cluster.operator.wishes import DELETES_DATA

    kind = WishKind.KEEP if cancel else WishKind.DECOMMISSION
    arguments = {"data": DELETES_DATA} if delete_data and not cancel else {}
    found = _wish(context, kind, bookie, arguments, wait)
    if cancel:
        context.output.progress(f"{bookie} stays; ledgers that were moved stay in their new places")
        return
    rest = "with its data" if found.outcome["data_deleted"] else "its directories can be deleted"
    context.output.done(f"{bookie} is out of the cluster, {rest}")


def replace(
    context: CommandContext,
    bookie: Bookie,
    empty_disk: Annotated[
        bool, typer.Option("--empty-disk", help="Confirm that its data is lost and that its directories are empty.")
    ] = False,
    accept_loss: Annotated[
        bool, typer.Option("--accept-loss", help="Go on even if it may hold the last copies of entries.")
    ] = False,
    wait: Wait = 600.0,
) -> None:
    """Start a bookie again after its disk died.

    It starts on empty directories, under the same name. Until its copies are made again from the other bookies, it
    answers "unknown" for everything that it may have held. The command is refused while the bookie serves, and if it
    may hold the last copies of entries. Exits with 1 if the time was too short: the operator goes on, and the same
    command waits again.
    """
    from heliograph.cluster.operator.wishes import ACCEPTS_LOSS

    if not empty_disk:
        raise BadRequestError(
            f"this gives up what the disks of {bookie} held: confirm with --empty-disk", field="empty_disk"
        )
    arguments = {"loss": ACCEPTS_LOSS} if accept_loss else {}
    _wish(context, WishKind.REPLACE, bookie, arguments, wait)
    context.output.done(f"{bookie} has its copies again; ledgers that are still open get theirs when they are closed")


def recover(
    context: CommandContext,
    bookie: Bookie,
    wait: Wait = 600.0,
) -> None:
    """Make the copies of a lost bookie again now.

    A dead bookie's copies are made on others; a bookie that serves gets its missing copies. Without the command, the
    auditor waits for a lost bookie for lost_bookie_delay_ms. It is refused if the other bookies are too few for the
    copies.
    Exits with 1 if the time was too short: the operator goes on, and the same command waits again.
    """
    _wish(context, WishKind.RECOVER, bookie, {}, wait)
    context.output.done(f"every ledger of {bookie} has its copies")


def move(
    context: CommandContext,
    bookie: Bookie,
    to: Annotated[Path, typer.Option(help="Directory on its node for the bookie's directories.")],
    journal_to: Annotated[Path | None, typer.Option(help="The same for its journals. [default: --to]")] = None,
    node: Annotated[str | None, typer.Option(help="Address of the Ray node with --to, if it is another one.")] = None,
    force: Force = False,
    wait: Serving = 3600.0,
) -> None:
    """Move a bookie to another disk or node.

    It is stopped, its directories are copied and read again, and it starts at the new place, then and later. The old
    directories get names that end in .moved; remove them when you like. Refused if the other bookies are too few for
    the widest ensemble. Exits with 1 if the time was too short: the operator goes on, and the same command waits again.
    """
    arguments = _given(to=to, journals=journal_to, node=node, force=force)
    _serve(context, _wish(context, WishKind.MOVE, bookie, arguments, wait))


def hold(
    context: CommandContext,
    bookie: Bookie,
    force: Force = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait until it has ended.", min=0)] = 120.0,
) -> None:
    """Stop a bookie, so that its directories can be copied by hand.

    `helio bookies place` starts it on the copies, and `helio up` where it was. Refused if the other bookies are too few
    for the widest ensemble.
    """
    _wish(context, WishKind.HOLD, bookie, _given(force=force), wait)
    context.output.done(
        f"{bookie} is stopped: copy its directories whole, then helio bookies place {bookie} --node ADDRESS --at "
        "DIRECTORY, which has them in its folder of this name. Its copies are made on other bookies if it is away for "
        "longer than lost_bookie_delay_ms"
    )


def place(
    context: CommandContext,
    bookie: Bookie,
    node: Annotated[str, typer.Option(help="Address of the Ray node that has its data.")],
    at: Annotated[
        Path | None, typer.Option(help="Directory with the copy, in a folder of its name. [default: unchanged]")
    ] = None,
    journal_at: Annotated[Path | None, typer.Option(help="The same for its journals. [default: --at]")] = None,
    wait: Serving = 120.0,
) -> None:
    """Start a bookie where its data is now.

    For a disk that is in another machine, a machine with another address, a restore, or a copy by hand. Its cookie says
    whether the data is its own and the newest; nothing is copied. Refused while the bookie serves.
    """
    arguments = _given(node=node, journals=journal_at, at=at)
    _serve(context, _wish(context, WishKind.PLACE, bookie, arguments, wait))


def _given(*, force: bool = False, **named: object) -> dict[str, str]:
    from heliograph.cluster.operator.wishes import FORCED

    found = {name: str(value) for name, value in named.items() if value is not None}
    return found | ({"force": FORCED} if force else {})


def _wish(context: CommandContext, kind: WishKind, bookie: str, arguments: dict[str, str], wait: float) -> Wish:
    """Return a wish that was carried out.

    Raises:
        Exit: the time was too short.
    """
    found = context.target.wished(kind, bookie, arguments, wait, context.output)
    is_done = found.state is WishState.DONE
    context.output.result({"bookie": bookie, **found.outcome, "done": is_done})
    if not is_done:
        context.output.warn(f"not done yet ({found.note or 'no operator has begun'}); call this again to wait")
        raise typer.Exit(EXIT_FAILED)
    return found


def _serve(context: CommandContext, found: Wish) -> None:
    if not found.outcome["serving"]:
        context.output.warn(f"{found.subject} does not serve yet: {found.note}; helio status shows more")
        raise typer.Exit(EXIT_FAILED)
    places = [*found.outcome["journal_directories"], *found.outcome["data_directories"]]
    context.output.done(
        f"{found.subject} serves on {found.outcome['address']}{' from ' * bool(places)}{', '.join(places)}"
    )
