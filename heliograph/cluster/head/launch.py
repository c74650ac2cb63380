"""A Ray head on this machine, started as a child process in its own session, with its own ports and files.

It is stopped by the name of that process, never with ``ray stop``, which stops every Ray of the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from heliograph.base.errors import ResourceError
from heliograph.base.home import PRIVATE_FILE, PRIVATE_UMASK, ClusterHome, delete_tree, make_private
from heliograph.base.peer import NODE, is_loopback, is_wildcard
from heliograph.base.processes import ProcessName, end_session, session_members, wait_until
from heliograph.base.system.processes import command_of
from heliograph.base.version import extra_required
from heliograph.client import discovery, ray_release
from heliograph.cluster import ports
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head.clocks import resting_clocks
from heliograph.cluster.head.storage import RayStorage, is_wanted
from heliograph.pipelines.spark.java import java_environment
from heliograph.ray.process import ADDRESS_FILE, LOOPBACK_VARIABLE, PROGRAM

T = TypeVar("T")
POLL_SECONDS = 1.0  # between two looks whether a Ray runs
START_TIMEOUT_SECONDS = 300.0  # on an idle machine it takes 5, on a busy one a minute or two
WORKER_SECONDS = 600  # for a new worker or agent to register; it imports Ray, which takes minutes at a load of 100
DASHBOARD_SECONDS = 120  # the head waits so long for its dashboard, and then goes on without it
USUAL_DASHBOARD_PORT = 8265
LOOPBACK = "127.0.0.1"
# A socket's path holds at most 107 bytes, and Ray adds "/session_<date>_<pid>/sockets/plasma_store" to "/r".
TEMPORARY_PATH_BYTES_MAX = 40
RAY_FILES = "r"  # Ray opens this folder of the temporary directory to all users; the directory above stays closed
_LOG_LINES_SHOWN = 5
_LOG_LINES_READ = 50
_ERROR_LINE = re.compile(r"\[[^]]* [EFC] \d")  # [time level pid tid]

_children: dict[int, subprocess.Popen[bytes]] = {}  # heads that this process started and has to reap
_raylets: dict[ProcessName, ProcessName] = {}  # of leaders whose raylet was alive at the last look

# Of the head, besides Ray's own choice. A raylet waits for 15 s, and then ends, for an agent that chooses its own port.
_FREE_PORTS = (
    "ray-client-server-port",
    "dashboard-agent-listen-port",
    "dashboard-agent-grpc-port",
    "runtime-env-agent-port",
    "metrics-export-port",
)
_LEAN_OPTIONS = ("--include-dashboard=false", "--include-log-monitor=false", "--no-monitor")


@dataclass(frozen=True, slots=True)
class RayHead:
    """A Ray head that this module started."""

    process: ProcessName
    address: str  # of its GCS, the value for RAY_ADDRESS
    dashboard_url: str  # empty: it has none
    temporary_directory: Path
    auth_mode: str


def spawn_ray(config: ClusterConfig, home: ClusterHome) -> RayHead:
    """Start the processes of a Ray head without waiting for them; ``address`` is still empty.

    Where other machines can take part, it goes on from the state that an earlier head left in ``home``.

    Raises:
        ResourceError: Ray is not installed, or a port, a path or Ray's token cannot be used; nothing was started.
    """
    with extra_required():
        version = ray_release.ray_version()
    dashboard_port = _dashboard_port(config)
    auth_mode = (os.environ.get("RAY_AUTH_MODE") or "token") if ray_release.knows_tokens(version) else "disabled"
    if auth_mode == "token":
        _make_token()
    storage = RayStorage.of(home)
    environment = _environment(auth_mode, config) | (
        storage.environment() if is_wanted(config) and ray_release.keeps_state(version) else {}
    )
    port = storage.port or config.ray_port
    if port:
        ports.require_free(port, _node_address(config) or "0.0.0.0", "ray_port")
    temporary = temporary_directory()
    process = spawn(_command(config, temporary, dashboard_port, port), environment, home)
    dashboard_url = "" if config.lean else f"http://127.0.0.1:{dashboard_port}"
    return RayHead(process, "", dashboard_url, temporary, auth_mode)


def spawn(command: Sequence[str], environment: Mapping[str, str], home: ClusterHome) -> ProcessName:
    """Start a process of Ray in a session of its own, with its output in the log of a home."""
    home.ray_log.touch(mode=PRIVATE_FILE)
    home.ray_log.chmod(PRIVATE_FILE)
    with home.ray_log.open("wb") as log:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=home.directory,
            env=environment,
            start_new_session=True,
            umask=PRIVATE_UMASK,
        )
    _children[child.pid] = child
    process = ProcessName.of(child.pid)
    assert process is not None, "a child has a name until it is waited for"
    return process


def wait_for_ray(head: RayHead, home: ClusterHome) -> str:
    """Wait until a spawned head can be joined, and return its address.

    Raises:
        ResourceError: the head did not start; quotes the last lines of its log.
    """
    address_file = head.temporary_directory / RAY_FILES / ADDRESS_FILE  # written when the head can be joined
    raylet: ProcessName | None = None

    def is_over() -> bool:
        nonlocal raylet
        raylet = raylet or raylet_of(head.process)
        return not head.process.is_alive() or (raylet is not None and not raylet.is_alive())

    wait_until(lambda: _has_text(address_file) or is_over(), START_TIMEOUT_SECONDS)
    if raylet is not None and not raylet.is_alive():  # Ray itself says it after half a minute
        raise ResourceError(f"Ray did not start: {end_of_raylet(head.temporary_directory)} (log: {home.ray_log})")
    if not head.process.is_alive():
        raise ResourceError(f"Ray did not start: {last_lines(home.ray_log)} (log: {home.ray_log})")
    if not _has_text(address_file):
        raise ResourceError(
            f"Ray was not ready in {START_TIMEOUT_SECONDS:.0f} s: is the machine overloaded? Its last lines: "
            f"{last_lines(home.ray_log)} (log: {home.ray_log})"
        )
    return address_file.read_text().strip()


def is_running(leader: ProcessName | None) -> bool:
    """Return whether a node of Ray runs.

    Ray's program goes on when all that it started was asked to end, as by ``ray stop``; so its raylet is looked for.

    Args:
        leader: the process that started the node; None: there is none.
    """
    return leader is not None and leader.is_alive() and raylet_of(leader) is not None


def end_of_ray(home: ClusterHome) -> str:
    """Return how the Ray ended that ``helio up`` started from a home; empty if it runs, or another program started it.

    Ray itself tells its drivers after a minute, and ends their processes then.
    """
    state = home.load()
    if state is None or not state.ray_pid or is_running(state.ray_process):
        return ""
    what = end_of_raylet(Path(state.ray_temporary_directory))
    return f"Ray at {state.ray_address} has ended: {what} (log: {home.ray_log})"


def require_ray(home: ClusterHome) -> None:
    """Check that the Ray that ``helio up`` started from a home runs.

    Raises:
        ResourceError: it has ended.
    """
    if ended := end_of_ray(home):
        raise ResourceError(ended)


async def while_ray_runs(work: Coroutine[Any, Any, T], home: ClusterHome) -> T:
    """Return the result of work that needs the Ray of a home.

    Raises:
        ResourceError: Ray has ended; the work is cancelled.
    """
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=POLL_SECONDS)
            require_ray(home)
        return await task
    finally:
        task.cancel()


def end_of_raylet(temporary_directory: Path) -> str:
    """Return the last line of the raylet's log, or the last one that is an error, if its end has any."""
    lines: list[str] = []
    for name in ("raylet.out", "raylet.err"):
        with contextlib.suppress(OSError):
            file = temporary_directory / RAY_FILES / "session_latest" / "logs" / name
            lines += [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines[-_LOG_LINES_READ:] if _ERROR_LINE.match(line)]
    return f"the last line of its raylet is: {(errors or lines or ['none'])[-1]}"


