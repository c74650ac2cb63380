"""What this machine remembers of a cluster started from it: one small file, and a lock for starting and stopping.

``<home>/cluster.json`` is replaced as a whole, so that a reader sees an old or a new state and never half of one.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from heliograph.cluster.processes import ProcessName
from heliograph.errors import ConflictError, ResourceError

STATE_VERSION = 1


@dataclass(frozen=True, slots=True)
class ClusterState:
    """Enough to find a cluster again and to stop what was started for it.

    ``ray_pid`` and ``ray_start_ticks`` name the Ray head that we started; both are 0 when a running Ray was joined,
    which is then not ours to stop.
    """

    namespace: str
    ray_address: str
    ray_auth_mode: str
    dashboard_url: str = ""
    metadata_url: str = ""
    service_url: str = ""  # of all brokers, as clients take it
    gateway_url: str = ""
    data_root: str = ""
    ray_pid: int = 0
    ray_start_ticks: int = 0
    ray_temporary_directory: str = ""
    boot_id: str = ""
    version: int = STATE_VERSION

    @property
    def ray_process(self) -> ProcessName | None:
        """The Ray head that we started, unless the machine was booted since."""
        if self.ray_pid == 0 or self.boot_id != boot_id():
            return None
        return ProcessName(self.ray_pid, self.ray_start_ticks)


def boot_id() -> str:
    """Names this boot of the machine: pids and start times mean nothing beyond it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class ClusterHome:
    """The directory of one cluster on this machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._file = directory / "cluster.json"

    @property
    def ray_log(self) -> Path:
        """What the Ray head printed."""
        return self.directory / "ray.log"

    def prepare(self) -> None:
        """Make the directory.

        Raises:
            ResourceError: it cannot be made or written.
        """
        require_writable(self.directory, "home")

    def load(self) -> ClusterState | None:
        """What is remembered, or None.

        Raises:
            ResourceError: the file is unreadable, or was written by another version.
        """
        try:
            fields: dict[str, Any] = json.loads(self._file.read_text())
            if fields.get("version") != STATE_VERSION:
                raise ResourceError(
                    f"{self._file} was written by another version of helio: stop that cluster with the version that "
                    "started it, or delete the file"
                )
            return ClusterState(**fields)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise ResourceError(f"{self._file} cannot be read ({error}): delete it if no cluster runs") from error

    def save(self, state: ClusterState) -> None:
        """Remember ``state``."""
        temporary = self._file.with_suffix(".new")
        temporary.write_text(json.dumps(asdict(state), indent=2) + "\n")
        os.replace(temporary, self._file)

    def forget(self) -> None:
        """No cluster is known any more."""
        self._file.unlink(missing_ok=True)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other starts and stops of this cluster out.

        Raises:
            ConflictError: one is under way.
        """
        self.prepare()
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConflictError(f"another helio up or down works on {self.directory}: wait for it to end") from None
            yield


def require_writable(directory: Path, setting: str) -> None:
    """Make ``directory`` if it is missing, and write to it.

    Raises:
        ResourceError: that fails; names the path and the setting.
    """
    probe = directory / ".writable"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as error:
        raise ResourceError(
            f"{setting} {directory} cannot be written ({error.strerror}): choose another with "
            f"--{setting.replace('_', '-')}",
            field=setting,
        ) from error


def delete_tree(directory: Path) -> None:
    """Remove a directory and all below it; nothing happens if it is gone."""
    shutil.rmtree(directory, ignore_errors=True)
