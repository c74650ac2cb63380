"""``helio bookies``: offline, read-only, and honest about damage."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.actors.bookie.disk.disk import ReadOnlyDisk, RealDisk
from heliograph.actors.bookie.journal.files import used_ids, used_path
from heliograph.actors.bookie.recovery.opening import lock_directories
from heliograph.actors.bookie.store.entry_log import log_path
from heliograph.actors.bookie.tools import inspect, offline
from heliograph.actors.errors import BookieStorageError, DirectoryLockedError
from heliograph.base.errors import BadRequestError
from heliograph.cli.app import app
from heliograph.metadata import codec
from heliograph.metadata.bookie_records import Cookie
from tests.unit.bookie.test_storage import TestReplay, Told, add, crash, flip, opened, wait_for


def helio(*arguments: object, code: int = 0) -> Any:
    result = CliRunner().invoke(app, ["bookies", *map(str, arguments), "--json"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code
    return json.loads(result.stdout)


@pytest.fixture
def bookie(tmp_path: Path) -> Path:
    """A crashed bookie: entries 0 to 299 of ledger 1 are flushed, 300 to 309 are in the journal."""
    told = Told()
    with opened(tmp_path / "running") as storage:
        for number in range(300):
            add(storage, told, 1, number)
        wait_for(told, 300)
        told.tokens.clear()
        add(storage, told, 2, 7)
        wait_for(told, 1)
        storage.put_into_limbo(3, is_fenced=True)
        storage.flush_now(moves_mark=True)
        told.tokens.clear()
        for number in range(300, 310):
            add(storage, told, 1, number)
        wait_for(told, 10)
        copy = crash(tmp_path / "running", tmp_path / "bookie")
    cookie = codec.encode(Cookie("b1", "", (str(copy / "journal"),), (str(copy / "data"),)))
    for name in ("journal", "data"):
        (copy / name / "cookie").write_bytes(cookie)
    return copy


def state(folder: Path) -> dict[Path, tuple[int, int, bytes]]:
    return {p: (p.stat().st_size, p.stat().st_mtime_ns, p.read_bytes()) for p in folder.rglob("*") if p.is_file()}


def test_commands_show_what_is_there_and_change_nothing(bookie: Path) -> None:
    before = state(bookie)
    found = helio("inspect", bookie)
    assert found["ledgers"] == 3
    assert found["mark"]["checkpoint"] == 2
    assert sum(journal["entries"] for journal in found["journals"] if journal["is_needed"]) >= 10
    ledgers = {ledger["ledger_id"]: ledger for ledger in helio("list-ledgers", bookie)["ledgers"]}
    assert ledgers[1]["spans"] == [[0, 299]]
    assert ledgers[3]["is_limbo"]
    assert helio("verify", bookie)["entries_checked"] == 301
    assert state(bookie) == before


def test_entries_are_read_from_logs_and_journals(bookie: Path) -> None:
    entries = helio("read", bookie, "--ledger", 1, "--first", 298, "--last", 301)["entries"]
    assert [entry["entry_id"] for entry in entries] == [298, 299, 300, 301]
    assert base64.b64decode(entries[2]["payload"]).startswith(b"1:300")
    assert len(helio("read", bookie / "data", bookie / "journal", "--ledger", 1, "--limit", 5)["entries"]) == 5
    assert helio("read", bookie, "--ledger", 99)["entries"] == []


def test_damage_in_an_entry_log_is_named(bookie: Path) -> None:
    flip(log_path(bookie / "data", 1), 200)
    report = helio("verify", bookie, code=1)
    assert not report["is_sound"]
    (line,) = report["damage"]
    assert "00000001.log at offset" in line
    with pytest.raises(Exception, match="at offset"):
        helio("read", bookie, "--ledger", 1)


def test_damage_in_a_journal_is_named(tmp_path: Path) -> None:
    copy, path = TestReplay().crashed_with_batches(tmp_path)
    flip(path, 4096 + 60)
    assert any(f"{path.name}: damaged at offset 4096" in line for line in helio("inspect", copy)["damage"])
    assert any(f"{path.name}: damaged at offset 4096" in line for line in helio("verify", copy, code=1)["damage"])


def test_a_bookie_that_runs_is_left_alone(bookie: Path) -> None:
    locks = lock_directories(RealDisk(), [bookie / "data"])
    with pytest.raises(DirectoryLockedError, match="in use by process"):
        helio("inspect", bookie)
    locks[0].release()
    helio("inspect", bookie)
    with offline.held(offline.find_folders([bookie])), pytest.raises(DirectoryLockedError):
        lock_directories(RealDisk(), [bookie / "data"])


def test_other_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequestError, match="neither journals nor entry logs"):
        helio("inspect", tmp_path)
    with pytest.raises(BadRequestError, match="no directory"):
        helio("inspect", tmp_path / "nowhere")


def test_people_get_tables(bookie: Path) -> None:
    for command in (["inspect"], ["verify"], ["list-ledgers"], ["read", "--ledger", "1"]):
        result = CliRunner().invoke(app, ["bookies", command[0], str(bookie), *command[1:]])
        assert result.exit_code in (0, 1)
        assert result.stdout


def test_the_disk_for_looking_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"as it was")
    disk = ReadOnlyDisk()
    file = disk.open(path)
    assert file.read_at(3, 2) == b"it"
    for harm in (
        lambda: file.write_at(0, b"x"),
        lambda: file.truncate(0),
        lambda: disk.remove(path),
        lambda: disk.rename(path, tmp_path / "other"),
        lambda: disk.open(tmp_path / "new", create=True),
    ):
        with pytest.raises(BookieStorageError):
            harm()
    assert path.read_bytes() == b"as it was"
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_damage_before_the_mark_does_no_harm(bookie: Path) -> None:
    disk = RealDisk()
    first = used_ids(disk, bookie / "journal")[0]
    mark = inspect.read_mark([bookie / "data"])
    assert mark is not None
    views = inspect.list_journals([bookie / "journal"], mark)
    assert all(view.is_needed == (int(Path(view.path).stem, 16) >= mark.positions[0].file_id) for view in views)
    assert used_path(bookie / "journal", first).exists()
