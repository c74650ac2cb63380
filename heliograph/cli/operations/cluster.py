"""``helio up``, ``helio down``, ``helio status``."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.base.clock import iso_time, wall_ms
from heliograph.base.errors import ClusterNotFoundError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import ENDING_SIGNALS
from heliograph.base.version import heliograph_version, require_posix
from heliograph.cli.context import CommandContext, single_command
from heliograph.cli.figures import age_text
from heliograph.cli.options import Target, given
from heliograph.cli.output import EXIT_FAILED, Output
from heliograph.client import discovery
from heliograph.cluster.joining import noted
from heliograph.metadata.operator_records import ClusterReport, PartReport

if TYPE_CHECKING:
    from heliograph.cluster.config import ClusterConfig

_WAIT_POLL_SECONDS = 0.5
FIRST_REPORT_SECONDS = 3.0  # for an operator that was just started
_STATE_SHOWN = ("namespace", "ray_address", "dashboard_url", "metadata_url", "service_url", "gateway_url")


@single_command
def up(
    context: CommandContext,
    bookies: Annotated[int | None, typer.Option(help="Storage nodes. [default: 3, or cores / 8]")] = None,
    brokers: Annotated[int | None, typer.Option(help="Brokers. [default: 2, or cores / 8]")] = None,
    ensemble_size: Annotated[int | None, typer.Option(help="Bookies a segment is spread over. [default: 3]")] = None,
    write_quorum: Annotated[int | None, typer.Option(help="Copies of each message. [default: 3]")] = None,
    ack_quorum: Annotated[int | None, typer.Option(help="Fsynced copies before an ack. [default: 2]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    broker_port: Annotated[int | None, typer.Option(help="First broker's port, 0: any. [default: 6650]")] = None,
    gateway_port: Annotated[int | None, typer.Option(help="Gateway's port, 0: any. [default: 8080]")] = None,
    metadata_kind: Annotated[
        str | None, typer.Option("--metadata", help="Metadata store to run: embedded or etcd. [default: embedded]")
    ] = None,
    metadata_members: Annotated[int | None, typer.Option(help="Members of the etcd. [default: one a node]")] = None,
    metadata_url: Annotated[
        str | None, typer.Option(help="Store at etcd://hosts/prefix or zk://hosts/chroot. [default: our own]")
    ] = None,
    metadata_port: Annotated[int | None, typer.Option(help="Metadata store's port, 0: any. [default: 0]")] = None,
    dashboard_port: Annotated[int | None, typer.Option(help="Ray dashboard's port, 0: any. [default: 8265]")] = None,
    ray_port: Annotated[
        int | None, typer.Option(help="Port of Ray's head for other nodes, 0: any. [default: 0]")
    ] = None,
    ray_labels: Annotated[
        str | None,
        typer.Option(
            help="Labels of Ray's head. "
            "[default: heliograph.io/bookie=true,heliograph.io/broker=true,heliograph.io/metadata=true]"
        ),
    ] = None,
    data_directory: Annotated[Path | None, typer.Option(help="Disk to store on. [default: <home>/data]")] = None,
    gateway: Annotated[bool | None, typer.Option(help="Start the HTTP and WebSocket gateway. [default: yes]")] = None,
    config_file: Annotated[
        Path | None, typer.Option("--config", help="TOML file with any setting. [default: <home>/cluster.toml]")
    ] = None,
    require_labels: Annotated[
        bool | None, typer.Option(help="Use only nodes that carry heliograph.io/ labels. [default: yes]")
    ] = None,
    tls: Annotated[
        str | None, typer.Option(help="auto: TLS everywhere, with certificates that helio makes. [default: files]")
    ] = None,
    secure: Annotated[bool | None, typer.Option("--secure", help="Authentication, TLS, audit. [default: no]")] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Allow unauthenticated access from other machines. [default: no]"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and start Ray's head again when it ends.")] = False,
    lean: Annotated[bool | None, typer.Option("--lean", help="Ray without dashboard, monitors. [default: no]")] = None,
    parts: Annotated[str | None, typer.Option(help="together: all parts in one process. [default: apart]")] = None,
) -> None:
    """Start a cluster. It runs on this machine or in the Ray that RAY_ADDRESS names; running parts stay as they are."""
    options = {name: value for name, value in locals().items() if name not in ("context", "watch")}
    require_posix()
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.head.boards import give_boards_to_ray
    from heliograph.cluster.lifecycle import up as start

    output = context.output
    config = ClusterConfig(**given(**options), **context.named)
    with output.timed() as timer, _ended_by_signals():
        state = start(config, timer.progress)
        give_boards_to_ray(state.ray_temporary_directory)
    seconds = round(timer.seconds, 1)
    output.result({**asdict(state), "seconds": seconds})
    option = "".join(f" --{name} {value}" for name, value in context.named.items())
    _show_started(output, state, seconds, option, config.broker_config("broker-1").default_retention_seconds)
    if watch:
        _watch(config, output)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Make SIGTERM end the block as Ctrl-C does. The block then stops what it started, and ignores further signals."""

    def end(number: int, _: object) -> None:
        for each in ENDING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        sys.exit(128 + number)

    before = {each: signal.signal(each, end) for each in ENDING_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _watch(config: ClusterConfig, output: Output) -> None:
    from heliograph.cluster.supervision import supervise

    stopped = threading.Event()
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: stopped.set())
    supervise(config, output.progress, stopped)


