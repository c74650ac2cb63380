"""``helio join`` and ``helio leave``: this machine comes into a cluster of another one, and goes out of it."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.base.backoff import Backoff
from heliograph.base.errors import ClusterNotFoundError
from heliograph.base.home import ClusterHome, home_directory
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.output import EXIT_FAILED, Output

if TYPE_CHECKING:
    from heliograph.cluster.joining.join import JoinOutcome

FIRST_PAUSE_MS, PAUSE_MS_MAX = 1_000, 10_000  # between two looks for a cluster that does not answer


@single_command
def join(
    context: CommandContext,
    address: Annotated[
        str | None,
        typer.Argument(
            help="HOST:PORT where nodes join, the ray_port of the machine that ran helio up; without a port, 6379. "
            "[default: the cluster that this machine joined before]"
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            help="Label of this machine, such as bookie=true, broker=true or rack=r2; several, or with commas. "
            "[default: the previous labels, else bookie=true,broker=true]",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address of this machine. [default: as it joined before, else the one of its route to HOST]"),
    ] = None,
    ray_port: Annotated[
        int | None,
        typer.Option(help="First of six ports of Ray on this machine, 0: free ones.", min=0, max=65_530),
    ] = None,
    wait: Annotated[float, typer.Option(help="Seconds to wait until its parts serve.", min=0)] = 300.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Stay: wait for the cluster, and join again when the node ends.")
    ] = False,
) -> None:
    """Bring this machine into a cluster.

    It gets the parts of its labels from the operator, and the command waits until they serve. The machine remembers
    the cluster, its labels and its address: after a reboot, `helio join` brings the same node back. It needs the
    versions of Python, Ray and heliograph of the cluster, and its token of Ray (~/.ray/auth_token). Exits with 1 if
    parts do not serve in time; they keep trying.
    """
    from heliograph.client.discovery import namespace_or_noted
    from heliograph.cluster.joining.join import JoinWishes
    from heliograph.cluster.joining.join import join as start
    from heliograph.cluster.joining.record import load_record
    from heliograph.cluster.labels import read_labels

    output = context.output
    wishes = JoinWishes(address, read_labels(label or ()), host, ray_port)
    place = ClusterHome(home_directory(context.named.get("namespace"), context.named.get("home")))
    named = namespace_or_noted(context.named.get("namespace"))
    with output.timed() as timer:
        joined = _join_patiently(
            lambda: start(wishes, named, place, wait, timer.progress),
            watch and (address is not None or load_record(place) is not None),
            timer.progress,
        )
    seconds = round(timer.seconds, 1)
    output.result({**asdict(joined), "seconds": seconds})
    if joined.missing:
        output.warn(f"not serving yet: {', '.join(sorted(joined.missing))}; helio status shows more")
    output.done(f"joined in {seconds} s. helio leave takes this machine out, helio down only stops it")
    if watch:
        _watch(named, place, output)
    elif joined.missing:
        raise typer.Exit(EXIT_FAILED)


def _join_patiently(join_now: Callable[[], JoinOutcome], is_patient: bool, say: Callable[[str], None]) -> JoinOutcome:
    """Join; if ``is_patient``, wait for a cluster that does not answer, because its first machine may be starting."""
    pauses = Backoff(FIRST_PAUSE_MS, PAUSE_MS_MAX)
    while True:
        try:
            return join_now()
        except ClusterNotFoundError as error:
            if not is_patient or error.field != "address":
                raise
            say(f"{error}; the next attempt follows")
        time.sleep(pauses.pause())


@single_command
def leave(
    context: CommandContext,
    keep_data: Annotated[
        bool, typer.Option("--keep-data", help="Leave the data on its bookies; the machine returns with helio join.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Stop the node even if that is refused; its bookies are then missing.")
    ] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until its bookies are empty.", min=0)] = 3600.0,
) -> None:
    """Take this machine out of its cluster.

    Its brokers give their topics away, its bookies are emptied (every copy is on other machines then), and its Ray node
    ends. Refused, with nothing done, where topics need more bookies than would be left, or last copies would be lost.
    Exits with 1 if the time was too short: the node runs on and is emptied, and another call waits again.
    """
    from heliograph.cluster.joining.leave import leave as stop

    output, target = context.output, context.target
    with output.timed() as timer:
        gone = stop(
            target.namespace,
            ClusterHome(target.home),
            keep_data=keep_data,
            force=force,
            timeout_seconds=timeout,
            progress=timer.progress,
        )
    output.result(asdict(gone))
    if not gone.done:
        output.warn(f"{gone.address} is still being emptied; run helio leave again to wait")
        raise typer.Exit(EXIT_FAILED)
    back = "; helio join brings it back" if gone.is_remembered else ""
    output.done(f"{gone.address} has left the cluster{back}")


def _watch(namespace: str, home: ClusterHome, output: Output) -> None:
    from heliograph.cluster.supervision import supervise_node

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    supervise_node(namespace, home, output.progress, stopped)
