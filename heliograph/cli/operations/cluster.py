"""``helio up``, ``helio down``, ``helio status``."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.base.clock import iso_time
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.cli.options import Home, Json, Namespace, Target, given
from heliograph.cli.output import EXIT_FAILED, Output

if TYPE_CHECKING:
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.status.model import ClusterStatus

_WAIT_POLL_SECONDS = 0.5


def up(
    home: Home = None,
    namespace: Namespace = None,
    bookies: Annotated[int | None, typer.Option(help="Storage nodes. [default: 3, or cores / 8]")] = None,
    brokers: Annotated[int | None, typer.Option(help="Brokers. [default: 2, or cores / 8]")] = None,
    ensemble_size: Annotated[int | None, typer.Option(help="Bookies a segment is spread over. [default: 3]")] = None,
    write_quorum: Annotated[int | None, typer.Option(help="Copies of each message. [default: 3]")] = None,
    ack_quorum: Annotated[int | None, typer.Option(help="Fsynced copies before an ack. [default: 2]")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on. [default: 127.0.0.1]")] = None,
    broker_port: Annotated[int | None, typer.Option(help="First broker's port, 0: any. [default: 6650]")] = None,
    gateway_port: Annotated[int | None, typer.Option(help="Gateway's port, 0: any. [default: 8080]")] = None,
    metadata_kind: Annotated[
        str | None, typer.Option("--metadata", help="Metadata of our own: embedded, or etcd. [default: embedded]")
    ] = None,
    metadata_members: Annotated[int | None, typer.Option(help="Members of that etcd. [default: one a node]")] = None,
    metadata_url: Annotated[
        str | None, typer.Option(help="Metadata in etcd://hosts/prefix or zk://hosts/chroot. [default: our own]")
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
        str | None, typer.Option(help="auto: TLS everywhere, by certificates of our own making. [default: files]")
    ] = None,
    insecure: Annotated[
        bool | None,
        typer.Option("--insecure", help="Let strangers in who reach --host, without auth.enabled. [default: no]"),
    ] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Stay, and start Ray's head again when it ends.")] = False,
    lean: Annotated[
        bool | None,
        typer.Option("--lean", help="Ray without dashboard and monitors: less memory. [default: no]"),
    ] = None,
    parts: Annotated[str | None, typer.Option(help="together: all parts in one process. [default: apart]")] = None,
    as_json: Json = False,
) -> None:
    """Start a cluster. It runs on this machine or in the Ray that RAY_ADDRESS names; running parts stay as they are."""
    settings = given(**{name: value for name, value in locals().items() if name not in ("as_json", "watch")})
    from heliograph.cluster.config import ClusterConfig
    from heliograph.cluster.lifecycle import up as start

    output = Output(as_json)
    config = ClusterConfig(**settings)
    with output.timed() as timer:
        state = start(config, timer.progress)
    seconds = round(timer.seconds, 1)
    output.result({**asdict(state), "seconds": seconds})
    options = given(home=home, namespace=namespace)
    option = "".join(f" --{name} {value}" for name, value in options.items())
    _show_started(output, state, seconds, option, config.broker_config("broker-1").default_retention_seconds)
    if watch:
        _watch(config, output)


def _watch(config: ClusterConfig, output: Output) -> None:
    from heliograph.cluster.supervision import supervise

    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    supervise(config, output.progress, stopped)


def _show_started(output: Output, state: ClusterState, seconds: float, option: str, retention_seconds: int) -> None:
    rows = [
        ("brokers", state.service_url),
        ("gateway", state.gateway_url),
        ("API docs", f"{state.gateway_url}/docs" if state.gateway_url else ""),
        ("Ray dashboard", _dashboard(state.dashboard_url, state.ray_auth_mode)),
        ("data", state.data_root),
        ("retention", retention_text(retention_seconds)),
    ]
    output.facts("", rows)
    if state.not_serving:
        output.warn(f"not serving yet: {', '.join(sorted(state.not_serving))}; `helio status` tells more")
    output.done(f"up in {seconds} s. Next:")
    output.progress(f"  echo hello | helio produce greetings{option}")
    output.progress(f"  helio consume greetings --from earliest -n 1{option}")


def retention_text(seconds: int) -> str:
    """Return what becomes of acknowledged messages where a namespace sets no retention."""
    kept = {-1: "kept for ever", 0: "deleted"}.get(seconds, f"kept for {seconds} s")
    return f"acknowledged messages are {kept} unless a namespace says otherwise (broker.default_retention_seconds)"


def down(
    home: Home = None,
    namespace: Namespace = None,
    delete_data: Annotated[bool, typer.Option("--delete-data", help="Also delete every stored message.")] = False,
    as_json: Json = False,
) -> None:
    """Stop what `helio up` started. Data stays unless --delete-data is given."""
    from heliograph.cluster.lifecycle import down as stop

    output = Output(as_json)
    target = Target.of(namespace, home)
    with output.timed() as timer:
        stop(ClusterHome(target.home), delete_data=delete_data, progress=timer.progress)
    output.result({"stopped": True, "home": str(target.home), "data_deleted": delete_data})
    output.done(f"down in {timer.seconds:.1f} s")


def status(
    home: Home = None,
    namespace: Namespace = None,
    wait: Annotated[float, typer.Option(help="Wait up to so many seconds for a healthy cluster.")] = 0.0,
    ray: Annotated[bool, typer.Option("--ray", help="Join Ray and ask each actor, which takes seconds.")] = False,
    as_json: Json = False,
) -> None:
    """Show what runs. Exit code 0 if all parts are healthy; a bookie that is being decommissioned counts as healthy.

    The metadata store, Ray's dashboard and the gateway's port are asked; where one does not answer, Ray is joined.
    """
    output = Output(as_json)
    target = Target.of(namespace, home)
    kept = ClusterHome(target.home)
    state, secret = kept.load(), kept.secret()
    if state is not None and state.own_process is not None:
        _show_own_process(output, state)
        return
    deadline = time.monotonic() + wait
    with output.timed():
        found = _gather(target, state, secret, ray)
        while not found.is_healthy and time.monotonic() < deadline:
            time.sleep(_WAIT_POLL_SECONDS)
            found = _gather(target, state, secret, ray)
    output.result({"healthy": found.is_healthy, **asdict(found)})
    _show_status(output, found, state.ray_auth_mode if state else "")
    if found.is_healthy:
        output.done("healthy")
    else:
        output.warn("not healthy")
        raise typer.Exit(EXIT_FAILED)


def _show_own_process(output: Output, state: ClusterState) -> None:
    """Show a cluster whose parts are all in one process: they run as long as it does."""
    output.result({"healthy": True, **asdict(state)})
    rows = [
        ("process", state.own_pid),
        ("brokers", state.service_url),
        ("gateway", state.gateway_url),
        ("data", state.data_root),
    ]
    output.facts("all parts are in one process, without Ray", rows)


def _gather(target: Target, state: ClusterState | None, secret: str | None, through_ray: bool) -> ClusterStatus:
    from heliograph.cluster.status.without_ray import gather_without_ray

    found = None
    if not through_ray:
        found = gather_without_ray(target.namespace, state, secret=secret, gateway=target.gateway())
    if found is not None:
        return found
    from heliograph.cluster.status.through_ray import gather

    target.attach()
    return gather(target.namespace, state, secret=secret)


def _show_status(output: Output, found: ClusterStatus, auth_mode: str) -> None:
    output.table(
        f"{found.namespace} in Ray at {found.ray_address}",
        ("actor", "state", "pid", "restarts", "version", "address", "note"),
        [
            (actor.name, actor.state, actor.pid, actor.restarts, actor.version, actor.address, actor.note)
            for actor in found.actors
        ],
    )
    output.progress("")
    rows = [
        ("bookies", f"{len(found.bookies_available)} writable, {len(found.bookies_readonly)} read-only"),
        *(("", note) for note in found.publishing_notes),
        ("under-replicated ledgers", _count(found.underreplicated_ledgers)),
        *([("damaged ledgers", _damaged(found.ledgers_damaged))] if found.ledgers_damaged > 0 else []),
        *([("repair", "paused: helio ledgers resume --repair")] if found.is_repair_paused else []),
        *([("restored metadata", _restored(found.restored_backup_ms))] if found.restored_backup_ms else []),
        *([("ledgers to be moved", _count(found.ledgers_moving))] if found.bookies_draining else []),
        ("topics in public/default", _count(found.topics)),
        *([("operator", found.operator)] if found.operator else []),
        *(("", note) for note in found.operator_notes),
        *(("versions", note) for note in found.version_notes),
        ("gateway", found.gateway_url or "none"),
        ("Ray dashboard", _dashboard(found.dashboard_url, auth_mode)),
    ]
    output.facts("", rows)


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
