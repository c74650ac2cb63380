"""The cluster of the demonstration: a new one, which is removed at the end unless it is to be kept."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import ray

from heliograph.base.home import DEFAULT_NAMESPACE, ClusterHome, default_state_root
from heliograph.client import discovery
from heliograph.cluster import labels, ports
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.head.starting import Progress
from heliograph.cluster.lifecycle import down, up

BOOKIES = 3
BROKERS = 2
EXIT_SIGNALLED = 128  # plus the signal's number


@dataclass(frozen=True, slots=True)
class DemoCluster:
    """The addresses and the home of the cluster."""

    namespace: str
    home: Path
    gateway_url: str
    dashboard_url: str
    ray_address: str
    joined: bool  # the Ray cluster ran before

    @property
    def stop_command(self) -> str:
        """Return the command that stops a cluster that was kept."""
        if self.home == default_state_root() / DEFAULT_NAMESPACE:
            return "make down"
        return f"helio down --home {self.home}"


@contextlib.contextmanager
def demo_cluster(progress: Progress, *, keep: bool) -> Iterator[DemoCluster]:
    """Run three bookies, two brokers, an auditor and a gateway, in a new Ray cluster or the one of RAY_ADDRESS.

    Args:
        keep: leave the cluster running, on the default ports and in the default home where these are free.

    Raises:
        ResourceError, ClusterNotFoundError: the cluster cannot be started; nothing is left of it.
    """
    joined = bool(os.environ.get("RAY_ADDRESS"))
    home, config = _place(keep, joined)
    try:
        if joined:
            config = _without_labels_on_one_node(config, progress)
        state = up(config, _restoring_signal_handlers(progress))
        end_by_exception()
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
            progress(f"the cluster keeps running for inspection: its state is in {home}")
        raise
    finally:
        if not keep:
            _remove(home)


def _restoring_signal_handlers(progress: Progress) -> Progress:
    """Return ``progress`` that also sets our signal handlers again: one of the steps joins Ray, which replaces them."""

    def step(text: str) -> None:
        end_by_exception()
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


def _without_labels_on_one_node(config: ClusterConfig, progress: Progress) -> ClusterConfig:
    """Do not require labels of a Ray cluster that has one node and none of our labels."""
    discovery.attach(config.namespace)
    nodes = [node["Labels"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
    if len(nodes) > 1 or any(label in node for node in nodes for label in (labels.BOOKIE, labels.BROKER)):
        return config
    progress("the only Ray node has no heliograph.io/ labels: everything is placed on it without labels")
    return config.model_copy(update={"require_labels": False})


def _remove(home: Path) -> None:
    if ClusterHome(home).load() is not None:
        down(ClusterHome(home), delete_data=True)
    discovery.detach()
    shutil.rmtree(home, ignore_errors=True)


def end_by_exception() -> None:
    """Make SIGTERM and SIGHUP end this process by an exception, so that the cluster that it started is stopped.

    Joining Ray installs Ray's own handlers, which abort the process: call this again afterwards.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)


def _end(number: int, _: object) -> None:
    sys.exit(EXIT_SIGNALLED + number)
