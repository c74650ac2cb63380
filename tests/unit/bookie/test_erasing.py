"""A bookie whose directories are deleted: one call at a time, and each answers when nothing is left."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from heliograph.actors.bookie import actor
from heliograph.actors.bookie.actor import BookieActor
from heliograph.actors.bookie.config import BookieConfig

SECRET = "a secret of thirty-two characters"


async def test_directories_are_erased_by_one_call_at_a_time_although_callers_give_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, data = tmp_path / "journal", tmp_path / "data"
    for directory in (journal, data):
        directory.mkdir()
        (directory / "file").touch()
    delete, running, may_go_on = actor._delete_tree, list[Path](), threading.Event()

    def slow(directory: Path) -> None:
        assert not running, "another call deletes files, too"
        running.append(directory)
        may_go_on.wait()
        delete(directory)
        running.remove(directory)

    monkeypatch.setattr(actor, "_delete_tree", slow)
    made = BookieActor(BookieConfig("bookie-1", (journal,), (data,), cluster_secret=SECRET), "memory://")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(made.erase(), 0.01)
    again = asyncio.create_task(made.erase())
    for _ in range(10):
        await asyncio.sleep(0)
    assert running == [journal]
    assert not again.done()
    may_go_on.set()
    await again
    assert list(tmp_path.iterdir()) == []


async def test_a_start_waits_until_all_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, data, may_go_on = tmp_path / "journal", tmp_path / "data", threading.Event()
    started: list[str] = []

    async def connect(self: BookieActor) -> None:
        started.append("connects")
        raise ConnectionError("no metadata here")

    monkeypatch.setattr(actor, "_delete_tree", lambda directory: may_go_on.wait())
    monkeypatch.setattr(BookieActor, "_connect", connect)
    made = BookieActor(BookieConfig("bookie-1", (journal,), (data,), cluster_secret=SECRET), "memory://")
    erasing = asyncio.create_task(made.erase())
    for _ in range(10):
        await asyncio.sleep(0)
    starting = asyncio.create_task(made.start())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not started, "its directories are being deleted"
    may_go_on.set()
    await erasing
    with pytest.raises(ConnectionError):
        await starting
    assert started
