"""The embedded metadata store and its disk: what is durable when, and which stores are not served."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Sequence
from pathlib import Path

import pytest
from rocksdict import Options, Rdict

from heliograph.base.errors import ResourceError
from heliograph.metadata.backends.embedded.server.nodes import Change
from heliograph.metadata.backends.embedded.server.record import STATE_KEY, encode_node, encode_state, node_key
from heliograph.metadata.backends.embedded.server.server import EmbeddedServer
from heliograph.metadata.backends.embedded.server.storage import TreeStorage
from heliograph.metadata.errors import ConnectionLossError, NodeExistsError, RecordError
from heliograph.metadata.store import EventType, WatchEvent
from heliograph.metadata.znode import Znode
from tests.cluster.metadata.embedded_servers import new_server, serving, session
from tests.waits import until


class SlowDisk:
    """A wrapper of a server's storage that delays its writes, or fails them."""

    def __init__(self, server: EmbeddedServer) -> None:
        storage = server._storage
        assert storage is not None
        self._write = storage.write
        self.open = threading.Event()
        self.open.set()
        self.broken = False
        storage.write = self.write  # type: ignore[method-assign]

    def write(self, records: Sequence[Change], index: Sequence[Change] = ()) -> None:
        self.open.wait(60)
        if self.broken:
            raise ResourceError("the disk is gone")
        self._write(records, index)


async def test_nothing_is_revealed_before_it_is_durable(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, session(server.address) as writer, session(server.address) as reader:
        disk = SlowDisk(server)
        seen: list[object] = []
        for path in ("/a", "/other"):
            await writer.create(path, b"old")
        await reader.get("/a", seen.append)
        disk.open.clear()

        async def noted(call: Awaitable[object]) -> None:
            try:
                seen.append(await call)
            except NodeExistsError as error:
                seen.append(type(error))

        write = asyncio.create_task(writer.set("/a", b"new"))
        await asyncio.sleep(0.05)
        held = [asyncio.create_task(noted(call)) for call in (reader.get("/a"), reader.create("/a"))]
        assert (await reader.get("/other"))[0] == b"old"  # what did not change is not held up
        await asyncio.sleep(0.05)
        assert seen == []
        assert not write.done()
        disk.open.set()
        stat = await write
        await asyncio.gather(*held)
        assert seen == [WatchEvent(EventType.CHANGED, "/a"), (b"new", stat), NodeExistsError]


async def test_a_failed_disk_stops_the_server_and_nothing_was_promised(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, session(server.address) as store:
        await store.create("/kept")
        disk = SlowDisk(server)
        disk.broken = True
        with pytest.raises(ConnectionLossError):
            await store.create("/lost")
        await asyncio.wait_for(server.failed.wait(), 60)
        assert isinstance(server.failure, ResourceError)
    async with serving(tmp_path) as server, session(server.address) as store:
        assert await store.children("/") == ["kept"]


async def test_one_sync_carries_many_transactions(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, session(server.address) as store:
        await asyncio.gather(*(store.create(f"/n{number}") for number in range(500)))
        statistics = server.statistics()
        assert statistics["transactions"] == 501
        assert statistics["commits"] < 50
        assert statistics["held_bytes"] == 0


async def test_reading_pauses_while_too_much_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("heliograph.metadata.backends.embedded.server.service.HELD_BYTES_MAX", 100_000)  # I15
    async with serving(tmp_path) as server, session(server.address) as store:
        disk = SlowDisk(server)
        disk.open.clear()
        writes = [asyncio.create_task(store.create(f"/n{number}", bytes(10_000))) for number in range(200)]
        service = server._service
        assert service is not None
        await until(lambda: any(connection.is_held_back for connection in service.connections))
        await asyncio.sleep(0.05)
        assert service.committer.held_bytes < 1_000_000
        disk.open.set()
        await asyncio.gather(*writes)
        assert not any(connection.is_held_back for connection in service.connections)


async def test_a_directory_has_one_server_and_a_port_one_owner(tmp_path: Path) -> None:
    async with serving(tmp_path / "one") as server:
        port = int(server.address.split(":")[1])
        with pytest.raises(ResourceError, match="another metadata server uses"):
            await new_server(tmp_path / "one").start()
        with pytest.raises(ResourceError, match="taken") as raised:
            await new_server(tmp_path / "two", port).start()
        assert raised.value.field == "port"
        with pytest.raises(ResourceError):
            await new_server(tmp_path / "three", host="no.such.host.invalid", secret="s" * 16).start()
    async with serving(tmp_path / "one") as server:
        assert server.address == f"127.0.0.1:{port}"
    with socket.create_server(("127.0.0.1", port)), pytest.raises(ResourceError, match="taken"):
        await new_server(tmp_path / "one").start()
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError):
        await new_server(tmp_path / "file").start()
    (tmp_path / "one" / "port").write_text("nonsense")
    with pytest.raises(ResourceError):
        await new_server(tmp_path / "one").start()


def opened(directory: Path) -> Rdict:
    return Rdict(str(directory / "store"), Options(raw_mode=True))


async def test_a_damaged_record_is_neither_served_nor_taken_for_missing(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, session(server.address) as store:
        await store.create("/a", b"value")
        await store.create("/b", b"value")
    database = opened(tmp_path)
    value = database[b"n/a"]
    assert isinstance(value, bytes)
    database[b"n/a"] = value[:-1] + b"?"
    database.close()
    async with serving(tmp_path) as server, session(server.address) as store:
        for call in (store.get("/a"), store.exists("/a"), store.create("/a"), store.delete("/a"), store.create("/a/x")):
            with pytest.raises(RecordError, match="checksum"):
                await call
        assert (await store.get("/b"))[0] == b"value"
    database = opened(tmp_path)
    database.drop_column_family("index")
    database.close()
    with pytest.raises(RecordError, match="checksum"):  # a start that reads all nodes anyway does not go on without one
        await new_server(tmp_path).start()


def test_a_store_that_contradicts_itself_is_not_served(tmp_path: Path) -> None:
    def records(path: str, owner: int, zxid: int) -> list[Change]:
        key = node_key(path)
        return [(key, encode_node(key, Znode(b"", 1, 1, 1, 0, 0, owner, 0, 0))), (STATE_KEY, encode_state(zxid))]

    cases: list[tuple[list[Change], str]] = [
        ([(b"unknown", b"")], "unknown record"),
        (records("/a/b", 0, 1), "parent of /a/b is missing"),
        (records("/a", 5, 1), "session of /a is missing"),
        (records("/a", 0, 0), "newer than"),
    ]
    for number, (changes, message) in enumerate(cases):
        storage = TreeStorage(tmp_path / str(number))
        storage.write(changes)
        with pytest.raises(RecordError, match=message):
            storage.load()
        storage.close()
