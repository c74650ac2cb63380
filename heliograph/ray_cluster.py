"""``heliograph.start``: a cluster in the Ray that this process has joined, whether one node or many."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from heliograph.base.clock import as_numbers
from heliograph.base.errors import ClusterNotFoundError, HeliographError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.version import extra_required
from heliograph.client import discovery, ray_release

if TYPE_CHECKING:
    from heliograph.client.sync.client import Client

T = TypeVar("T")
log = logging.getLogger(__name__)

# Settings of a new cluster on one node: one disk needs no second copy, and clients ask Ray for the ports.
ON_ONE_NODE = {
    "bookies": 1,
    "brokers": 1,
    "ensemble_size": 1,
    "write_quorum": 1,
    "ack_quorum": 1,
    "broker_port": 0,
    "gateway_port": 0,
}


HEAD_RESOURCE = "node:__internal_head__"  # Ray gives it to the head's node alone
HEAD_SHARE = 0.001


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A cluster in the Ray of this process. It lasts as long as that Ray, or until ``stop``.

    Attributes:
        service_url: ``pulsar://host:port`` of all brokers.
        http_url: ``http://host:port`` of the gateway; empty if there is none.
        namespace: Ray namespace of its actors.
        home: directory in which the machine that started it records it: this one, or the head's with Ray Client.
    """

    service_url: str
    http_url: str
    namespace: str
    home: Path

    def connect(self, **options: Any) -> Client:
        """Return a client; ``options`` are those of ``heliograph.connect``."""
        from heliograph.client.access import connect

        return connect(namespace=self.namespace, **options)

    def stop(self, *, delete_data: bool = False) -> None:
        """Stop all parts. Data stays unless ``delete_data`` is set; Ray stays.

        Raises:
            ClusterNotFoundError: it was stopped before.
        """
        _outside_of_a_loop(lambda: _on_a_node(_stop, self.home, delete_data))


def start(**settings: Any) -> RayCluster:
    """Start a cluster in the Ray that this process has joined, or that RAY_ADDRESS names; what runs stays as it is.

    Afterwards ``heliograph.connect()`` finds it in every task, actor and job of that Ray. A Ray of one node needs no
    labels; in one of several, nodes are labelled as for ``helio up``. A process that uses Ray Client (``ray://``) is on
    no node: there, the head's node does all this, with its own files and environment variables.

    Args:
        settings: fields of ``heliograph.cluster.config.ClusterConfig``, such as ``namespace``, ``home``, ``bookies``
            and ``data_directory``; a timedelta where they are seconds or ms. Where neither they nor an earlier start
            say otherwise, a Ray of one node gets one bookie, one broker and free ports.

    Raises:
        ClusterNotFoundError: this process has joined no Ray, and RAY_ADDRESS names none.
        UnsupportedError: this release of Ray is too old.
        ResourceError: a port, path, label or part is not available; names it. Or a package of the extra ``cluster`` is
            not installed.
        InvalidConfigError: a setting is unknown or out of range; names it.
        ConflictError: another process is starting or stopping the same cluster.
    """
    with extra_required():
        import ray  # noqa: F401
    if not discovery.is_attached() and not os.environ.get("RAY_ADDRESS"):
        raise ClusterNotFoundError("this process has joined no Ray: call ray.init() first")
    return _outside_of_a_loop(lambda: _on_a_node(_start, as_numbers(settings)))


def _start(settings: dict[str, Any]) -> RayCluster:
    with extra_required():
        from heliograph.cluster.config import ClusterConfig
        from heliograph.cluster.diagnosis import living_nodes
        from heliograph.cluster.lifecycle import up
        from heliograph.cluster.settings.location import FILE_NAME, ClusterLocation

    named = {name: settings[name] for name in ("namespace", "home") if settings.get(name) is not None}
    location = ClusterLocation(**named)
    discovery.attach(location.namespace, home=location.home_directory)
    if told := ray_release.untested(ray_release.ray_version()):
        log.warning("%s", told)
    has_file = settings.get("config_file") is not None or (location.home_directory / FILE_NAME).exists()
    if len(living_nodes()) == 1 and not has_file:  # the first start writes the file
        settings = {**ON_ONE_NODE, **settings}
    config = ClusterConfig(**settings)
    state: ClusterState = up(config)
    return RayCluster(state.service_url, state.gateway_url, state.namespace, config.home_directory)


def _stop(home: Path, delete_data: bool) -> None:
    from heliograph.cluster.lifecycle import down

    down(ClusterHome(home), delete_data=delete_data)


def _on_a_node(work: Callable[..., T], *arguments: Any) -> T:
    """Run work in this process; as a task on the head's node, if this process uses Ray Client."""
    if os.environ.get("RAY_ADDRESS", "").startswith("ray://"):
        discovery.attach()
    if not (discovery.is_attached() and ray_release.is_ray_client()):
        return work(*arguments)
    import ray
    import ray.exceptions

    task = ray.remote(work).options(num_cpus=0, max_retries=0, resources={HEAD_RESOURCE: HEAD_SHARE})
    try:
        done: T = ray.get(task.remote(*arguments))
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, HeliographError):
            raise error.cause from error
        raise
    return done


def _outside_of_a_loop(work: Callable[[], T]) -> T:
    """Run blocking work that runs event loops of its own, on another thread if the caller's thread runs one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(work).result()
