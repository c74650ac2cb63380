"""The way back to the previous release: of a bookie that ended in order, crashed, or wrote once, and of the store."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.wire.messages import Status
from heliograph.metadata.errors import NotEmptyError
from tests.cluster.metadata.embedded_servers import serving as serving_store
from tests.cluster.metadata.embedded_servers import session
from tests.cluster.support.bookie_peer import serving
from tests.previous_release import unpack_previous

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

ENTRIES = 40
ENTRY_BYTES = 40 << 10  # above the default of the setting
END_SECONDS = 120.0
OLD = """
import asyncio, sys
from pathlib import Path
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.tools import inspect

async def main(home):
    bookie = Bookie(BookieConfig("b1", (home / "journal",), (home / "data",)), None)
    await bookie.start()
    await bookie.stop()
    print([entry.entry_id for entry in inspect.read_entries([home / "data"], 1, 0, 1 << 40)])

asyncio.run(main(Path(sys.argv[1])))
"""
OLD_STORE = """
import asyncio, sys
from pathlib import Path
from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer

async def main(home):
    server = EmbeddedServer(home, "127.0.0.1")
    await server.start()
    host, port = server.address.split(":")
    store = await EmbeddedStore.connect(host, int(port))
    print(await store.children("/"), (await store.get("/set"))[0])
    await store.create("/of-old/child", parents=True)
    await store.delete("/gone")
    await store.set("/set", b"old")
    await store.close()
    await server.stop()

asyncio.run(main(Path(sys.argv[1])))
"""


def config_for(home: Path, **changes: int) -> BookieConfig:
    return BookieConfig("b1", (home / "journal",), (home / "data",), **changes)  # type: ignore[arg-type]


def old_start(code: Path, home: Path, program: str = OLD) -> subprocess.CompletedProcess[str]:
    """Start and stop the previous release's bookie on the directories, and list the entries that it has."""
    return subprocess.run(
        [sys.executable, "-c", program, str(home)],
        env={**os.environ, "PYTHONPATH": str(code)}, cwd=home,
        capture_output=True, text=True, timeout=END_SECONDS, check=False,
    )  # fmt: skip


def test_the_previous_release_is_refused_until_kept_files_are_rewritten(tmp_path: Path) -> None:  # I1, I6
    old, home = unpack_previous(tmp_path / "code"), tmp_path / "home"
    home.mkdir()

    async def written_once() -> None:
        async with serving(config_for(home)) as (bookie, peer):
            adds = [peer.add(1, entry_id, bytes(ENTRY_BYTES)) for entry_id in range(ENTRIES)]
            assert {answer.status for answer, _ in await asyncio.gather(*adds)} == {Status.OK}
            await bookie.checkpoint()
            assert bookie.statistics()["kept_logs"] == 1

    async def rewritten() -> None:
        async with serving(config_for(home, single_write_bytes=0, compaction_headroom_bytes=0)) as (bookie, _):
            await bookie.collect_garbage()
            assert bookie.statistics()["kept_logs"] == 0

    asyncio.run(written_once())
    (kept,) = (home / "data").glob("*.kept")
    before = kept.read_bytes()
    refused = old_start(old, home)
    assert refused.returncode == 1
    assert "mark format 2, this program reads 1" in refused.stderr
    assert kept.read_bytes() == before
    asyncio.run(rewritten())
    found = old_start(old, home)
    assert found.returncode == 0, found.stderr[-3000:]
    assert found.stdout.strip() == str(list(range(ENTRIES)))
    asyncio.run(written_once())


def test_the_previous_release_starts_after_an_orderly_stop_and_refuses_after_a_crash(tmp_path: Path) -> None:  # I1, I19
    """The journals of this release are of a format that the previous one does not read."""
    old, home, killed = unpack_previous(tmp_path / "code"), tmp_path / "home", tmp_path / "killed"
    home.mkdir()

    async def stored(first: int) -> None:
        async with serving(config_for(home)) as (_, peer):
            for entry_id in range(first, first + ENTRIES):
                assert (await peer.add(1, entry_id, bytes(100)))[0].status is Status.OK
            shutil.copytree(home, killed, ignore=shutil.ignore_patterns("LOCK", "lock"), dirs_exist_ok=True)

    asyncio.run(stored(0))
    refused = old_start(old, killed)
    assert refused.returncode == 1
    assert "mark format 4, this program reads 1" in refused.stderr
    for start in (ENTRIES, 2 * ENTRIES):  # the old release wrote its own files in between
        found = old_start(old, home)
        assert found.returncode == 0, found.stderr[-3000:]
        assert found.stdout.strip() == str(list(range(start)))
        asyncio.run(stored(start))


def test_the_previous_release_serves_and_changes_the_metadata_store(tmp_path: Path) -> None:  # I1
    old, home, killed = unpack_previous(tmp_path / "code"), tmp_path / "home", tmp_path / "killed"

    async def written() -> None:
        async with serving_store(home) as server, session(server.address) as store:
            for path in ("/gone", "/kept", "/set"):
                await store.create(path, b"new")
            await store.create("/kept/child")
            shutil.copytree(home, killed, ignore=shutil.ignore_patterns("LOCK", "lock"))

    async def read(directory: Path) -> None:
        async with serving_store(directory) as server, session(server.address) as store:
            assert await store.children("/") == ["kept", "of-old", "set"]
            assert (await store.get("/set"))[0] == b"old"
            for path, count in (("/", 3), ("/kept", 1), ("/of-old", 1), ("/set", 0)):
                stat = await store.exists(path)
                assert stat is not None
                assert stat.num_children == count
            with pytest.raises(NotEmptyError):
                await store.delete("/of-old")
            assert server.statistics()["nodes"] == 6

    asyncio.run(written())
    for directory in (home, killed):  # after a stop, and after a crash
        found = old_start(old, directory, OLD_STORE)
        assert found.returncode == 0, found.stderr[-3000:]
        assert found.stdout.strip() == "['gone', 'kept', 'set'] b'new'"
        asyncio.run(read(directory))
