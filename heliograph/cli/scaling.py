"""``helio scale`` and ``helio restart``: another number of parts, and a restart of parts one after the other."""

from __future__ import annotations

from typing import Annotated

import typer

from heliograph.base.errors import BadRequestError
from heliograph.base.home import ClusterHome
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.output import EXIT_FAILED
from heliograph.metadata.operator_records import WishKind, WishState

KINDS = ("bookies", "brokers")


@single_command
def scale(
    context: CommandContext,
    kind: Annotated[str, typer.Argument(help="bookies or brokers.")],
    count: Annotated[int, typer.Argument(help="New number of parts.", min=1, max=1_000)],
    wait: Annotated[float, typer.Option(help="Seconds to wait until they serve, or are out.", min=0)] = 600.0,
) -> None:
    """Have more bookies or brokers, or fewer.

    New ones start on labelled nodes with room, or wait for nodes that join. Surplus parts are emptied first,
    the youngest before the others. The command is refused where topics need more bookies, or copies would be lost. The
    number is stored in the cluster's metadata: the operator goes on whether the command waits or not. A later number
    takes the place of an earlier one. Exits with 1 if the time was too short.
    """
    if kind not in KINDS:
        raise BadRequestError(f"{kind!r} cannot be scaled", field="kind", limit=", ".join(KINDS))
    output = context.output
    found = context.target.wished_number(WishKind.SCALE, kind, kind, count, wait, output)
    done = found.state is WishState.DONE
    output.result({"kind": kind, "count": count, "done": done, **found.outcome})
    if done:
        output.done(f"{count} {kind} serve")
    else:
        output.warn(f"{kind} are still being scaled; helio status shows more")
        raise typer.Exit(EXIT_FAILED)


@single_command
def restart(
    context: CommandContext,
    parts: Annotated[list[str] | None, typer.Argument(help="Such as bookie-2. [default: all]")] = None,
    rolling: Annotated[bool, typer.Option("--rolling", help="Restart one part at a time; required.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for the end.", min=0)] = 3600.0,
) -> None:
    """Restart parts one by one while clients go on.

    They get the version that is installed, and the settings that this machine has now.
    Brokers give their topics away first; the next part follows when all parts serve again and no ledger lacks copies.
    Install a new version on all nodes first, then run this. It is refused while nodes differ, or where parts run a
    version too far from it. Exits with 1 if it stopped, or the time was too short; the operator goes on whether the
    command waits or not.
    """
    if not rolling:
        raise BadRequestError("parts are restarted one by one: confirm with --rolling", field="rolling")
    output, target = context.output, context.target
    with output.timed():
        target.attach()
    from heliograph.cluster.doctor.versions import ask_parts, homes, installed_versions, require_upgradable
    from heliograph.cluster.lifecycle import up
    from heliograph.cluster.operator.calls import ask_operator
    from heliograph.cluster.operator.wishes import PARTS
    from heliograph.cluster.setting_report import of_last_start

    before: dict[str, str] = {}
    with output.timed() as watch:
        if not ask_operator(target.namespace, "progress")["restart_left"]:  # else it is waited for
            facts = ask_parts(target.namespace)
            require_upgradable(facts, installed_versions(homes(facts)))
            before = {name: str(fact["version"]) for name, fact in facts.items()}
            up(of_last_start(target.namespace, ClusterHome(target.home)), watch.progress)  # a new operator
    wish = target.wished(WishKind.RESTART, PARTS, {"names": " ".join(parts)} if parts else {}, wait, output)
    failure = wish.outcome.get("failure", "")
    done = wish.state is WishState.DONE and not failure
    if not done:
        output.warn(failure or f"it is not over yet: {wish.note or 'no operator has begun'}")
    versions = {}
    for name, fact in sorted(ask_parts(target.namespace).items()):
        versions[name] = {"from": before.get(name, ""), "to": fact["version"]}
        output.progress(f"{name}: {before.get(name, 'unknown')} -> {fact['version']}")
    output.result({**wish.outcome, "done": done, "versions": versions})
    if not done:
        raise typer.Exit(EXIT_FAILED)
    output.done("all of them run the installed version" if not parts else f"restarted: {', '.join(parts)}")