def raylet_of(leader: ProcessName) -> ProcessName | None:
    """Return the raylet that a program of Ray has started; None if it has ended, or has not started yet."""
    found = _raylets.pop(leader, None)
    if found is None or not found.is_alive():
        found = next((each for each in session_members(leader) if command_of(each.pid) == "raylet"), None)
    if found is not None:
        _raylets[leader] = found
    return found


def stop_ray(process: ProcessName, temporary_directory: str, *, keep_logs: Path | None = None) -> None:
    """Stop a Ray head with everything it started, and remove its files.

    Args:
        keep_logs: directory that gets its logs instead, in place of those of an earlier one.

    Raises:
        ResourceError: a process survives SIGKILL.
    """
    if not end_session(process):
        raise ResourceError(f"processes of Ray's session {process.pid} do not end: see `ps -s {process.pid}`")
    if (child := _children.pop(process.pid, None)) is not None:
        child.wait()
    if temporary_directory and keep_logs is not None:
        delete_tree(keep_logs)
        logs = Path(temporary_directory) / RAY_FILES / "session_latest" / "logs"
        if logs.is_dir():
            shutil.copytree(logs, keep_logs, symlinks=True)
            make_private(keep_logs)  # Ray's folders are open to all users, and are copied with their modes
    if temporary_directory:
        delete_tree(Path(temporary_directory))


