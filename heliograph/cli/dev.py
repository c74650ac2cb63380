"""``helio dev``: a whole cluster in the foreground, in this process."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from heliograph.base.errors import InvalidConfigError, ResourceError
from heliograph.base.home import LOGS
from heliograph.base.version import require_posix
from heliograph.cli.options import Home, Json, Namespace, given
from heliograph.cli.output import EXIT_FAILED, Output

if TYPE_CHECKING:
    from heliograph.standalone.local import LocalCluster

_SHARED = ("home", "namespace", "max_message_bytes")  # settings of `helio up` that this reads from the environment
_OPTIONS = ("bookies", "host", "insecure")  # and those that it has as options
PORT = 6650
HTTP_PORT = 8080
LOG = "dev"  # of all parts
# The journal's thread needs the interpreter lock after each sync. With the default switch interval of 5 ms a busy event
# loop would add up to 5 ms to every acknowledgement.
SWITCH_INTERVAL_SECONDS = 0.0005


def dev(
    bookies: Annotated[int, typer.Option(help="Storage nodes, all in this process.", min=1, max=99)] = 1,
    port: Annotated[int, typer.Option(help="Port for Pulsar clients, 0: a free one.", min=0, max=65_535)] = PORT,
    http_port: Annotated[
        int, typer.Option("--http-port", help="Port for HTTP and WebSocket, 0: a free one.", min=0, max=65_535)
    ] = HTTP_PORT,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    secure: Annotated[bool, typer.Option("--secure", help="Callers need tokens; TLS and nothing else.")] = False,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Allow unauthenticated access from other machines.")
    ] = False,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-origin", help="Origin of pages that may use the gateway, http://localhost:3000; repeatable."
        ),
    ] = None,
    temporary: Annotated[bool, typer.Option("--temporary", help="Store in a directory that the end deletes.")] = False,
    home: Home = None,
    namespace: Namespace = None,
    as_json: Json = False,
) -> None:
    """Run a cluster in this process, without Ray, until Ctrl-C. Messages stay on disk for the next start."""
    require_posix()
    from heliograph.cluster.settings.location import ClusterLocation
    from heliograph.standalone.config import StandaloneConfig
    from heliograph.standalone.local import LocalCluster

    output = Output(as_json)
    location = ClusterLocation(**given(namespace=namespace, home=home))
    settings = _from_environment()
    logs = settings.pop("logs", {})
    if not temporary:
        _refuse_file(location.home_directory)
    if allow_origin:
        settings["gateway"] = {**settings.get("gateway", {}), "allowed_origins": tuple(allow_origin)}
    config = StandaloneConfig(
        bookies=bookies,
        port=port,
        http_port=http_port,
        host=host,
        insecure=insecure,
        secure=secure,
        **settings,
    )
    asked = threading.Event()
    _end_by_signals(asked)
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    try:
        directory = None if temporary else location.home_directory
        cluster = LocalCluster(config, directory, location.namespace, on_directory=lambda path: _log_to(path, logs))
    except ResourceError as error:
        raise _with_option(error) from error
    with cluster:
        _show(cluster, output, given(home=cluster.directory if temporary else home, namespace=namespace))
        if not allow_origin:
            output.progress("To let pages of a development server use the gateway, start it as:")
            output.progress("  helio dev --allow-origin http://localhost:3000")
        while not (asked.wait(0.5) or cluster.ended.is_set()):
            pass
        failure = cluster.failure
    if failure is not None:
        output.progress(f"stopped: {failure}")
        raise typer.Exit(EXIT_FAILED)
    output.progress("stopped")


def _refuse_file(home: Path) -> None:
    """Refuse a configuration file in the home: ``helio dev`` does not read it.

    Raises:
        InvalidConfigError: it has a setting; names it, and the nearest name if it is mistyped.
    """
    from heliograph.cluster.settings.location import FILE_NAME

    if not (file := home / FILE_NAME).exists():
        return
    from heliograph.base.section import unknown_setting
    from heliograph.cluster.config import ClusterConfig  # half a second, for the names of all settings
    from heliograph.cluster.settings.file import SettingsFile

    names = SettingsFile(file).values()
    known = ClusterConfig.known_settings()
    for name in names:
        if name.partition(".")[0] not in known:
            raise unknown_setting(name, known)
    for name in names:
        raise InvalidConfigError(
            f"`helio dev` does not use {name} of {file}, which `helio up` reads: give another --home, or --temporary",
            field=name,
        )


def _log_to(home: Path, settings: Mapping[str, Any]) -> None:
    """Write what this process logs to a file that ``helio logs`` reads."""
    from heliograph.base.section import from_mapping
    from heliograph.cluster.logs.config import LogsConfig
    from heliograph.cluster.logs.setup import start_log

    start_log(LOG, from_mapping(LogsConfig, {"directory": home / LOGS, **settings}, "logs."))


def _from_environment() -> dict[str, Any]:
    """Return the settings of the cluster and of its parts that the environment has, by the names of ``helio up``.

    Raises:
        InvalidConfigError: a value has the wrong type, or is below a setting that has a value; or a variable is
            mistyped, or a setting that only ``helio up`` has.
    """
    from heliograph.base.section import from_environment, value_of
    from heliograph.cluster.settings.environment import OTHERS, check_environment
    from heliograph.cluster.settings.location import PREFIX

    ours = [name for name in os.environ if name.startswith(PREFIX) and "__" not in name and name not in OTHERS]
    if others := [name for name in ours if name.removeprefix(PREFIX).lower() not in _SHARED]:
        from heliograph.cluster.config import ClusterConfig  # half a second, for the names of all settings

        known = ClusterConfig.known_settings()
        check_environment(os.environ, known)
        for variable in others:
            if (name := variable.removeprefix(PREFIX).lower()) in known:
                way = f"give --{name.replace('_', '-')}" if name in _OPTIONS else "`helio up` has it"
                raise InvalidConfigError(f"`helio dev` does not use {variable}: unset it; {way}", field=variable)
    settings: dict[str, Any] = from_environment(os.environ, PREFIX, ("bookie", "broker", "gateway", "logs"))
    if text := os.environ.get(variable := PREFIX + "MAX_MESSAGE_BYTES"):
        settings["max_message_bytes"] = value_of(int, text, variable)
    return settings


def _end_by_signals(asked: threading.Event) -> None:
    """Let Ctrl-C and SIGTERM ask for the end; a second Ctrl-C ends the process at once."""

    def ask(_: int, __: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)


def _with_option(error: ResourceError) -> ResourceError:
    """Return the error about a port with the option that chooses another one."""
    option = {"port": "--port", "http_port": "--http-port"}.get(error.field or "")
    if option is None:
        return error
    reason = str(error).partition(": ")[0]
    return ResourceError(f"{reason}: stop its server, or give {option} another one, 0 for any", field=error.field)


def _show(cluster: LocalCluster, output: Output, options: dict[str, Any]) -> None:
    output.result(
        {"service_url": cluster.service_url, "http_url": cluster.http_url, "directory": str(cluster.directory)}
    )
    rows = [
        ("Pulsar clients", cluster.service_url),
        ("HTTP, WebSocket", cluster.http_url),
        ("API docs", f"{cluster.http_url}/docs"),
        ("data", str(cluster.directory)),
    ]
    output.facts("", rows)
    option = "".join(f" --{name} {value}" for name, value in options.items())
    output.progress("It runs until Ctrl-C. Next, in another terminal:")
    output.progress(f"  echo hello | helio produce greetings{option}")
    output.progress(f"  helio consume greetings --from earliest -n 1{option}")
