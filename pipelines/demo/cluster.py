"""The cluster of the demonstration: a fresh one of its own, which leaves nothing behind unless it is to be kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ray

from heliograph import discovery
from heliograph.cluster import labels, ports
from heliograph.cluster.home import ClusterHome
from heliograph.cluster.lifecycle import Progress, down, up
from heliograph.config import DEFAULT_NAMESPACE, ClusterConfig, default_state_root
from pipelines.demo.signals import end_in_order

BOOKIES = 3
BROKERS = 2


@dataclass(frozen=True, slots=True)
class DemoCluster:
    """Where it is."""

    namespace: str
    home: Path
    gateway_url: str
    dashboard_url: str
    ray_address: str
    joined: bool  # the Ray is somebody else's

    @property
    def stop_command(self) -> str:
        """What ends a cluster that was kept."""
        if self.home == default_state_root() / DEFAULT_NAMESPACE:
            return "make down"
        return f"helio down --home {self.home}"


@contextlib.contextmanager
def demo_cluster(progress: Progress, *, keep: bool) -> Iterator[DemoCluster]:
    """Three bookies, two brokers, an auditor and a gateway, in a Ray of their own or the one of RAY_ADDRESS.

    Args:
        keep: leave it up, on the usual ports and in the usual place where these are free.

    Raises:
        ResourceError, ClusterNotFoundError: it cannot be started; nothing is left of it.
    """
    joined = bool(os.environ.get("RAY_ADDRESS"))
    home, config = _place(keep, joined)
    try:
        if joined:
            config = _fit_labels(config, progress)
        state = up(config, _heeding_signals(progress))
        end_in_order()
        yield DemoCluster(
            namespace=config.namespace,
            home=home,
            gateway_url=state.gateway_url,
            dashboard_url=state.dashboard_url,
            ray_address=state.ray_address,
            joined=joined,
        )
    except BaseException:
        if keep and ClusterHome(home).load() is not None:
            progress(f"the cluster is left up for a look: its state is in {home}")
        raise
    finally:
        if not keep:
            _remove(home)


def _heeding_signals(progress: Progress) -> Progress:
    """``progress``, and our signal handlers put back after each step: one of them joins Ray, which replaces them."""

    def step(text: str) -> None:
        end_in_order()
        progress(text)

    return step


def _place(keep: bool, joined: bool) -> tuple[Path, ClusterConfig]:
    usual = default_state_root() / DEFAULT_NAMESPACE
    if keep and not joined and not (usual / "data").exists() and ClusterHome(usual).load() is None:
        defaults = {name: ClusterConfig.model_fields[name].default for name in ("broker_port", "gateway_port")}
        chosen = {name: port if ports.is_free(port) else 0 for name, port in defaults.items()}
        return usual, ClusterConfig(home=usual, bookies=BOOKIES, brokers=BROKERS, **chosen)
    home = Path(tempfile.mkdtemp(prefix="heliograph-demo-"))
    namespace = home.name if joined else DEFAULT_NAMESPACE
    config = ClusterConfig(
        namespace=namespace,
        home=home,
        data_directory=home / "data",
        bookies=BOOKIES,
        brokers=BROKERS,
        broker_port=0,
        gateway_port=0,
        dashboard_port=0,
    )
    return home, config


def _fit_labels(config: ClusterConfig, progress: Progress) -> ClusterConfig:
    """A Ray that nobody labelled for us is used as it is, which is safe while it has one node."""
    discovery.attach(config.namespace)
    nodes = [node["Labels"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    if len(nodes) > 1 or any(label in node for node in nodes for label in (labels.BOOKIE, labels.BROKER)):
        return config
    progress("this Ray's one node has no heliograph.io/ labels: everything is placed on it without")
    return config.model_copy(update={"require_labels": False})


def _remove(home: Path) -> None:
    if ClusterHome(home).load() is not None:
        down(ClusterHome(home), delete_data=True)
    discovery.detach()
    shutil.rmtree(home, ignore_errors=True)
