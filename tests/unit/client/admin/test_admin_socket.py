"""The Unix socket of a cluster in one process, at paths longer than the system takes for one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from heliograph.base.errors import UnsupportedError
from heliograph.base.home import ClusterHome, ClusterState
from heliograph.base.processes import ProcessName
from heliograph.base.system.processes import boot_id
from heliograph.client.admin import local_socket
from heliograph.client.admin.admin import Admin
from heliograph.client.admin.local_socket import PATH_BYTES_MAX, ask, short_path
from heliograph.operations.admin import AdminOperations
from heliograph.operations.table import OPERATIONS, AdminOperation
from heliograph.standalone.admin_socket import AdminSocketServer


class EchoAdministration(AdminOperations):
    """Answers every operation with its arguments."""

    def __init__(self) -> None:
        self.run_through(self._run)

    async def _run(self, operation: AdminOperation, arguments: dict[str, Any]) -> Any:
        return [operation.name, arguments["topic"]]


def directory_of(tmp_path: Path, path_bytes: int) -> Path:
    """Make a directory in which ``admin.sock`` has a path of so many bytes, or of more."""
    made = tmp_path
    while (missing := path_bytes - len(os.fsencode(made / "admin.sock"))) > 1:
        made = made / ("d" * min(200, missing - 1))
    made.mkdir(exist_ok=True, parents=True)
    return made


@pytest.mark.parametrize("path_bytes", [PATH_BYTES_MAX, PATH_BYTES_MAX + 1, 108, 109, 900])
async def test_calls_are_answered_at_a_path_of_any_length(tmp_path: Path, path_bytes: int) -> None:
    path = directory_of(tmp_path, path_bytes) / "admin.sock"
    for _ in range(2):  # the second server finds the socket of a process that was killed
        server = AdminSocketServer(path, EchoAdministration())
        assert await server.start() == str(path)
        assert path.is_socket()
        assert path.stat().st_mode & 0o777 == 0o600
        assert await ask(str(path), OPERATIONS["partitions"], {"topic": "t"}, "test") == ["partitions", "t"]
        left = path.with_name("left")
        path.rename(left)
        await server.stop()
        left.rename(path)
    path.unlink()


def test_a_long_path_is_reached_by_a_link_that_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_socket, "SHORT_ROOT", str(tmp_path))
    directory = directory_of(tmp_path, PATH_BYTES_MAX + 1)
    (directory / "kept").touch()
    before = sorted(tmp_path.iterdir())
    with short_path(directory / "admin.sock") as short:
        assert Path(short).parent.resolve() == directory.resolve()
        assert Path(short).parents[1].stat().st_mode & 0o777 == 0o700
    assert sorted(tmp_path.iterdir()) == before
    assert (directory / "kept").exists()


async def test_a_cluster_without_a_socket_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its file system may have none. Nothing says then that a cluster of another kind is needed."""
    process = ProcessName.of(os.getpid())
    assert process is not None
    home = ClusterHome(tmp_path)
    home.prepare()
    home.save(ClusterState("n", "", "", own_pid=process.pid, own_start_ticks=process.start_ticks, boot_id=boot_id()))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path))
    with pytest.raises(UnsupportedError, match="has no socket for administrative calls"):
        await Admin("n").partitions("t")