def _show_started(output: Output, state: ClusterState, seconds: float, option: str, retention_seconds: int) -> None:
    rows = [
        ("brokers", state.service_url),
        ("broker processes", broker_processes(state.service_url)),
        ("gateway", state.gateway_url),
        ("API docs", f"{state.gateway_url}/docs" if state.gateway_url else ""),
        ("Ray dashboard", _dashboard(state.dashboard_url, state.ray_auth_mode)),
        ("to join this Ray", _joining(state)),
        ("data", state.data_root),
        ("retention", retention_text(retention_seconds)),
    ]
    output.facts("", rows)
    if state.not_serving:
        output.warn(f"not serving yet: {', '.join(sorted(state.not_serving))}; `helio status` shows more")
    output.done(f"up in {seconds} s. Next:")
    output.progress(f"  echo hello | helio produce greetings{option}")
    output.progress(f"  helio consume greetings --from earliest -n 1{option}")


def broker_processes(service_url: str) -> str:
    """Return how many brokers serve, beside the cores by which `helio up` chooses their number; empty without any."""
    from heliograph.cluster.settings.declared import usable_cores

    if not service_url:
        return ""
    return f"{service_url.count(',') + 1}; this machine has {usable_cores()} cores; `helio scale brokers N` changes it"


def _joining(state: ClusterState) -> str:
    """Return the environment in which ``ray.init()`` of any program joins the Ray of a cluster."""
    mode = f" RAY_AUTH_MODE={state.ray_auth_mode}" if state.ray_auth_mode else ""
    return f"RAY_ADDRESS={state.ray_address}{mode}"


def retention_text(seconds: int) -> str:
    """Return a line on acknowledged messages of namespaces that set no retention."""
    kept = {-1: "kept for ever", 0: "deleted"}.get(seconds, f"kept for {seconds} s")
    return f"acknowledged messages are {kept} unless a namespace says otherwise (broker.default_retention_seconds)"


@single_command
def down(
    context: CommandContext,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Also delete every stored message.")] = False,
) -> None:
    """Stop the cluster that `helio up` started. Data stays unless --delete-data is given."""
    from heliograph.cluster.lifecycle import down as stop

    with context.output.timed() as timer:
        stop(ClusterHome(context.home), delete_data=delete_data, progress=timer.progress)
    result = {"stopped": True, "home": str(context.home), "data_deleted": delete_data}
    context.report(result, f"down in {timer.seconds:.1f} s")


