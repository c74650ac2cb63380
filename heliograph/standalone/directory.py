"""The directory of a cluster in one process: its lock, its data, and the record by which others find the cluster."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from heliograph.base.errors import ConflictError
from heliograph.base.home import (
    DEFAULT_NAMESPACE,
    PRIVATE_FILE,
    ClusterHome,
    ClusterState,
    close_to_others,
    make_private,
    require_writable,
)
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id

DATA = "data"
LOCK = "standalone.lock"
ADMIN_SOCKET = "admin.sock"


class StandaloneDirectory:
    """The directory of one cluster. One process has it at a time.

    Args:
        path: Made if it is missing. None: a temporary directory, which ``release`` deletes.
        namespace: Name of the cluster in the record.

    Raises:
        ResourceError: It cannot be made or written.
        ConflictError: Another process has it, or a cluster of ``helio up`` runs from it; names it.
    """

    def __init__(self, path: Path | None, namespace: str = DEFAULT_NAMESPACE) -> None:
        self.is_temporary = path is None
        self._namespace = namespace
        self._owner = os.getpid()
        self.path = Path(tempfile.mkdtemp(prefix="heliograph-")) if path is None else path.expanduser().absolute()
        self.home = ClusterHome(self.path)
        self._lock: TextIO | None = None
        self._may_forget = False  # the record is of a cluster of one process, or there is none
        try:
            require_writable(self.path, "directory")
            close_to_others(self.path, "directory")
            make_private(self.data)
            self._lock = self._locked()
            self._require_stopped()
            self._may_forget = True
        except BaseException:
            self.release()
            raise

    @property
    def data(self) -> Path:
        return self.path / DATA

    @property
    def metadata(self) -> Path:
        return self.data / "metadata"

    def bookies(self, wanted: int) -> dict[str, Path]:
        """Return the directory of each bookie by its id: as many as wanted, and all that have data from before."""
        kept = [path.name for path in self.data.glob("bookie-*") if path.is_dir()]
        names = {*kept, *(f"bookie-{number}" for number in range(1, wanted + 1))}
        return {name: self.data / name for name in sorted(names, key=lambda name: (len(name), name))}

    @property
    def admin_socket(self) -> Path:
        return self.path / ADMIN_SOCKET

    def record(
        self,
        service_url: str,
        gateway_url: str,
        metadata_url: str,
        admin_socket: str,
        *,
        secret: str,
        files: Mapping[str, Any],
    ) -> None:
        """Record the addresses of the cluster, so that ``helio`` and ``heliograph.connect`` find it.

        Args:
            secret: of bookies and metadata.
            files: of TLS, for clients, by fields of ``ClusterState``.
        """
        self.home.keep_secret(secret)
        process = ProcessName.of(os.getpid())
        assert process is not None, "this process runs"
        self.home.save(
            ClusterState(
                namespace=self._namespace,
                ray_address="",
                ray_auth_mode="",
                service_url=service_url,
                gateway_url=gateway_url,
                metadata_url=metadata_url,
                data_root=str(self.data),
                admin_socket=admin_socket,
                own_pid=process.pid,
                own_start_ticks=process.start_ticks,
                boot_id=boot_id(),
                **files,
            )
        )

    def release(self) -> None:
        """Forget the record, give up the lock and delete a temporary directory. Idempotent."""
        lock, self._lock = self._lock, None
        if lock is not None and self._owner == os.getpid():
            if self._may_forget:
                self.home.forget()
            if self.is_temporary:
                shutil.rmtree(self.path, ignore_errors=True)
        if lock is not None:
            lock.close()

    def _locked(self) -> TextIO:
        lock = open(os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, PRIVATE_FILE), "r+")  # noqa: SIM115  # held
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read().strip()
            lock.close()
            raise ConflictError(
                f"process {holder or '?'} has a cluster on {self.path}: use that one, stop it, or choose another "
                "directory",
                field="directory",
            ) from None
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        return lock

    def _require_stopped(self) -> None:
        state = self.home.load()
        if state is None or state.own_pid:
            return  # this process has the lock, so the recorded one has ended
        ray = state.ray_process
        if ray is None or ray.is_alive():
            raise ConflictError(
                f"a cluster of `helio up` runs from {self.path}: stop it with `helio down --home {self.path}`, or "
                "choose another directory",
                field="directory",
            )
