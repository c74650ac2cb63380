"""A bookie is found in metadata for as long as it serves."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from heliograph.actors.bookie.disk.disk import RealDisk
from heliograph.actors.bookie.disk.monitor import DiskMonitor, DiskUsage
from heliograph.actors.bookie.registration import Registrar
from heliograph.actors.bookie.server import kept_port
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import BookieRegistration
from heliograph.metadata.store import Create, Delete, Operation, Stat
from tests.cluster.support.bookie_metadata import registration, until
from tests.cluster.support.bookie_peer import serving, small_config


class Refuses(MemoryStore):
    """Refuses one operation of a kind."""

    refused: type[Operation] | None = None

    async def multi(self, operations: Sequence[Operation]) -> list[str | Stat | None]:
        if self.refused is not None and type(operations[0]) is self.refused:
            self.refused = None
            raise ConnectionLossError("not now")
        return await super().multi(operations)


class TestRegistration:
    async def test_it_is_found_while_it_serves(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        path = paths.bookie_available("b1")
        async with serving(small_config(tmp_path, rack="r7"), store) as (bookie, _):
            found = await registration(store, path)
            assert found is not None
            assert (found.address, found.rack) == (bookie.address, "r7")
            assert found.total_bytes > found.free_bytes > 0
            stat = await store.exists(path)
            assert stat is not None
            assert stat.ephemeral_owner == store.session_id
        assert await registration(store, path) is None

    async def test_a_bookie_that_starts_again_takes_its_port_again_if_that_is_free(self, tmp_path: Path) -> None:
        async def address() -> str:
            async with serving(small_config(tmp_path)) as (bookie, _):
                return bookie.address

        first = await address()
        assert await address() == first
        host, _, port = first.rpartition(":")
        with socket.create_server((host, int(port))):
            second = await address()
            assert second != first
        assert await address() == second
        for damaged in (b"", b"x", b"70000"):
            (kept,) = tmp_path.rglob(kept_port.FILE_NAME)
            kept.write_bytes(damaged)
            assert await address()

    async def test_a_lost_session_is_replaced(self, tmp_path: Path) -> None:
        server = MemoryServer()
        store = server.open_session()
        attempts = 0

        async def reopen() -> MemoryStore:
            nonlocal attempts
            attempts += 1
            if attempts == 1:
                raise ConnectionLossError("not yet")
            return server.open_session()

        async with serving(small_config(tmp_path), store, reopen=reopen) as (bookie, peer):
            server.expire_session(store.session_id)
            watcher = server.open_session()

            async def is_back() -> bool:
                return await registration(watcher, paths.bookie_available("b1")) is not None

            await until(is_back)
            assert bookie.statistics()["is_registered"]
            assert (await peer.add(1, 0, b"x"))[0].status is Status.OK

    async def test_entries_are_taken_in_between_two_sessions(self, tmp_path: Path) -> None:
        """A silent store proves nothing: the lock of the disk and fences keep the bookie's entries right."""
        server = MemoryServer()
        store, observer = server.open_session(), server.open_session()
        may_reopen = asyncio.Event()

        async def reopen() -> MemoryStore:
            await may_reopen.wait()
            return server.open_session()

        async with serving(small_config(tmp_path), store, reopen=reopen) as (bookie, peer):
            assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
            server.suspend_session(store.session_id)
            assert (await peer.add(1, 1, b"x"))[0].status is Status.OK
            server.resume_session(store.session_id)
            server.expire_session(store.session_id)
            assert (await peer.add(1, 2, b"x"))[0].status is Status.OK
            assert await peer.status(BookieOp.READ, 1, 2) is Status.OK
            assert (await peer.add(2, 0, b"x", flags=Flag.RECOVERY))[0].status is Status.OK
            assert await peer.status(BookieOp.READ, 1, 0, flags=Flag.FENCE) is Status.OK
            assert (await peer.add(1, 3, b"x"))[0].status is Status.FENCED  # I4
            may_reopen.set()

            async def is_back() -> bool:
                return await registration(observer, paths.bookie_available("b1")) is not None

            await until(is_back)
            assert bookie.statistics()["is_registered"]

    async def test_a_new_life_ends_the_session_of_the_last(self, tmp_path: Path) -> None:
        server = MemoryServer()
        old, new = server.open_session(), server.open_session()
        record = BookieRegistration("b1", "gone:1", session_token=old.session_token)
        path = paths.bookie_available("b1")
        await old.create(path, codec.encode(record), ephemeral=True, parents=True)
        async with serving(small_config(tmp_path), new) as (bookie, _):
            found = await registration(new, path)
            assert found is not None
            assert found.address == bookie.address
        assert old.state.value == "lost"

    async def test_a_full_disk_makes_it_read_only_and_room_makes_it_writable(self, tmp_path: Path) -> None:
        class ShrinkingDisk(RealDisk):
            free = 50 << 30

            def space(self, directory: Path) -> tuple[int, int]:
                return self.free, 100 << 30

        store, disk = MemoryServer().open_session(), ShrinkingDisk()
        config = small_config(tmp_path, space_check_ms=5)
        available, readonly = paths.bookie_available("b1"), paths.bookie_readonly("b1")

        async def is_only(path: str, other: str) -> bool:
            assert await store.exists(path) or await store.exists(other), "never invisible"
            return await store.exists(path) is not None and await store.exists(other) is None

        async def says(path: str, *, is_full: bool, is_nearly_full: bool) -> bool:
            found = await registration(store, path)
            return found is not None and (found.is_full, found.is_nearly_full) == (is_full, is_nearly_full)

        async with serving(config, store, disk=disk) as (_, peer):
            disk.free = 12 << 30
            await until(lambda: says(available, is_full=False, is_nearly_full=True))
            disk.free = 2 << 30
            await until(lambda: is_only(readonly, available))
            await until(lambda: says(readonly, is_full=True, is_nearly_full=True))
            assert (await peer.add(1, 0, b"x"))[0].status is Status.READ_ONLY
            assert (await peer.add(1, 0, b"x", flags=Flag.RECOVERY))[0].status is Status.OK
            disk.free = 1 << 20

            async def takes_no_recovery() -> bool:
                return (await peer.add(1, 0, b"x", flags=Flag.RECOVERY))[0].status is Status.READ_ONLY

            await until(takes_no_recovery)
            disk.free = 7 << 30
            await asyncio.sleep(0.05)
            assert await is_only(readonly, available), "between the marks nothing changes"
            disk.free = 20 << 30
            await until(lambda: is_only(available, readonly))
            assert (await peer.add(1, 1, b"x"))[0].status is Status.OK

    def test_a_small_disk_keeps_a_reserve(self, tmp_path: Path) -> None:
        """A journal file and a flush of the write cache have room, whatever share of the disk they are."""
        config = small_config(tmp_path, headroom_bytes=0, recovery_headroom_bytes=0, write_cache_bytes=32 << 20)
        monitor, total = DiskMonitor(config), 200 << 20
        seen = []
        for free in (100, 60, 31, 36, 39, 41, 100):
            monitor.update([DiskUsage(total, total), DiskUsage(free << 20, total)])
            seen.append((monitor.is_full, monitor.is_nearly_full))
        assert config.reserve_bytes == (32 << 20) + (64 << 10)
        assert seen == [
            (False, False), (False, True), (True, True), (True, True), (True, True), (False, True), (False, False)
        ]  # fmt: skip

    @pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
    def test_a_disk_that_fills_for_real_refuses_in_time_and_goes_on(self, tmp_path: Path) -> None:
        mount = tmp_path / "disk"
        mount.mkdir()
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(mount)], check=False).returncode:
            pytest.skip("a tmpfs cannot be mounted here")

        async def scenario() -> None:
            store = MemoryServer().open_session()
            config = small_config(
                mount, space_check_ms=5, write_cache_bytes=24 << 20, recovery_headroom_bytes=0, headroom_bytes=0
            )
            async with serving(config, store) as (bookie, peer):
                filler = mount / "filler"
                filler.write_bytes(bytes(30 << 20))
                accepted = 0
                async with asyncio.timeout(60):
                    for entry_id in range(1000):
                        status = (await peer.add(1, entry_id, bytes(256 << 10)))[0].status
                        if status is Status.READ_ONLY:
                            break
                        accepted += status is Status.OK
                        await bookie.checkpoint()
                assert accepted
                assert bookie.failure is None, "refused before a write failed"
                await bookie.checkpoint()
                for entry_id in range(accepted):
                    assert await peer.status(BookieOp.READ, 1, entry_id) is Status.OK  # I1
                filler.unlink()

                async def is_writable() -> bool:
                    return await store.exists(paths.bookie_available("b1")) is not None

                await until(is_writable)
                assert (await peer.add(2, 0, b"x"))[0].status is Status.OK

        try:
            asyncio.run(scenario())
        finally:
            subprocess.run(["umount", str(mount)], check=True)

    @pytest.mark.parametrize("verb", [Create, Delete])
    async def test_a_change_of_lists_that_the_store_refused_is_made_later(
        self, tmp_path: Path, verb: type[Operation]
    ) -> None:
        class Disk(RealDisk):
            free = 50 << 30

            def space(self, directory: Path) -> tuple[int, int]:
                return self.free, 100 << 30

        server, disk = MemoryServer(), Disk()
        store = Refuses(server, server.open_session().session_id)
        config = small_config(tmp_path, space_check_ms=5)
        available, readonly = paths.bookie_available("b1"), paths.bookie_readonly("b1")

        async def is_only(path: str, other: str) -> bool:
            return await store.exists(path) is not None and await store.exists(other) is None

        async with serving(config, store, disk=disk):
            store.refused = verb
            disk.free = 2 << 30
            await until(lambda: is_only(readonly, available))
            store.refused = verb
            disk.free = 50 << 30
            await until(lambda: is_only(available, readonly))
            assert store.refused is None

    async def test_a_change_of_lists_that_was_cut_short_is_taken_back(self, tmp_path: Path) -> None:
        server = MemoryServer()
        store = Refuses(server, server.open_session().session_id)
        available, readonly = paths.bookie_available("b1"), paths.bookie_readonly("b1")
        registrar = Registrar(store, BookieRegistration("b1", "h:1"))
        await registrar.register(is_read_only=False)
        store.refused = Delete
        with pytest.raises(ConnectionLossError):
            await registrar.move(is_read_only=True)
        assert await store.exists(available)
        assert await store.exists(readonly)
        store.refused = None
        await registrar.move(is_read_only=False)
        assert await store.exists(available)
        assert not await store.exists(readonly)

    async def test_the_free_space_in_metadata_is_renewed(self, tmp_path: Path) -> None:
        class Disk(RealDisk):
            free = 50 << 30

            def space(self, directory: Path) -> tuple[int, int]:
                return self.free, 100 << 30

        store, disk = MemoryServer().open_session(), Disk()
        config = small_config(tmp_path, space_check_ms=5, space_report_ms=5)

        async def says(free_bytes: int) -> bool:
            found = await registration(store, paths.bookie_available("b1"))
            return found is not None and found.free_bytes == free_bytes

        async with serving(config, store, disk=disk) as (bookie, _):
            await until(lambda: says(50 << 30))
            disk.free = 40 << 30
            await until(lambda: says(40 << 30))
            found = await registration(store, paths.bookie_available("b1"))
            assert found is not None
            assert (found.address, found.session_token) == (bookie.address, store.session_token)
