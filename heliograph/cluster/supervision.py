"""Supervision of the Ray node that ``helio up`` or ``helio join`` started: where it has ended, it is started again."""

from __future__ import annotations

import threading

from heliograph.base.backoff import Backoff
from heliograph.base.errors import ConflictError, HeliographError, UnsupportedError
from heliograph.base.home import ClusterHome
from heliograph.client import discovery
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head import launch
from heliograph.cluster.head.starting import Progress
from heliograph.cluster.joining.join import JoinWishes, join
from heliograph.cluster.joining.record import load_record
from heliograph.cluster.lifecycle import up

POLL_SECONDS = 1.0
FIRST_PAUSE_MS = 1_000  # between two starts that fail
PAUSE_MS_MAX = 60_000


def supervise(config: ClusterConfig, progress: Progress, stopped: threading.Event) -> None:
    """Start the head again whenever it has ended, until the cluster is stopped or ``stopped`` is set.

    This process leaves Ray, which would end it together with the head.

    Raises:
        UnsupportedError: ``helio up`` did not start this Ray, so it cannot start it again.
    """
    home = ClusterHome(config.home_directory)
    discovery.detach()
    if (state := home.load()) is not None and not state.ray_pid:
        raise UnsupportedError(
            f"the Ray at {state.ray_address} was started by another program, which has to watch it: leave --watch away"
        )
    while not stopped.wait(POLL_SECONDS):
        if (state := home.load()) is None:
            return
        if not launch.is_running(state.ray_process):
            progress("Ray's head has ended; starting it again")
            _start_again(config, progress, stopped)


def _start_again(config: ClusterConfig, progress: Progress, stopped: threading.Event) -> None:
    pauses = Backoff(FIRST_PAUSE_MS, PAUSE_MS_MAX)
    while not stopped.is_set():
        try:
            up(config, progress)
            return
        except ConflictError:
            return  # `helio down` may be at it
        except HeliographError as error:
            progress(f"{error}; the next attempt follows")
            stopped.wait(pauses.pause())
        finally:
            discovery.detach()


def supervise_node(namespace: str, home: ClusterHome, progress: Progress, stopped: threading.Event) -> None:
    """Have this machine join again whenever its node has ended, until it is stopped on request or ``stopped`` is set.

    This process leaves Ray, which would end it together with the node.
    """
    discovery.detach()
    pauses = Backoff(FIRST_PAUSE_MS, PAUSE_MS_MAX)
    while not stopped.wait(POLL_SECONDS):
        known = load_record(home)
        if known is None or known.pid == 0:
            return
        if known.is_running:
            continue
        progress("the Ray node of this machine has ended; joining again")
        try:
            join(JoinWishes(), namespace, home, 0.0, progress)
            pauses = Backoff(FIRST_PAUSE_MS, PAUSE_MS_MAX)
        except HeliographError as error:  # the head may be away, or `helio down` at it
            progress(f"{error}; the next attempt follows")
            stopped.wait(pauses.pause())
        finally:
            discovery.detach()
