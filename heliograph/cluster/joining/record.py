"""The record of a machine as a node of a cluster: ``<home>/node.json``.

Bookies are pinned to the address of their node. So a machine that joins again, after a reboot or a stop, takes the same
address and labels from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from heliograph.base.errors import ResourceError
from heliograph.base.home import ClusterHome, replace_private
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id
from heliograph.cluster.head import launch

FILE = "node.json"


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One machine as a node of a cluster.

    Attributes:
        namespace: Ray namespace of the cluster.
        head: ``host:port`` where nodes join it.
        address: Of this node.
        labels: Of this node, by name.
        ray_port: First of the ports of Ray on this machine; 0: free ones.
        auth_mode: How Ray's nodes know each other, ``token`` or ``disabled``.
        pid, start_ticks: The process of its Ray node; both are 0 when it was stopped.
        temporary_directory: Directory of that process's files.
        boot: The boot of the machine within which ``pid`` is valid.
    """

    namespace: str
    head: str
    address: str
    labels: Mapping[str, str] = field(default_factory=dict)
    ray_port: int = 0
    auth_mode: str = "token"
    pid: int = 0
    start_ticks: int = 0
    temporary_directory: str = ""
    boot: str = ""

    @property
    def process(self) -> ProcessName | None:
        """The Ray node that was started, whether it still runs or not; None if there is none since the last boot."""
        return ProcessName(self.pid, self.start_ticks) if self.pid and self.boot == boot_id() else None

    @property
    def is_running(self) -> bool:
        return launch.is_running(self.process)

    @property
    def has_started(self) -> bool:
        """Whether the program runs that starts the Ray node, and stays with it."""
        return (process := self.process) is not None and process.is_alive()

    @property
    def identity(self) -> tuple[Any, ...]:
        return self.namespace, self.head, self.address, dict(self.labels)

    def __str__(self) -> str:
        return f"{self.address} with {', '.join(f'{key}={value}' for key, value in self.labels.items())}"


def load_record(home: ClusterHome) -> NodeRecord | None:
    """Return the record in a home; None if this machine never joined.

    Raises:
        ResourceError: the file cannot be read.
    """
    path = home.directory / FILE
    try:
        return NodeRecord(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ResourceError(f"{path} cannot be read ({error}): delete it, and join with the labels again") from error


def save_record(home: ClusterHome, record: NodeRecord) -> None:
    replace_private(home.directory / FILE, (json.dumps(asdict(record), indent=2) + "\n").encode())


def forget_record(home: ClusterHome) -> None:
    """Forget the node: it has left for good."""
    (home.directory / FILE).unlink(missing_ok=True)
