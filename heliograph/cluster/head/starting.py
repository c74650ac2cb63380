"""The start of a Ray head for ``helio up``, noted before a signal can end it, and the end of one that failed."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from itertools import count

from heliograph.base.errors import ResourceError
from heliograph.base.home import ClusterHome, ClusterState, require_writable
from heliograph.base.processes import signals_held
from heliograph.base.system.processes import boot_id
from heliograph.cluster import ports
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch
from heliograph.cluster.head.release import guarded
from heliograph.cluster.head.storage import RayStorage, is_wanted

RAY_STARTS_MAX = 3
LATE_STARTS_MAX = 10  # of those that a busy machine ended
_LATE_AGENT = "Timed out waiting for file"  # Ray's words, in the raylet's log
Progress = Callable[[str], None]


def start_ray(config: ClusterConfig, home: ClusterHome, progress: Progress) -> ClusterState:
    """Start a Ray head on this machine and wait until it can be joined; one that fails is tried again.

    If this ends by an exception, a head may run that ``home`` has noted: ``stop_failed`` stops it.

    Raises:
        ResourceError: a port or a path cannot be used, or the head failed each time.
        UnsupportedError: strangers could use this release of Ray. Nothing was started.
    """
    require_writable(config.data_root, "data_directory")
    for setting, port in config.fixed_ports.items():
        ports.require_free(port, config.fixed_host, setting)
    storage = RayStorage.of(home)
    if storage.is_served and not is_wanted(config):
        storage.delete()
    progress("starting Ray on this machine")
    before = home.load()
    for attempt in count(1):
        try:
            state = _start_head(config, home)
            break
        except ResourceError as error:
            stop_failed(home, before)
            if is_last_start(attempt, error):
                if not storage.is_served:
                    raise
                raise ResourceError(
                    f"{error}; if a machine that has time fails, too, the state in {storage.directory} may be damaged: "
                    "delete it, and the nodes of other machines have to join again"
                ) from error
            progress(f"{error}; starting it again")  # Ray gives up its own start after 30 s, also on a busy machine
    dashboard = f"its dashboard at {state.dashboard_url}" if state.dashboard_url else "without a dashboard"
    progress(f"Ray runs at {state.ray_address}, {dashboard}")
    return state


def is_last_start(attempt: int, error: ResourceError) -> bool:
    """Return whether a Ray node whose start failed so often, at last by this error, is not started again.

    A raylet waits 15 s for a port of its agent and then ends, and no option or variable of Ray 2.60 changes that:
    ``ray start`` does not give it the port. An agent that imports for longer may have less to do the next time.
    """
    return attempt >= (LATE_STARTS_MAX if _LATE_AGENT in str(error) else RAY_STARTS_MAX)


def _start_head(config: ClusterConfig, home: ClusterHome) -> ClusterState:
    config = guarded(config)
    with signals_held():
        head = launch.spawn_ray(config, home)
        state = ClusterState(
            namespace=config.namespace,
            ray_address="",
            ray_auth_mode=head.auth_mode,
            dashboard_url=head.dashboard_url,
            data_root=str(config.data_root),
            ray_pid=head.process.pid,
            ray_start_ticks=head.process.start_ticks,
            ray_temporary_directory=str(head.temporary_directory),
            boot_id=boot_id(),
            ray_on_loopback=config.ray_on_loopback,
        )
        home.save(state)  # from here on `down` can stop it, even if this process ends
    threading.Thread(target=_import_ahead, daemon=True).start()
    state = replace(state, ray_address=launch.wait_for_ray(head, home))
    if is_wanted(config):
        RayStorage.of(home).keep_port(int(state.ray_address.rpartition(":")[2]))
    home.save(state)
    return state


def _import_ahead() -> None:
    """Import what creates the parts, which takes a second or two, and so does Ray to start."""
    with contextlib.suppress(Exception):  # who needs it imports it, and hears of it
        import_module("heliograph.cluster.deployment")


def stop_failed(home: ClusterHome, before: ClusterState | None, *, keep_logs: bool = True) -> bool:
    """Stop the Ray that ``home`` has noted, whose start, or whose cluster's start, failed. Return whether there is one.

    Args:
        before: what it had noted before that start: a cluster that this start has not begun, and leaves alone.
        keep_logs: put its logs into the cluster's home.
    """
    if (state := home.load()) is None or state == before:
        return False
    if (process := state.ray_process) is not None:
        launch.stop_ray(process, state.ray_temporary_directory, keep_logs=home.failed_start if keep_logs else None)
    storage = RayStorage.of(home)
    home.forget(keep_secret=storage.is_served)  # parts on other machines go on with it
    if not storage.is_served:
        storage.delete()
    return True
