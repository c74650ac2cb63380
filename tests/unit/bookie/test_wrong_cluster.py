"""Disks and metadata of different clusters: refused with both ids, and nothing is lost."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.errors import CookieMismatchError
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.backup.restore import restore
from heliograph.metadata.backup.snapshot import snapshot
from heliograph.metadata.recipes.cluster_init import initialise


def content(home: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(home)): path.read_bytes()
        for path in sorted(home.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


async def served(config: BookieConfig, server: MemoryServer) -> None:
    bookie = Bookie(config, server.open_session())
    await bookie.start()
    await bookie.stop()


@pytest.mark.slow
async def test_a_backup_of_another_cluster_is_refused_by_the_disks_of_this_one(tmp_path: Path) -> None:
    ours, theirs, restored = MemoryServer(), MemoryServer(), MemoryServer()
    own, other = [(await initialise(one.open_session())).instance_id for one in (ours, theirs)]
    config = BookieConfig("bookie-1", (tmp_path / "disk" / "journal",), (tmp_path / "disk" / "ledgers",))
    await served(config, ours)
    before = content(tmp_path / "disk")
    await snapshot(theirs.open_session(), tmp_path / "backup")
    summary, _ = await restore(tmp_path / "backup", restored.open_session())
    assert summary.instance_id == other
    with pytest.raises(CookieMismatchError) as refused:
        await served(config, restored)
    said = str(refused.value)
    assert re.search(rf"another cluster.*{own}.*{other}", said)
    assert str(tmp_path / "disk") in said
    assert "Mount the right directory" in said
    assert content(tmp_path / "disk") == before
    await served(config, ours)  # with the right metadata it serves as before


@pytest.mark.slow
async def test_a_disk_that_returns_from_another_cluster_is_refused_beside_the_right_one(tmp_path: Path) -> None:
    ours, theirs = MemoryServer(), MemoryServer()
    here = BookieConfig("bookie-1", (tmp_path / "here" / "journal",), (tmp_path / "here" / "ledgers",))
    there = BookieConfig("bookie-1", (tmp_path / "there" / "journal",), (tmp_path / "there" / "ledgers",))
    await served(here, ours)
    await served(there, theirs)
    before = content(tmp_path)
    mixed = BookieConfig("bookie-1", here.journal_directories, there.data_directories)
    with pytest.raises(CookieMismatchError, match=r"there/ledgers is of another cluster"):
        await served(mixed, ours)
    assert content(tmp_path) == before
    await served(here, ours)
    await served(there, theirs)
