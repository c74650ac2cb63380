"""Copies of a store: all backends are read as they are at one moment, and filled with the same nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from heliograph.base.errors import ConflictError
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.backup.file import read_nodes, read_summary
from heliograph.metadata.backup.migration import migrate
from heliograph.metadata.backup.restore import LEDGER_ID_JUMP, missing_ledgers, restore
from heliograph.metadata.backup.snapshot import digest_of, snapshot
from heliograph.metadata.model import ClusterRecord
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.recipes.ids import last_ledger_id, next_ledger_id
from heliograph.metadata.recipes.restored_mark import accept, is_restored
from heliograph.metadata.store import MetadataStore, Stat
from tests.contracts.metadata.backends import Backend

LEDGERS = 40
NULL, EMPTY, FULL, JOBS = "/foreign/null", "/foreign/empty", "/foreign/full", "/foreign/jobs"


async def fill(store: MetadataStore) -> ClusterRecord:
    record = await initialise(store)
    for _ in range(LEDGERS):
        await store.create(paths.ledger(await next_ledger_id(store)), b"ledger", parents=True)
    await store.create("/foreign")
    await store.create(NULL, None)
    await store.create(EMPTY, b"")
    await store.create(FULL, bytes(range(256)) * 1000)
    await store.create(JOBS)
    for _ in range(20):
        await store.create(f"{JOBS}/job-", sequence=True)
    for number in range(10, 20):
        await store.delete(f"{JOBS}/job-{number:010d}")
    return record


async def check(store: MetadataStore) -> None:
    assert (await store.get(NULL))[0] is None
    assert (await store.get(EMPTY))[0] == b""
    assert (await store.get(FULL))[0] == bytes(range(256)) * 1000
    for number in range(1, LEDGERS + 1):
        assert (await store.get(paths.ledger(number)))[0] == b"ledger"
    assert await store.create(f"{JOBS}/job-", sequence=True) == f"{JOBS}/job-{20:010d}", "no number is given again"


async def test_a_backup_is_read_from_every_store_and_restored_with_a_mark(backend: Backend, tmp_path: Path) -> None:
    file = tmp_path / "backup"
    store = await backend.open()
    record = await fill(store)
    await store.create("/foreign/alive", ephemeral=True)
    summary, ephemerals = await snapshot(store, file)
    assert ephemerals == ["/foreign/alive"]
    assert summary == read_summary(file)
    assert (summary.instance_id, summary.ledgers, summary.last_ledger_id) == (record.instance_id, LEDGERS, LEDGERS)
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in tmp_path.glob("backup*")].count("backup") == 1
    assert not list(tmp_path.glob("backup.*")), "nothing else is left"
    assert await missing_ledgers(file, store, record.instance_id) == []
    await store.delete(paths.ledger(7))
    assert await missing_ledgers(file, store, record.instance_id) == [7]

    target = MemoryServer().open_session()
    await restore(file, target)
    await check(target)
    assert await target.exists("/foreign/alive") is None
    assert await initialise(target) == record
    assert await is_restored(target)
    assert await last_ledger_id(target) == LEDGERS + LEDGER_ID_JUMP
    assert await next_ledger_id(target) == LEDGERS + LEDGER_ID_JUMP + 1
    assert await accept(target)
    assert not await is_restored(target)
    assert not await accept(target)


async def test_every_store_is_filled_by_a_migration_and_ids_go_on(backend: Backend, tmp_path: Path) -> None:
    source = MemoryServer().open_session()
    record = await fill(source)
    target = await backend.open()
    summary, behind = await migrate(source, target, tmp_path / "scratch")
    assert behind == []
    assert await digest_of(target) == (summary.nodes, summary.digest)
    await check(target)
    assert await initialise(target) == record
    assert not await is_restored(target)
    assert await next_ledger_id(target) == LEDGERS + 1
    with pytest.raises(ConflictError, match="holds this cluster"):
        await migrate(source, target, tmp_path / "scratch")


async def test_a_backup_is_of_one_moment_while_the_store_changes(backend: Backend, tmp_path: Path) -> None:
    """Each write changes two nodes at opposite ends of the tree alike, so a copy that is not of one moment shows."""
    store, writer = await backend.open(), await backend.open()
    await fill(store)
    for path in ("/a-first", "/z-last"):
        await store.create(path, b"0")
    is_over = asyncio.Event()

    async def change() -> None:
        number = 0
        while not is_over.is_set() and number < 60:
            number += 1
            both = [f"/a-{number}", f"/z-{number}"]
            for path in both:
                await writer.create(path, b"new")
            for path in ("/z-last", "/a-first"):
                await writer.set(path, b"%d" % number)

    changing = asyncio.create_task(change())
    await snapshot(store, tmp_path / "backup")
    is_over.set()
    await changing
    nodes = {node.path: node.value for node in read_nodes(tmp_path / "backup")}
    first, last = int(nodes["/a-first"] or b""), int(nodes["/z-last"] or b"")
    assert first in (last, last - 1), "the last was written before the first"
    assert all(f"/{side}-{number}" in nodes for number in range(1, last + 1) for side in "az")
    assert f"/z-{last + 2}" not in nodes
    for path in nodes:
        assert path == "/" or (path.rpartition("/")[0] or "/") in nodes, "parents are there"


async def test_what_changes_behind_the_reader_is_read_again(
    backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, writer = await backend.open(), await backend.open()
    await fill(store)
    for path in ("/a", "/gone", "/again", "/z", "/z/last"):
        await store.create(path, b"old")
    read, is_first = store.get, True

    async def get(path: str, watcher: None = None) -> tuple[bytes | None, Stat]:
        nonlocal is_first
        if path == "/z/last" and is_first:  # its parent and all the others were read
            is_first = False
            for changed in ("/a", "/z/last"):
                await writer.set(changed, b"new")
            await writer.delete("/gone")
            await writer.delete("/again")
            await writer.create("/again", b"new")
            await writer.create("/added", b"new")
            await writer.create("/added/below", b"new")
            await writer.create("/alive", b"", ephemeral=True)
            await next_ledger_id(writer)
        return await read(path)

    monkeypatch.setattr(store, "get", get)
    summary, _ = await snapshot(store, tmp_path / "backup")
    nodes = {node.path: node.value for node in read_nodes(tmp_path / "backup")}
    changed = ("/a", "/again", "/added", "/added/below", "/z/last")
    assert {path: nodes[path] for path in changed} == dict.fromkeys(changed, b"new")
    assert nodes.keys().isdisjoint({"/gone", "/alive"})
    assert summary.last_ledger_id == LEDGERS + 1
    assert (summary.nodes, summary.digest) == await digest_of(store)


async def test_a_clusters_record_survives(backend: Backend, tmp_path: Path) -> None:
    source = MemoryServer().open_session()
    record = await fill(source)
    await snapshot(source, tmp_path / "backup")
    target = await backend.open()
    await restore(tmp_path / "backup", target)
    value, _ = await target.get(paths.CLUSTER)
    assert codec.decode(ClusterRecord, value) == record
    assert await is_restored(target)
