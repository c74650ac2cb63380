"""A whole cluster on a Ray of its own, with the means to hurt it. Nothing of it outlives ``stop``."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
import ray.exceptions

from heliograph.base.errors import ClusterNotFoundError, ResourceError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.client import discovery
from heliograph.client.admin.admin import AdminSync
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.lifecycle import down, up
from heliograph.metadata.credentials import with_secrets
from heliograph.metadata.operator_records import ClusterReport
from heliograph.report.asking import ask_report
from tests.patience import START_SECONDS

BACK_TIMEOUT_SECONDS = float(START_SECONDS)
CALL_TIMEOUT_SECONDS = 60.0
STARTS_MAX = 3
_POLL_SECONDS = 0.05


@dataclass
class LiveCluster:
    """A running cluster. This process is in its Ray."""

    config: ClusterConfig
    state: ClusterState

    @property
    def namespace(self) -> str:
        return self.config.namespace

    @property
    def home(self) -> Path:
        return self.config.home_directory

    @property
    def metadata_url(self) -> str:
        """The URL of the metadata store, with the cluster's secret."""
        return with_secrets(self.state.metadata_url, ClusterHome(self.home).secret())

    @property
    def admin(self) -> AdminSync:
        return AdminSync(self.namespace)

    def attach(self) -> None:
        """Have this process in this cluster's Ray, whatever another test left it in."""
        if discovery.is_attached() and discovery.ray_addresses()[0] != self.state.ray_address:
            discovery.detach()
        discovery.attach(self.namespace, address=self.state.ray_address)

    def call(self, actor_name: str, method: str, *arguments: Any, timeout: float = CALL_TIMEOUT_SECONDS) -> Any:
        """Call an actor's method and wait for its answer."""
        handle = discovery.actor(actor_name, self.namespace)
        return ray.get(getattr(handle, method).remote(*arguments), timeout=timeout)

    def pid(self, actor_name: str) -> int:
        return int(self.call(actor_name, "pid"))

    def report(self) -> ClusterReport:
        """Return what ``helio status`` shows."""
        return ask_report(self.state, ClusterHome(self.home).secret())

    def sigkill(self, actor_name: str) -> int:
        """End the actor's process as a crash would; the pid that it had."""
        pid = self.pid(actor_name)
        os.kill(pid, signal.SIGKILL)
        return pid

    def wait_back(self, actor_name: str, old_pid: int) -> float:
        """Wait until Ray has the actor in a new process and it has started; the seconds that took."""
        begun = time.monotonic()

        def is_back() -> bool:
            try:
                return self.pid(actor_name) != old_pid and bool(self.call(actor_name, "start"))
            except ray.exceptions.RayError:
                return False

        wait_for(is_back, BACK_TIMEOUT_SECONDS, f"{actor_name} is not back")
        return time.monotonic() - begun

    def end_for_good(self, actor_name: str) -> None:
        """End the actor as by the loss of its machine: no hook runs, and Ray does not bring it back."""
        ray.kill(discovery.actor(actor_name, self.namespace), no_restart=True)

    def stop(self) -> None:
        self.attach()
        down(ClusterHome(self.home), delete_data=True)


def start(home: Path, namespace: str, **settings: Any) -> LiveCluster:
    """Start a cluster whose state is all below ``home``, on free ports, on a Ray of its own."""
    os.environ.pop("RAY_ADDRESS", None)
    defaults: dict[str, Any] = {
        "bookies": 4,
        "brokers": 2,
        "operator": False,  # it would start what tests end
        "broker_port": 0,
        "gateway_port": 0,
        "dashboard_port": 0,
        "start_timeout_ms": START_SECONDS * 1_000,
        "lost_bookie_delay_ms": 5_000,
        "open_ledger_grace_ms": 2_000,
        "audit_interval_ms": 5_000,
        "ray_object_store_bytes": 100 << 20,
    }
    config = ClusterConfig(home=home, namespace=namespace, **{**defaults, **settings})
    return LiveCluster(config, _up(config))


def _up(config: ClusterConfig) -> ClusterState:
    """Ray has limits of its own for its start, which a machine that is busy enough exceeds: then once more."""
    for _ in range(STARTS_MAX - 1):
        try:
            return up(config)
        except (ClusterNotFoundError, ResourceError):
            home = ClusterHome(config.home_directory)
            if home.load() is not None:
                down(home, delete_data=True)
    return up(config)


def wait_for(condition: Callable[[], bool], timeout: float, otherwise: str) -> None:
    """Poll until the condition holds.

    Raises:
        AssertionError: it does not, in time.
    """
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, f"{otherwise} after {timeout} s"
        time.sleep(_POLL_SECONDS)