@single_command
def status(
    context: CommandContext,
    wait: Annotated[float, typer.Option(help="Wait up to this many seconds for a healthy cluster.")] = 0.0,
) -> None:
    """Show the running parts and their problems. Exit code 0 if all is well; a bookie that is emptied is.

    The report comes from the gateway, else from the metadata store. A silent operator is reported.
    """
    output, target = context.output, context.target
    deadline = time.monotonic() + wait
    with output.timed():
        state = _known(target)
        found = _report(target, state)
        begun = time.monotonic()
        while not found.is_healthy and time.monotonic() < max(deadline, begun + FIRST_REPORT_SECONDS * found.is_silent):
            time.sleep(_WAIT_POLL_SECONDS)
            found = _report(target, state)
    state = _known(target)  # which may have been noted again
    own = {name: getattr(state, name) for name in _STATE_SHOWN}
    versions = version_notes(found.parts, heliograph_version())
    shown = asdict(found)
    shown["actors"] = shown.pop("parts")
    shown["operator"], shown["operator_notes"] = shown.pop("identity"), shown.pop("notes")
    output.result({"healthy": found.is_healthy, **own, **shown, "version_notes": versions})
    _show_status(output, found, state, versions)
    if not found.is_healthy:
        output.warn("not healthy")
        raise typer.Exit(EXIT_FAILED)
    output.done("healthy")


def _known(target: Target) -> ClusterState:
    """Return the addresses of the cluster: from this machine's notes, or from the Ray of RAY_ADDRESS.

    Raises:
        ClusterNotFoundError: neither knows it.
    """
    home, named = ClusterHome(target.home), os.environ.get("RAY_ADDRESS")
    state = noted.noted_state(home)
    is_address = named is not None and ":" in named and "://" not in named  # of a GCS, and not auto
    if named and is_address and (state is None or state.ray_address != named):
        from heliograph.cluster.joining.view import cluster_at  # it loads Ray

        return cluster_at(named, target.namespace)
    if state is None or state.namespace != target.namespace:
        raise ClusterNotFoundError(
            f"no cluster {target.namespace} runs from {home.directory}: start one with helio dev or helio up, join one "
            "with helio join, name another home with --home, or set RAY_ADDRESS to the Ray that it runs in"
        )
    return state


@single_command
def nodes(context: CommandContext) -> None:
    """Show the machines, and the effects of losing each.

    A ledger stops if an entry has all of its copies there, or too many of them to recover an open one; the auditor
    counts that.
    """
    with context.output.timed():
        rows = machine_rows(report_of(context.target))
    columns = ("node", "state", "since", "parts", "ledgers that stop without it")
    shown = [(row["address"], row["state"], time_text(row["since_ms"]), ", ".join(row["parts"])) for row in rows]
    cells = [(*each, _count(row["ledgers_stopping"])) for each, row in zip(shown, rows, strict=True)]
    context.show({"nodes": rows}, columns, cells)


def report_of(target: Target) -> ClusterReport:
    """Return the report of the cluster on which a command works.

    Raises:
        ClusterNotFoundError: it is not known here, or nothing of it answers.
    """
    return _report(target, _known(target))


def machine_rows(report: ClusterReport) -> list[dict[str, Any]]:
    """Return a row for each machine, by address. Pure."""
    from heliograph.base.peer import host_in  # it loads asyncio, which the help of no command needs

    rows = []
    for node in report.nodes:
        parts = [part for part in report.parts if part.home == node.address]
        hosts = {host_in(part.address) for part in parts if part.kind == "bookie" and part.address}
        stopping = max((report.ledger_risks.get(host, 0) for host in hosts), default=0)
        names = [part.name for part in parts]
        rows.append({**asdict(node), "parts": names, "ledgers_stopping": stopping})
    return rows


