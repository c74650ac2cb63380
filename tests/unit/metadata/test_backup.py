"""Backups: what is refused, damage, ACLs and kinds, and the commands on directories."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from heliograph.actors.broker.records.owned_topic import read_piece
from heliograph.actors.broker.records.topic_chain import TAIL_LEDGERS_MAX, fold, ledgers_after
from heliograph.base.errors import BadRequestError, ConflictError
from heliograph.cli.app import app
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.embedded.client import EmbeddedStore
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.backup import restore as restoring
from heliograph.metadata.backup.file import BackupWriter, read_nodes, read_summary
from heliograph.metadata.backup.migration import migrate
from heliograph.metadata.backup.node import BackupNode
from heliograph.metadata.backup.restore import missing_ledgers, restore
from heliograph.metadata.backup.snapshot import snapshot
from heliograph.metadata.endpoint.session.acl_directory import NodeAcl, StoredAcl
from heliograph.metadata.errors import ConnectionLossError, RecordError
from heliograph.metadata.model import ClusterRecord, LedgerInfo, TopicRecord
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.recipes.ids import last_ledger_id, next_ledger_id
from heliograph.metadata.recipes.restored_mark import is_restored
from heliograph.metadata.recipes.update_loop import read
from heliograph.metadata.store import Create, SessionState
from heliograph.metadata.znode import CONTAINER, ttl_kind

ENTRIES = [(1, "world", "anyone")]


@pytest.fixture
async def source() -> MemoryStore:
    made = MemoryServer().open_session()
    await initialise(made)
    await next_ledger_id(made)
    return made


@pytest.fixture
async def target() -> MemoryStore:
    return MemoryServer().open_session()


async def test_a_store_that_holds_something_is_refused(
    source: MemoryStore, target: MemoryStore, tmp_path: Path
) -> None:
    await snapshot(source, tmp_path / "b")
    with pytest.raises(ConflictError, match="holds this cluster"):
        await restore(tmp_path / "b", source)
    await target.create("/x")
    with pytest.raises(ConflictError, match="no cluster's record"):
        await restore(tmp_path / "b", target)
    await initialise(target)
    with pytest.raises(ConflictError, match="holds another cluster"):
        await restore(tmp_path / "b", target)
    with pytest.raises(ConflictError, match="the backup is of cluster"):
        await missing_ledgers(tmp_path / "b", target, read_summary(tmp_path / "b").instance_id)
    assert not await is_restored(target)


async def test_a_backup_of_no_cluster_is_not_restored(target: MemoryStore, tmp_path: Path) -> None:
    await snapshot(target, tmp_path / "b")
    with pytest.raises(RecordError, match="no cluster"):
        await restore(tmp_path / "b", target)


@pytest.mark.parametrize("damage", ["cut", "flip", "longer", "summary", "kind", "newer"])
async def test_a_damaged_file_is_refused_before_anything_is_written(
    source: MemoryStore, target: MemoryStore, tmp_path: Path, damage: str
) -> None:
    file = tmp_path / "b"
    await snapshot(source, file)
    content = bytearray(file.read_bytes())
    if damage == "cut":
        del content[-1:]
    elif damage == "flip":
        content[len(content) // 2] ^= 1
    elif damage == "longer":
        content += b"x"
    elif damage == "summary":  # a file that ends between two frames
        start = len(b"heliograph backup v1\n")
        del content[start + 8 + int.from_bytes(content[start : start + 4], "little") :]
    elif damage == "kind":
        content[0] ^= 1
    else:
        content[:21] = b"heliograph backup v2\n"
    file.write_bytes(content)
    with pytest.raises(RecordError):
        await restore(file, target)
    assert await target.children("/") == []


async def test_a_summary_that_does_not_fit_is_refused(source: MemoryStore, target: MemoryStore, tmp_path: Path) -> None:
    summary, _ = await snapshot(source, tmp_path / "b")
    with BackupWriter(tmp_path / "other") as writer:
        for node in read_nodes(tmp_path / "b"):
            if node.path != paths.TOPICS:
                writer.add(node)
        writer.finish(summary)
    with pytest.raises(RecordError, match="other nodes"):
        await restore(tmp_path / "other", target)


@pytest.mark.parametrize(
    "fields",
    [[], ["/a"], ["/a", "text", 0, 0, None], ["a", b"", 0, 0, None], ["/a", b"", 5, 0, None], ["/a", b"", 0, -1, None]],
)
def test_a_node_that_no_store_takes_is_refused(fields: list[Any]) -> None:
    with pytest.raises(RecordError):
        BackupNode.of(fields)


async def test_a_failed_backup_leaves_the_older_one(
    source: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "b"
    await snapshot(source, file)
    before = file.read_bytes()
    listen = source.add_session_listener

    def lose(listener: Callable[[SessionState], None]) -> None:
        listen(listener)
        listener(SessionState.SUSPENDED)
        listener(SessionState.CONNECTED)

    monkeypatch.setattr(source, "add_session_listener", lose)
    with pytest.raises(ConnectionLossError, match="changes may have been missed"):
        await snapshot(source, file)
    assert file.read_bytes() == before
    assert os.listdir(tmp_path) == ["b"]


async def test_acls_stay_valid_and_those_of_nodes_that_are_gone_are_left_out(
    source: MemoryStore, target: MemoryStore, tmp_path: Path
) -> None:
    await source.create(paths.ENDPOINT_ACLS)
    await source.create("/set")
    stat = await source.exists("/set")
    assert stat is not None
    await source.create(paths.endpoint_acl("/set"), NodeAcl("/set", stat.czxid, 3, ENTRIES).encode())
    await source.multi([Create("/with"), Create(paths.endpoint_acl("/with"), NodeAcl("/with", 0, 0, ENTRIES).encode())])
    await source.create("/open")
    await source.create(paths.endpoint_acl("/open"), NodeAcl("/open", 12345, 0, ENTRIES).encode())
    summary, _ = await snapshot(source, tmp_path / "b")
    assert summary.acls == 2
    await restore(tmp_path / "b", target)
    for path, version in (("/set", 3), ("/with", 0)):
        value, acl_stat = await target.get(paths.endpoint_acl(path))
        record = codec.decode(NodeAcl, value)
        node = await target.exists(path)
        assert node is not None
        assert StoredAcl(record, acl_stat).is_for(node), "the record is for this node"
        assert (record.version, record.entries) == (version, ENTRIES)
    assert await target.exists(paths.endpoint_acl("/open")) is None


async def test_kinds_are_kept(source: MemoryStore, target: MemoryStore, tmp_path: Path) -> None:
    await source.multi([Create("/c", kind=CONTAINER), Create("/t", kind=ttl_kind(60_000)), Create("/c/x")])
    await migrate(source, target, tmp_path / "b")
    for path, kind in (("/c", CONTAINER), ("/t", ttl_kind(60_000)), ("/c/x", 0)):
        stat = await target.exists(path)
        assert stat is not None
        assert stat.ephemeral_owner == kind


async def test_a_counter_that_is_too_far_behind_is_named(
    source: MemoryStore, target: MemoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(restoring, "COUNTER_STEPS_MAX", 3)
    for parent, count in (("/near", 3), ("/far", 4)):
        await source.create(parent)
        for _ in range(count):
            await source.delete(await source.create(f"{parent}/n-", sequence=True))
    _, behind = await migrate(source, target, tmp_path / "b")
    assert behind == ["/far"]
    assert await target.create("/near/n-", sequence=True) == "/near/n-0000000003"


async def test_a_cluster_that_lives_is_not_migrated(source: MemoryStore, target: MemoryStore, tmp_path: Path) -> None:
    await source.create(paths.broker_available("broker-1"), ephemeral=True)
    with pytest.raises(ConflictError, match="broker-1"):
        await migrate(source, target, tmp_path / "b")
    await source.delete(paths.broker_available("broker-1"))
    await source.create("/lock", ephemeral=True)
    with pytest.raises(ConflictError, match="/lock"):
        await migrate(source, target, tmp_path / "b")
    assert await target.children("/") == []


async def test_a_mark_and_ids_survive_a_second_move(source: MemoryStore, target: MemoryStore, tmp_path: Path) -> None:
    await snapshot(source, tmp_path / "b")
    await restore(tmp_path / "b", target)
    given = await next_ledger_id(target)
    third = MemoryServer().open_session()
    await migrate(target, third, tmp_path / "c")
    assert await is_restored(third)
    assert await last_ledger_id(third) == given
    assert await next_ledger_id(third) == given + 1


def test_the_commands_work_on_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HELIOGRAPH_HOME", str(tmp_path / "home"))
    first, second, third, file = (str(tmp_path / name) for name in ("first", "second", "third", "file"))

    async def prepare(directory: str) -> ClusterRecord:
        server = EmbeddedServer(Path(directory), "127.0.0.1")
        await server.start()
        try:
            host, port = server.address.split(":")
            store = await EmbeddedStore.connect(host, int(port))
            record = await initialise(store)
            assert await next_ledger_id(store)
            await store.close()
            return record
        finally:
            await server.stop()

    def helio(*arguments: str) -> Any:
        shown = CliRunner().invoke(app, [*arguments, "--json"])
        if shown.exception is not None and not isinstance(shown.exception, SystemExit):
            raise shown.exception
        return json.loads(shown.output)

    record = asyncio.run(prepare(first))
    made = helio("backup", "create", file, "--store", first)
    assert made["instance_id"] == record.instance_id
    assert helio("backup", "verify", file, "--store", first)["missing_ledgers"] == []
    helio("backup", "restore", file, "--to", second)
    assert not (Path(second) / "port").exists(), "the cluster's first start chooses it"
    with pytest.raises(ConflictError):
        helio("backup", "restore", file, "--to", second)
    assert helio("metadata", "migrate", "--from", second, "--to", third)["nodes"] == made["nodes"]
    assert helio("backup", "accept", "--store", third) == {"accepted": True}
    assert helio("backup", "accept", "--store", third) == {"accepted": False}
    with pytest.raises(BadRequestError):
        helio("metadata", "migrate", "--from", third, "--to", third)
    with pytest.raises(BadRequestError):
        helio("backup", "create", file)


async def test_a_long_chain_comes_back_with_its_pieces(
    source: MemoryStore, target: MemoryStore, tmp_path: Path
) -> None:
    rows = [LedgerInfo(number, 3, 1_000, 1_700_000_000_000 + number) for number in range(5 * TAIL_LEDGERS_MAX)]
    record, pieces = fold(TopicRecord("persistent://public/default/orders", ledgers=tuple(rows)))
    assert pieces
    path = paths.topic("public", "default", "orders")
    await source.create(path, codec.encode(record), parents=True)
    for number, piece in pieces.items():
        await source.create(paths.chain_piece(path, number), codec.encode(piece))
    await snapshot(source, tmp_path / "b")
    await restore(tmp_path / "b", target)
    restored = (await read(target, path, TopicRecord)).record
    found = ledgers_after(restored, -1, partial(read_piece, target, path))
    assert [ledger async for ledger in found] == rows
