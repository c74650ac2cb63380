"""A bookie and the metadata store: registration, cookies, limbo after a loss, garbage collection, read-only mode."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from actors.bookie.bookie import Bookie
from actors.bookie.config import BookieConfig
from actors.bookie.cookies import COOKIE_NAME, DRAFT_NAME
from actors.bookie.disk import RealDisk
from actors.bookie.entry_log import log_ids
from actors.errors import BookieStorageError, CookieMismatchError, DiskPoisonedError
from actors.wire.messages import Flag, Op, Status
from metadata import codec, paths
from metadata.errors import ConnectionLossError, NoNodeError
from metadata.memory import MemoryServer, MemoryStore
from metadata.model import BookieRegistration, LedgerMetadata, LedgerState, Segment
from tests.cluster.bookie_peer import BookiePeer, serving, small_config
from tests.unit.bookie_disks import FaultyDisk


async def make_ledger(
    store: MemoryStore, ledger_id: int, *lists: tuple[str, ...], state: LedgerState = LedgerState.OPEN
) -> None:
    segments = tuple(Segment(10 * n, bookies) for n, bookies in enumerate(lists))
    record = LedgerMetadata(ledger_id, 2, 2, 1, segments, state)
    await store.create(paths.ledger(ledger_id), codec.encode(record), parents=True)


async def registration(store: MemoryStore, path: str) -> BookieRegistration | None:
    try:
        value, _ = await store.get(path)
    except NoNodeError:
        return None
    return codec.decode(BookieRegistration, value)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(10):
        while not await condition():  # noqa: ASYNC110 - it looks at the store
            await asyncio.sleep(0.005)


class TestRegistration:
    def test_it_is_found_while_it_serves(self, tmp_path: Path) -> None:
        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_a_lost_session_is_replaced(self, tmp_path: Path) -> None:
        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_nothing_is_taken_in_between_two_sessions(self, tmp_path: Path) -> None:  # I13
        async def scenario() -> None:
            server = MemoryServer()
            store, observer = server.open_session(), server.open_session()
            may_reopen = asyncio.Event()

            async def reopen() -> MemoryStore:
                await may_reopen.wait()
                return server.open_session()

            async with serving(small_config(tmp_path), store, reopen=reopen) as (_, peer):
                assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
                server.suspend_session(store.session_id)  # the ephemeral stands: whoever finds it may write here
                assert (await peer.add(1, 1, b"x"))[0].status is Status.OK
                server.resume_session(store.session_id)
                refused: list[bool] = []
                await observer.exists(
                    paths.bookie_available("b1"), lambda _: refused.append(store.state.value == "lost")
                )
                server.expire_session(store.session_id)
                assert refused == [True]  # the owner knew first
                for flags in (Flag.NONE, Flag.RECOVERY):
                    assert (await peer.add(1, 2, b"x", flags=flags))[0].status is Status.READ_ONLY
                assert await peer.status(Op.READ, 1, 1) is Status.OK
                may_reopen.set()

                async def is_back() -> bool:
                    return await registration(observer, paths.bookie_available("b1")) is not None

                await until(is_back)
                assert (await peer.add(1, 2, b"x"))[0].status is Status.OK

        asyncio.run(scenario())

    def test_a_new_life_ends_the_session_of_the_last(self, tmp_path: Path) -> None:
        async def scenario() -> None:
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

        asyncio.run(scenario())

    def test_a_full_disk_makes_it_read_only_and_room_makes_it_writable(self, tmp_path: Path) -> None:
        class ShrinkingDisk(RealDisk):
            free = 50 << 30

            def space(self, directory: Path) -> tuple[int, int]:
                return self.free, 100 << 30

        async def scenario() -> None:
            store, disk = MemoryServer().open_session(), ShrinkingDisk()
            config = small_config(tmp_path, space_check_ms=5)
            available, readonly = paths.bookie_available("b1"), paths.bookie_readonly("b1")

            async def is_only(path: str, other: str) -> bool:
                assert await store.exists(path) or await store.exists(other), "never invisible"
                return await store.exists(path) is not None and await store.exists(other) is None

            async with serving(config, store, disk=disk) as (_, peer):
                disk.free = 2 << 30
                await until(lambda: is_only(readonly, available))
                assert (await peer.add(1, 0, b"x"))[0].status is Status.READ_ONLY
                assert (await peer.add(1, 0, b"x", flags=Flag.RECOVERY))[0].status is Status.OK
                disk.free = 1 << 20
                await asyncio.sleep(0.05)
                assert (await peer.add(1, 1, b"x", flags=Flag.RECOVERY))[0].status is Status.READ_ONLY
                disk.free = 7 << 30
                await asyncio.sleep(0.05)
                assert await is_only(readonly, available), "between the marks nothing changes"
                disk.free = 20 << 30
                await until(lambda: is_only(available, readonly))
                assert (await peer.add(1, 1, b"x"))[0].status is Status.OK

        asyncio.run(scenario())

    def test_the_free_space_in_metadata_is_renewed(self, tmp_path: Path) -> None:
        class Disk(RealDisk):
            free = 50 << 30

            def space(self, directory: Path) -> tuple[int, int]:
                return self.free, 100 << 30

        async def scenario() -> None:
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

        asyncio.run(scenario())


class TestCookies:
    def test_a_second_start_finds_its_own(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            store = MemoryServer().open_session()
            for _ in range(2):
                async with serving(small_config(tmp_path), store):
                    pass
            assert (tmp_path / "journal" / COOKIE_NAME).read_bytes() == (await store.get(paths.bookie_cookie("b1")))[0]

        asyncio.run(scenario())

    @pytest.mark.parametrize("lost", ["journal", "data"])
    def test_an_empty_directory_is_refused_with_the_ways_out(self, tmp_path: Path, lost: str) -> None:  # I6
        async def scenario() -> None:
            store = MemoryServer().open_session()
            async with serving(small_config(tmp_path), store):
                pass
            shutil.rmtree(tmp_path / lost)
            with pytest.raises(CookieMismatchError, match=r"(?s)(1).*(2).*accept_storage_loss.*(3)") as caught:
                await Bookie(small_config(tmp_path), store).start()
            assert str(tmp_path / lost) in str(caught.value)

        asyncio.run(scenario())

    def test_another_bookies_disk_is_refused(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            store = MemoryServer().open_session()
            async with serving(small_config(tmp_path), store):
                pass
            with pytest.raises(CookieMismatchError, match="another bookie"):
                await Bookie(small_config(tmp_path, bookie_id="b2"), store).start()

        asyncio.run(scenario())

    def test_another_clusters_disk_is_refused(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            async with serving(small_config(tmp_path), MemoryServer().open_session()):
                pass
            with pytest.raises(CookieMismatchError, match="another bookie, cluster"):
                await Bookie(small_config(tmp_path), MemoryServer().open_session()).start()

        asyncio.run(scenario())

    def test_a_retired_bookie_does_not_come_back(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            store = MemoryServer().open_session()
            async with serving(small_config(tmp_path), store):
                pass
            await store.delete(paths.bookie_cookie("b1"))
            with pytest.raises(CookieMismatchError, match="retired"):
                await Bookie(small_config(tmp_path), store).start()

        asyncio.run(scenario())

    def test_a_first_start_may_be_cut_short_anywhere(self, tmp_path: Path) -> None:
        """One failing operation after the other during the very first start; the next start goes through."""

        async def scenario(home: Path, countdown: int) -> bool:
            store = MemoryServer().open_session()
            disk = FaultyDisk(countdown, errno.EIO)
            bookie = Bookie(small_config(home), store, disk=disk)
            with contextlib.suppress(BookieStorageError):
                await bookie.start()
            await bookie.stop()
            async with serving(small_config(home), store) as (_, peer):
                assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
                assert not list(home.rglob(DRAFT_NAME))
            return bool(disk.failed)

        for countdown in range(1, 24):
            assert asyncio.run(scenario(tmp_path / str(countdown), countdown)), "there is more to fail"

    def test_a_store_that_fails_between_the_steps_does_no_harm(self, tmp_path: Path) -> None:
        class LosesReplies(MemoryStore):
            lose = True

            async def create(self, path: str, value: bytes = b"", **options: bool) -> str:
                made = await super().create(path, value, **options)
                if self.lose and path == paths.bookie_cookie("b1"):
                    raise ConnectionLossError("after the write")
                return made

        async def scenario() -> None:
            server = MemoryServer()
            session = server.open_session()
            store = LosesReplies(server, session.session_id)
            with pytest.raises(ConnectionLossError):
                await Bookie(small_config(tmp_path), store).start()
            assert (tmp_path / "data" / DRAFT_NAME).exists()
            store.lose = False
            async with serving(small_config(tmp_path), store):
                assert not (tmp_path / "data" / DRAFT_NAME).exists()

        asyncio.run(scenario())


class TestLimbo:
    def test_after_an_accepted_loss_no_becomes_unknown_and_open_ledgers_are_fenced(self, tmp_path: Path) -> None:  # I6
        async def scenario() -> None:
            store = MemoryServer().open_session()
            await make_ledger(store, 1, ("b1", "b2"))
            await make_ledger(store, 2, ("b1", "b2"), state=LedgerState.CLOSED)
            await make_ledger(store, 3, ("b1", "b2"), ("b3", "b2"))
            await make_ledger(store, 4, ("b3", "b2"))
            async with serving(small_config(tmp_path), store) as (bookie, peer):
                await asyncio.gather(*(peer.add(1, n, b"old") for n in range(5)))
                await bookie.checkpoint()
                assert (await peer.add(1, 5, b"in the journal only"))[0].status is Status.OK
            shutil.rmtree(tmp_path / "journal")
            for _ in range(2):  # limbo lasts over restarts, and the loss needs accepting once only
                accept = not (tmp_path / "journal").exists()
                config = small_config(tmp_path, accept_storage_loss=accept)
                async with serving(config, store) as (_, peer):
                    await self.check(peer)
                    for ledger_id in (2, 3):
                        status = await peer.status(Op.READ_LAC, ledger_id)
                        assert status is (Status.UNKNOWN_LEDGER_STATE if accept else Status.OK)
                    assert (await peer.add(2, 9, b"again", flags=Flag.RECOVERY))[0].status is Status.OK
                    assert (await peer.add(3, 9, b"anew"))[0].status is Status.OK, "it may join the writer's list anew"

        asyncio.run(scenario())

    async def check(self, peer: BookiePeer) -> None:
        assert await peer.status(Op.READ, 1, 0) is Status.OK
        assert await peer.status(Op.READ, 1, 77) is Status.UNKNOWN_LEDGER_STATE
        for ledger_id in (2, 3):
            assert await peer.status(Op.READ, ledger_id, 0) is Status.UNKNOWN_LEDGER_STATE
        assert await peer.status(Op.READ, 4, 0) is Status.NO_LEDGER, "never was on this bookie"
        assert (await peer.add(1, 9, b"late"))[0].status is Status.FENCED  # I4

    def test_a_damaged_journal_can_be_given_up(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            store = MemoryServer().open_session()
            await make_ledger(store, 1, ("b1", "b2"))
            async with serving(small_config(tmp_path), store) as (_, peer):
                for number in range(5):
                    await peer.add(1, number, b"x")
                crashed = shutil.copytree(tmp_path, tmp_path.parent / "crashed")
            shutil.rmtree(tmp_path)
            shutil.copytree(crashed, tmp_path, ignore=shutil.ignore_patterns("LOCK"))
            (path,) = (tmp_path / "journal").glob("*1.journal")
            content = bytearray(path.read_bytes())
            content[2 * 4096 + 50] ^= 1
            path.write_bytes(content)
            with pytest.raises(Exception, match="offset 8192"):
                await Bookie(small_config(tmp_path), store).start()
            async with serving(small_config(tmp_path, accept_storage_loss=True), store) as (_, peer):
                assert await peer.status(Op.READ, 1, 4) is Status.UNKNOWN_LEDGER_STATE  # I6
                assert (await peer.add(1, 9, b"late"))[0].status is Status.FENCED

        asyncio.run(scenario())


class TestGarbage:
    def test_ledgers_that_metadata_dropped_go_and_their_fences_stay(self, tmp_path: Path) -> None:  # I4, I14
        async def scenario() -> None:
            store = MemoryServer().open_session()
            for ledger_id in (1, 2):
                await make_ledger(store, ledger_id, ("b1", "b2"))
            async with serving(small_config(tmp_path), store) as (bookie, peer):
                for ledger_id in (1, 2):
                    for number in range(30):
                        await peer.add(ledger_id, number, bytes(1000))
                await peer.status(Op.READ_LAC, 1, flags=Flag.FENCE)
                await bookie.collect_garbage()
                assert bookie.statistics()["ledgers_deleted"] == 0
                await store.delete(paths.ledger(1))
                await bookie.collect_garbage()
                assert await peer.status(Op.READ, 1, 0) is Status.NO_LEDGER
                await bookie.checkpoint()  # its entries were in the write cache still
                assert await peer.status(Op.READ, 1, 0) is Status.NO_LEDGER
                assert await peer.status(Op.READ, 2, 0) is Status.OK
            async with serving(small_config(tmp_path), store) as (_, peer):
                for flags in (Flag.NONE, Flag.RECOVERY):
                    assert (await peer.add(1, 99, b"late", flags=flags))[0].status is Status.FENCED
                assert await peer.status(Op.READ, 1, 99, flags=Flag.FENCE) is Status.NO_LEDGER
                assert await peer.status(Op.READ, 2, 29) is Status.OK

        asyncio.run(scenario())

    @pytest.mark.parametrize("verb", ["children", "get"])
    def test_an_error_of_the_store_deletes_nothing(self, tmp_path: Path, verb: str) -> None:  # I14
        class Fails(MemoryStore):
            broken = False

            async def children(self, path: str, watcher: object = None) -> list[str]:
                if self.broken and verb == "children" and path.count("/") == 3:
                    raise ConnectionLossError("half way")
                return await super().children(path)

            async def get(self, path: str, watcher: object = None):  # type: ignore[no-untyped-def]
                if self.broken and verb == "get":
                    raise ConnectionLossError("at the direct read")
                return await super().get(path)

        async def scenario() -> None:
            server = MemoryServer()
            store = Fails(server, server.open_session().session_id)
            await make_ledger(store, 1, ("b1", "b2"))
            await make_ledger(store, 200_000, ("b1", "b2"))
            async with serving(small_config(tmp_path), store) as (bookie, peer):
                for ledger_id in (1, 200_000, 7):
                    await peer.add(ledger_id, 0, b"x")
                store.broken = True
                with pytest.raises(ConnectionLossError):
                    await bookie.collect_garbage()
                for ledger_id in (1, 200_000, 7):
                    assert await peer.status(Op.READ, ledger_id, 0) is Status.OK
                store.broken = False

        asyncio.run(scenario())

    def test_a_ledger_made_during_the_listing_is_kept(self, tmp_path: Path) -> None:  # I14
        class Lists(MemoryStore):
            on_children: Callable[[], Awaitable[None]] | None = None

            async def children(self, path: str, watcher: object = None) -> list[str]:
                names = await super().children(path)
                if self.on_children is not None and path == paths.LEDGERS:
                    await self.on_children()
                return names

        async def scenario() -> None:
            server = MemoryServer()
            store = Lists(server, server.open_session().session_id)
            async with serving(small_config(tmp_path), store) as (bookie, peer):

                async def make_and_add() -> None:
                    store.on_children = None
                    await make_ledger(store, 300_000_000, ("b1", "b2"))
                    await peer.add(300_000_000, 0, b"x")

                store.on_children = make_and_add
                await bookie.collect_garbage()
                assert await peer.status(Op.READ, 300_000_000, 0) is Status.OK

        asyncio.run(scenario())

    def test_logs_without_anything_live_are_removed_and_sparse_ones_compacted(self, tmp_path: Path) -> None:
        async def scenario() -> None:
            store = MemoryServer().open_session()
            for ledger_id in (1, 2):
                await make_ledger(store, ledger_id, ("b1", "b2"))
            config = small_config(tmp_path)
            async with serving(config, store) as (bookie, peer):
                await fill(bookie, peer, ledger_bytes={1: 400_000, 2: 30_000})
                before = stored_bytes(config)
                await store.delete(paths.ledger(1))
                await bookie.collect_garbage()
                statistics = bookie.statistics()
                assert statistics["logs_removed"] != 0
                assert statistics["logs_compacted"] != 0
                assert stored_bytes(config) < before / 4
                for number in range(30):
                    assert await peer.status(Op.READ, 2, number) is Status.OK
                await store.delete(paths.ledger(2))
                await bookie.collect_garbage()
                await bookie.collect_garbage()
            assert len(log_ids(RealDisk(), tmp_path / "data")) <= 2

        asyncio.run(scenario())

    def test_a_crash_anywhere_in_compaction_keeps_every_live_entry(self, tmp_path: Path) -> None:  # I1
        async def scenario(home: Path, countdown: int) -> bool:
            store = MemoryServer().open_session()
            for ledger_id in (1, 2):
                await make_ledger(store, ledger_id, ("b1", "b2"))
            disk = FaultyDisk(1 << 30)
            async with serving(small_config(home), store, disk=disk) as (bookie, peer):
                await fill(bookie, peer, ledger_bytes={1: 200_000, 2: 30_000})
                await store.delete(paths.ledger(1))
                disk.countdown = countdown
                try:
                    await bookie.collect_garbage()
                except DiskPoisonedError as error:
                    bookie.fail(error)
                except BookieStorageError:
                    await bookie.collect_garbage()
            async with serving(small_config(home), store) as (_, peer):
                for number in range(30):
                    assert await peer.status(Op.READ, 2, number) is Status.OK
            return bool(disk.failed)

        failed = [asyncio.run(scenario(tmp_path / str(n), n)) for n in range(1, 8)]
        assert failed[0]


async def fill(bookie: Bookie, peer: BookiePeer, ledger_bytes: dict[int, int]) -> None:
    """Thirty entries for each ledger, flushed in three parts."""
    for part in range(3):
        adds = [
            peer.add(ledger_id, number, bytes(size // 30))
            for ledger_id, size in ledger_bytes.items()
            for number in range(10 * part, 10 * part + 10)
        ]
        assert {answer.status for answer, _ in await asyncio.gather(*adds)} == {Status.OK}
        await bookie.checkpoint()


def stored_bytes(config: BookieConfig) -> int:
    return sum(path.stat().st_size for path in config.data_directories[0].glob("*.log"))