def bookie_rows(report: ClusterReport) -> list[dict[str, Any]]:
    """Return a row for each bookie, by name. Pure."""
    states = dict.fromkeys(report.bookies_available, "writable") | dict.fromkeys(report.bookies_readonly, "read-only")
    states |= dict.fromkeys(report.bookies_draining, "draining")
    kept = ("name", "since_ms", "address", "rack", "home", "version", "restarts", "note")
    return [
        {**{key: getattr(part, key) for key in kept}, "state": states.get(part.name, "away")}
        for part in report.parts
        if part.kind == "bookie"
    ]


def _report(target: Target, state: ClusterState) -> ClusterReport:
    """Return the report of a cluster.

    Raises:
        ClusterNotFoundError: nothing of the cluster answers, nor does its Ray.
    """
    found = noted.report_of(state, ClusterHome(target.home))
    if found.is_silent and not found.parts:
        if state.own_pid and state.own_process is None:
            raise ClusterNotFoundError(f"process {state.own_pid}, which had the cluster, has ended: helio dev")
        if state.ray_address:
            discovery.require_reach(state.ray_address, state)
    return found


def _show_status(output: Output, found: ClusterReport, state: ClusterState, versions: list[str]) -> None:
    where = f"in Ray at {state.ray_address}" if state.ray_address else "in one process, without Ray"
    output.table(
        f"{state.namespace} {where}",
        ("part", "state", "since", "pid", "restarts", "version", "address", "note"),
        [
            (
                part.name,
                part.state,
                time_text(part.since_ms),
                part.pid,
                part.restarts,
                part.version,
                part.address,
                part.note,
            )
            for part in found.parts
        ],
    )
    output.progress("")
    writable, readonly = len(found.bookies_available), len(found.bookies_readonly)
    rows = [
        ("bookies", f"{writable} writable, {readonly} read-only" if found.parts else "unknown"),
        *(("", note) for note in found.publishing_notes),
        ("under-replicated ledgers", _count(found.underreplicated_ledgers)),
        *([("damaged ledgers", _damaged(found.ledgers_damaged))] if found.ledgers_damaged > 0 else []),
        *([("repair", "paused: helio ledgers resume --repair")] if found.is_repair_paused else []),
        *([("restored metadata", _restored(found.restored_backup_ms))] if found.restored_backup_ms else []),
        *([("ledgers to be moved", _count(found.ledgers_moving))] if found.bookies_draining else []),
        ("topics in public/default", _count(found.topics)),
        ("reported", f"{time_text(found.as_of_ms)} by {found.identity}" if found.identity else "by no operator"),
        *(("", note) for note in found.notes),
        *(("versions", note) for note in versions),
        ("gateway", state.gateway_url or "none"),
        *([("Ray dashboard", _dashboard(state.dashboard_url, state.ray_auth_mode))] if state.ray_address else []),
    ]
    output.facts("", rows)


def version_notes(parts: Iterable[PartReport], own: str) -> list[str]:
    """Return in one line each how the versions of parts differ, and that ours is another one. Pure.

    Args:
        own: version of this program.
    """
    names = defaultdict(list)
    for part in parts:
        if part.version:
            names[part.version].append(part.name)
    notes = []
    if len(names) > 1:
        shown = "; ".join(f"{version}: {', '.join(sorted(some))}" for version, some in sorted(names.items()))
        notes.append(f"the parts differ ({shown}): helio restart --rolling gives all of them the installed version")
    if names and own not in names:
        notes.append(f"this program is {own}, and no part of the cluster is")
    return notes


def time_text(time_ms: int) -> str:
    return age_text(time_ms, wall_ms()) if time_ms else ""


def _restored(backup_ms: int) -> str:
    return f"of {iso_time(backup_ms)}: bookies delete no ledger until helio backup accept"


def _damaged(number: int) -> str:
    return f"{number} have entries without any good copy: helio ledgers under-replicated"


def _count(number: int) -> str:
    return "unknown" if number < 0 else str(number)


def _dashboard(url: str, auth_mode: str) -> str:
    if not url:
        return "none"
    return f"{url} (it asks for the token in ~/.ray/auth_token)" if auth_mode == "token" else url
