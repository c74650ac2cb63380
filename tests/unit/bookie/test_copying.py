"""Copies of a stopped bookie's directories: complete and verified, or without a name that a bookie is started on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.tools import copying
from heliograph.actors.bookie.tools.copying import CopySource, LocalSource, SourceFile
from heliograph.actors.errors import CookieMismatchError, DirectoryLockedError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.base.errors import BadRequestError, ConflictError, NotFoundError, ResourceError, ServiceNotReadyError
from heliograph.cluster.config import ClusterConfig
from heliograph.cluster.operator.changes import transfer
from heliograph.metadata.connect import connect_store

PAYLOADS = [b"entry %d" % n for n in range(50)]


def config_in(root: Path, bookie_id: str = "bookie-1") -> BookieConfig:
    return BookieConfig(bookie_id, (root / bookie_id / "journal",), (root / bookie_id / "ledgers",))


def directories(config: BookieConfig) -> list[Path]:
    return [*config.journal_directories, *config.data_directories]


async def started(config: BookieConfig, url: str) -> Bookie:
    bookie = Bookie(config, await connect_store(url))
    await bookie.start()
    return bookie


async def written(url: str) -> int:
    """Write a ledger to the only bookie; return its id."""
    store = await connect_store(url)
    client = await LedgerClient.start(store)
    writer = await client.create(ensemble_size=1, write_quorum=1, ack_quorum=1)
    await asyncio.gather(*map(writer.add, PAYLOADS))
    await writer.close()
    await client.close()
    await store.close()
    return writer.ledger_id


async def read(url: str, ledger_id: int) -> list[bytes]:
    store = await connect_store(url)
    client = await LedgerClient.start(store)
    reader = await client.open(ledger_id)
    found: list[bytes] = []
    while len(found) < len(PAYLOADS):
        found += [bytes(entry.payload) for entry in await reader.read(len(found), len(PAYLOADS) - 1)]
    await client.close()
    await store.close()
    return found


async def test_a_bookie_serves_from_the_copy_and_not_from_the_old_directories(tmp_path: Path) -> None:
    url = "memory://copying-serves"
    old, new = config_in(tmp_path / "old"), config_in(tmp_path / "new")
    bookie = await started(old, url)
    ledger_id = await written(url)
    await bookie.checkpoint()
    second = await written(url)  # in the journal only
    bookie.fail(RuntimeError("as a crash"))
    await bookie.stop()
    seen: list[int] = []
    report = copying.copy(LocalSource(directories(old)), directories(new), progress=lambda done, of: seen.append(of))
    assert report.bytes == seen[-1] > 0
    bookie = await started(new, url)
    assert await read(url, ledger_id) == PAYLOADS
    assert await read(url, second) == PAYLOADS
    await bookie.stop()
    with pytest.raises(CookieMismatchError, match="old copy"):
        await started(old, url)
    retired = copying.retire(directories(old))
    assert [path.name for path in retired] == ["journal.moved", "ledgers.moved"]
    assert copying.retire(directories(old)) == []
    bookie = await started(new, url)
    assert await read(url, ledger_id) == PAYLOADS
    await bookie.stop()


async def test_a_bookie_is_away_only_for_what_it_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "memory://copying-ahead"
    old, new = config_in(tmp_path / "old"), config_in(tmp_path / "new")
    old = replace(old, entry_log_bytes=4 << 10)
    copied: list[str] = []
    real = copying._copy_file

    def copy_file(source: CopySource, number: int, file: SourceFile, target: Path) -> None:
        copied.append(file.path)
        real(source, number, file, target)

    monkeypatch.setattr(copying, "_copy_file", copy_file)
    bookie = await started(old, url)
    ledgers = []
    for _ in range(8):
        ledgers.append(await written(url))
        await bookie.checkpoint()
    source = LocalSource(directories(old))
    ahead = copying.copy_ahead(source, directories(new))
    logs = {file.path for _, file in ahead}
    assert logs == set(copied)
    assert len(logs) >= 3
    assert not any(path.exists() for path in directories(new))
    gone = min(logs)
    ledgers.append(await written(url))
    await bookie.stop()
    (old.data_directories[0] / gone).rename(tmp_path / "collected")  # as garbage collection would
    copied.clear()
    copying.copy(source, directories(new), ahead=ahead)
    assert logs.isdisjoint(copied)
    assert {path.name for path in new.data_directories[0].glob("*.log")} == {
        path.name for path in old.data_directories[0].glob("*.log")
    }
    (tmp_path / "collected").rename(new.data_directories[0] / gone)
    bookie = await started(replace(new, entry_log_bytes=4 << 10), url)
    assert [await read(url, ledger_id) for ledger_id in ledgers] == [PAYLOADS] * 9
    await bookie.stop()


def a_stopped_bookie(root: Path, url: str) -> BookieConfig:
    config = config_in(root)

    async def scenario() -> None:
        bookie = await started(config, url)
        await written(url)
        await bookie.stop()

    asyncio.run(scenario())
    return config


def test_a_disk_that_gives_back_other_bytes_gets_no_copy_with_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = a_stopped_bookie(tmp_path / "old", "memory://copying-bad"), config_in(tmp_path / "new")
    real = copying._checksum
    monkeypatch.setattr(copying, "_checksum", lambda path: real(path) ^ (path.name == "mark"))
    with pytest.raises(ResourceError, match="mark lacks a part of the copy"):
        copying.copy(LocalSource(directories(old)), directories(new))
    assert not any(path.exists() for path in directories(new))
    monkeypatch.undo()
    assert copying.copy(LocalSource(directories(old)), directories(new)).files > 0  # over what the first call left
    assert all(path.exists() for path in directories(new))
    assert not list((tmp_path / "new").rglob("*" + copying.COPYING))
    assert copying.find_copies("bookie-1", [tmp_path / "new" / "bookie-1"]) == (
        list(new.journal_directories),
        list(new.data_directories),
    )


def test_what_is_wrong_with_a_copy_is_said_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = a_stopped_bookie(tmp_path / "old", "memory://copying-wrong"), config_in(tmp_path / "new")
    source = LocalSource(directories(old))
    with pytest.raises(NotFoundError, match="nothing to copy"):
        copying.copy(LocalSource([tmp_path / "none", tmp_path / "none"]), directories(new))
    new.data_directories[0].mkdir(parents=True)
    (new.data_directories[0] / "of-another").touch()
    with pytest.raises(ConflictError, match="not empty"):
        copying.copy(source, directories(new))
    (new.data_directories[0] / "of-another").unlink()
    monkeypatch.setattr(copying, "SPARE_BYTES", 1 << 62)
    with pytest.raises(ResourceError, match="bytes free"):
        copying.copy(source, directories(new))
    assert not list((tmp_path / "new").rglob("*" + copying.COPYING))
    for target in (old.journal_directories[0], old.journal_directories[0] / "below", tmp_path):
        with pytest.raises(BadRequestError, match="not apart"):
            copying.require_apart(directories(old), [target])
    copying.require_apart(directories(old), directories(new))
    with pytest.raises(ConflictError, match="data of bookie-1, not of bookie-2"):
        copying.find_copies("bookie-2", [tmp_path / "old" / "bookie-1"])
    with pytest.raises(ConflictError, match="0 journal and 1 data"):
        copying.find_copies("bookie-1", [old.data_directories[0]])


def test_directories_of_another_node_are_read_in_pieces_by_tasks_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = a_stopped_bookie(tmp_path / "old", "memory://copying-distant"), config_in(tmp_path / "new")
    tasks: list[tuple[str, str]] = []

    def on_node(address: str, function: Callable[..., Any], *arguments: Any) -> Any:
        tasks.append((address, function.__name__))
        return function(*arguments)

    monkeypatch.setattr(transfer, "on_node", on_node)
    monkeypatch.setattr(copying, "CHUNK_BYTES", 1 << 20)
    with copying.alone(directories(new)), pytest.raises(ServiceNotReadyError, match="is not over yet"):
        transfer.copy("10.0.0.1", directories(old), "10.0.0.2", directories(new), frozenset())
    report = transfer.copy("10.0.0.1", directories(old), "10.0.0.2", directories(new), frozenset())
    assert tasks[0] == ("10.0.0.1", "_files")
    assert set(tasks[1:]) == {("10.0.0.1", "_read")}
    assert len(tasks) > report.files  # a journal file has several pieces
    for source, target in zip(directories(old), directories(new), strict=True):
        found = {path.relative_to(target): path.read_bytes() for path in target.rglob("*") if path.is_file()}
        assert found == {
            path.relative_to(source): path.read_bytes()
            for path in source.rglob("*")
            if path.is_file() and path != source / "lock"
        }
    assert copying.find_copies("bookie-1", [tmp_path / "new" / "bookie-1"])[0]


async def test_a_bookie_that_runs_is_not_copied(tmp_path: Path) -> None:
    config = config_in(tmp_path)
    bookie = await started(config, "memory://copying-runs")
    with pytest.raises(DirectoryLockedError), LocalSource(directories(config)).held():
        pytest.fail("its directories are locked")
    await bookie.stop()
    with LocalSource(directories(config)).held(), pytest.raises(DirectoryLockedError):
        await started(config, "memory://copying-runs")


async def test_a_second_journal_and_data_directory_are_added_by_settings(tmp_path: Path) -> None:
    url, home = "memory://copying-second", tmp_path / "home"
    (tmp_path / "disk").mkdir()

    def config(**bookie: object) -> BookieConfig:
        made = ClusterConfig(home=home, namespace="seconds", **({"bookie": bookie} if bookie else {}))
        return made.bookie_config("bookie-1", made.data_root / "bookie-1")

    one = config()
    bookie = await started(one, url)
    first = await written(url)
    await bookie.stop()
    roots = [str(home / "data"), str(tmp_path / "disk")]
    two = config(journal_directories=roots, data_directories=roots)
    assert two.data_directories[0] == one.data_directories[0]
    bookie = await started(two, url)
    ledgers = [first, *[await written(url) for _ in range(4)]]
    await bookie.checkpoint()
    assert [await read(url, ledger_id) for ledger_id in ledgers] == [PAYLOADS] * 5
    await bookie.stop()
    for directory in (*two.journal_directories, *two.data_directories):
        assert any(path.suffix in (".journal", ".log") for path in directory.iterdir())
    bookie = await started(two, url)
    assert [await read(url, ledger_id) for ledger_id in ledgers] == [PAYLOADS] * 5
    await bookie.stop()
    with pytest.raises(CookieMismatchError, match="misses"):
        await started(one, url)  # a directory with data is not configured any more