def _command(config: ClusterConfig, temporary: Path, dashboard_port: int, port: int) -> list[str]:
    chosen: dict[str, int] = {}
    for name in _FREE_PORTS:
        chosen[name] = ports.pick_free(taken={dashboard_port, port, *chosen.values()})
    return [
        *(sys.executable, *PROGRAM, "start", "--head", "--block", "--disable-usage-stats"),
        *(f"--port={port}", "--min-worker-port=0", "--max-worker-port=0"),
        *(_LEAN_OPTIONS if config.lean else ()),  # with --include-dashboard=true, one that fails would end the head
        *(f"--{name}={number}" for name, number in chosen.items()),
        f"--temp-dir={temporary / RAY_FILES}",
        *("--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard_port}"),
        *([f"--node-ip-address={address}"] if (address := _node_address(config)) else []),
        f"--num-cpus={config.ray_cpus}",
        f"--object-store-memory={config.ray_object_store_bytes}",
        f"--labels={config.ray_labels}",
    ]


def _node_address(config: ClusterConfig) -> str | None:
    """Return the address of Ray's node; None leaves it to Ray."""
    if config.ray_on_loopback:
        return LOOPBACK
    if config.node_address or config.host == NODE or is_loopback(config.host) or is_wildcard(config.host):
        return config.node_address
    return config.host


def _environment(auth_mode: str, config: ClusterConfig) -> dict[str, str]:
    environment = node_environment(auth_mode)
    clocks = resting_clocks(is_only_node=is_loopback(config.host) and config.node_address is None, is_lean=config.lean)
    environment = clocks | environment  # a variable of the caller goes before ours
    if config.ray_on_loopback:
        environment[LOOPBACK_VARIABLE] = "0"
    return environment


def node_environment(auth_mode: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    environment["RAY_AUTH_MODE"] = auth_mode
    environment["RAY_USAGE_STATS_ENABLED"] = "0"
    environment["RAY_worker_niceness"] = "0"  # with Ray's default of 15, other programs starve a broker
    environment["RAY_prestart_worker_first_driver"] = "0"  # else one idle Python for each logical CPU at once
    # Ray ends a worker that has not registered in a minute, and starts the next, which is as slow on a busy machine.
    environment.setdefault("RAY_worker_register_timeout_seconds", str(WORKER_SECONDS))
    # A raylet ends, with all that runs on its node, if Ray's agent there has not registered in time.
    environment.setdefault("RAY_agent_register_timeout_ms", str(WORKER_SECONDS * 1_000))
    # Ray's own limit of a minute is too short for a busy machine. The oldest releases have 20 s, and no variable.
    environment.setdefault("RAY_DASHBOARD_STARTUP_TIMEOUT_S", str(DASHBOARD_SECONDS))
    with contextlib.suppress(ResourceError):  # an unsuitable JAVA_HOME concerns Spark alone, which reports it
        environment |= java_environment(environment)
    return environment


def _dashboard_port(config: ClusterConfig) -> int:
    """Return the configured port; a free one for 0, or when another Ray's dashboard has the usual one."""
    port = config.dashboard_port
    if port == 0 or (port == USUAL_DASHBOARD_PORT and not ports.is_free(port)):
        return ports.pick_free()
    ports.require_free(port, "127.0.0.1", "dashboard_port")
    return port


def temporary_directory() -> Path:
    """Make a directory for the files of a Ray node, closed to other users, with a path short enough for its sockets.

    Ray's own folder is ``RAY_FILES`` below it.

    Raises:
        ResourceError: it cannot be made.
    """
    root = tempfile.gettempdir()
    if len(root.encode()) + len("/hg-12345678") > TEMPORARY_PATH_BYTES_MAX:
        root = "/tmp"
    try:
        return Path(tempfile.mkdtemp(prefix="hg-", dir=root))
    except OSError as error:
        raise ResourceError(f"no temporary directory can be made in {root}: {error.strerror}") from error


def _make_token() -> None:
    """Have Ray write its token file if there is none: without it, anyone who reaches a port of Ray can run code."""
    command = [sys.executable, *PROGRAM, "get-auth-token", "--generate"]
    if discovery.has_token():
        return
    result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise ResourceError(f"Ray cannot write its token file: {_last_line(result.stderr)}")


def _has_text(file: Path) -> bool:
    try:
        return bool(file.read_text().strip())
    except FileNotFoundError:
        return False


def last_lines(log: Path) -> str:
    """Return the end of a log of Ray in one line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_LOG_LINES_SHOWN:]) or "it printed nothing"


def _last_line(text: str) -> str:
    return text.strip().rsplit("\n", 1)[-1]
