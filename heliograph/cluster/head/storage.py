"""Ray's state on the disk of the head: a head that is started again leads the same cluster.

Ray's nodes and detached actors are in the memory of its GCS, the process that the head runs. Where other machines can
take part, the GCS of a head that ``helio up`` starts writes them to RocksDB. A new head that finds them there, at the
address and port of the old one, is joined again by the nodes that are left; what runs on these goes on meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heliograph.base.home import ClusterHome, delete_tree, replace_private, require_writable
from heliograph.base.peer import is_loopback
from heliograph.base.version import heliograph_version
from heliograph.cluster.config import ClusterConfig

DIRECTORY = "ray-state"  # in the home of the cluster
# How long a node and its actors wait for a head that does not answer before Ray ends them; Ray's default is 60 s.
RECONNECT_VARIABLE = "RAY_gcs_rpc_server_reconnect_timeout_s"
RECONNECT_SECONDS = 600


@dataclass(frozen=True, slots=True)
class RayStorage:
    """The state of one Ray cluster, with the port of its GCS and what its actors were made from."""

    directory: Path

    @classmethod
    def of(cls, home: ClusterHome) -> RayStorage:
        return cls(home.directory / DIRECTORY)

    @property
    def port(self) -> int:
        """The port of the GCS; 0 before the first head with this storage could be joined."""
        port = self._record().get("port")
        return port if isinstance(port, int) and 0 < port < 1 << 16 else 0

    @property
    def is_served(self) -> bool:
        """Whether a cluster was started with this state, so that parts of it may still run on other machines."""
        return "origin" in self._record()

    def environment(self) -> dict[str, str]:
        """Make the directory, and return the environment of a head that has its state here.

        Raises:
            ResourceError: the directory cannot be written.
        """
        require_writable(self.directory, "home")
        return {
            "RAY_gcs_storage": "rocksdb",
            "RAY_gcs_storage_path": str(self.directory / "gcs"),
            RECONNECT_VARIABLE: str(RECONNECT_SECONDS),
        }

    def keep_port(self, port: int) -> None:
        self._replace({**self._record(), "port": port})

    def keep_origin(self, settings: Mapping[str, Any], *, by_one_start: bool) -> None:
        """Record what the actors were made from: settings and release; those of several starts, from several."""
        is_one = by_one_start or self.has_origin(settings)
        self._replace({**self._record(), "origin": _origin(settings) if is_one else None})

    def has_origin(self, settings: Mapping[str, Any]) -> bool:
        return self._record().get("origin") == _origin(settings)

    def delete(self) -> None:
        """Delete the state: the next head begins a new Ray cluster."""
        delete_tree(self.directory)

    def _replace(self, record: Mapping[str, Any]) -> None:
        replace_private(self.directory / "record.json", (json.dumps(record, indent=2) + "\n").encode())

    def _record(self) -> dict[str, Any]:
        """Return the record; an empty one if it cannot be read, as after a loss of the disk."""
        try:
            found = json.loads((self.directory / "record.json").read_text())
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def is_wanted(config: ClusterConfig) -> bool:
    """Return whether other machines can take part. If they cannot, the whole cluster ends with the head."""
    return not is_loopback(config.host)


def _origin(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"release": heliograph_version(), "settings": json.loads(json.dumps(dict(settings)))}
