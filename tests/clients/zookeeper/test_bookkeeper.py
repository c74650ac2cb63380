"""Apache BookKeeper with its metadata behind the endpoint: its shell, its bookies, its client."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

import pytest

from heliograph.cluster.ports import pick_free
from tests.clients.support.maven import JavaProject, build
from tests.clients.support.report import ClientMatrix
from tests.clients.zookeeper.served import LOG_CHARACTERS_MAX, Server, run_to_end, serving

CLIENT, VERSION = "BookKeeper", "4.17.3"
MEMORY = ("-Xmx256m", "-XX:MaxDirectMemorySize=128m")
SHELL_SECONDS_MAX = 180.0
SETTINGS = """
metadataServiceUri=zk+hierarchical://{connect}/ledgers
zkTimeout=10000
bookiePort={port}
advertisedAddress=127.0.0.1
allowLoopback=true
journalDirectories={directory}/journal
ledgerDirectories={directory}/ledgers
diskUsageThreshold=0.99
diskUsageWarnThreshold=0.98
journalPreAllocSizeMB=1
nettyMaxFrameSizeBytes=1048576
numAddWorkerThreads=1
numReadWorkerThreads=1
gcWaitTime=1000
autoRecoveryDaemonEnabled=false
httpServerEnabled=false
"""
BIG_SETTINGS = ("skipListSizeLimit=4194304", "logSizeLimit=16777216", "journalMaxSizeMB=16")


@cache
def project() -> JavaProject:
    return build(Path(__file__).parent / "bookkeeper")


class BookKeeperCluster:
    """Bookies of Apache BookKeeper, and its shell."""

    def __init__(self, connect: str, folder: Path) -> None:
        self._connect = connect
        self._folder = folder
        self.bookies: list[Server] = []
        self._settings = self._new_settings("shell")

    def shell(self, *arguments: str) -> str:
        """Run a command of the shell, and return what it wrote."""
        command = project().command(
            "org.apache.bookkeeper.bookie.BookieShell", "-conf", str(self._settings), *arguments, options=MEMORY
        )
        return run_to_end(f"bookkeeper shell {arguments[0]}", command, self._folder, seconds=SHELL_SECONDS_MAX)

    def start_bookie(self) -> Server:
        """Start a new bookie and wait until it serves."""
        settings = self._new_settings(f"bookie-{len(self.bookies)}")
        command = project().command("org.apache.bookkeeper.server.Main", "--conf", str(settings), options=MEMORY)
        bookie = Server("bookie", command, self._folder)
        self.bookies.append(bookie)
        bookie.wait_for("Started component bookie-server")
        return bookie

    def write_entries(self) -> None:
        """Write 200 entries to a ledger on three bookies, and read them."""
        said = self.shell("simpletest", "-ensemble", "3", "-writeQuorum", "2", "-ackQuorum", "2", "-numEntries", "200")
        assert "200 entries written to ledger" in said, said[-LOG_CHARACTERS_MAX:]

    def kill(self) -> None:
        """End all bookies."""
        for bookie in self.bookies:
            bookie.kill()

    def _new_settings(self, name: str) -> Path:
        settings = self._folder / f"{name}.conf"
        text = SETTINGS.format(connect=self._connect, port=pick_free(), directory=self._folder / name)
        settings.write_text(text + "\n".join(BIG_SETTINGS))
        return settings


@contextmanager
def bookkeeper(store: str, folder: Path) -> Iterator[BookKeeperCluster]:
    project()
    with ExitStack() as stack:
        cluster = BookKeeperCluster(stack.enter_context(serving(store, folder)), folder)
        stack.callback(cluster.kill)
        yield cluster


def test_one_bookie(tmp_path: Path, matrix: ClientMatrix) -> None:
    with bookkeeper("embedded", tmp_path) as cluster:
        cluster.shell("initnewcluster")
        cluster.start_bookie()
        said = cluster.shell(
            "simpletest", "-ensemble", "1", "-writeQuorum", "1", "-ackQuorum", "1", "-numEntries", "100"
        )
        assert "100 entries written to ledger" in said
        matrix.note(CLIENT, VERSION, "zk_storage")


@pytest.mark.full
@pytest.mark.parametrize("store", ["embedded", "etcd", "zookeeper"])
def test_three_bookies_one_of_which_dies(store: str, tmp_path: Path, matrix: ClientMatrix) -> None:
    with bookkeeper(store, tmp_path) as cluster:
        cluster.shell("metaformat", "-nonInteractive", "-force")
        for _ in range(3):
            cluster.start_bookie()
        cluster.write_entries()
        assert cluster.shell("listbookies", "-rw").count("127.0.0.1:") >= 3
        cluster.bookies[0].stop()
        restarted = cluster.start_bookie()
        cluster.write_entries()
        restarted.kill()
        assert "ledgerID: " not in cluster.shell("listledgers"), "the test deletes the ledgers that it writes"
        matrix.note(CLIENT, VERSION, "zk_storage")
