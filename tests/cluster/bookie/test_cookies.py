"""A bookie and the disks that it knows: cookies, and what follows from a loss."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.bookie import cookies
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.config import BookieConfig
from heliograph.actors.bookie.cookies import COOKIE_NAME, DRAFT_NAME, recognise
from heliograph.actors.errors import BookieStorageError, CookieMismatchError
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer, MemoryStore
from heliograph.metadata.bookie_records import Cookie
from heliograph.metadata.errors import ConnectionLossError, NodeExistsError
from heliograph.metadata.model import LedgerState
from heliograph.metadata.recipes.ids import next_ledger_id
from tests.cluster.support.bookie_metadata import make_ledger, until
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config
from tests.unit.bookie.disks import FaultyDisk


async def stored_cookie(store: MemoryStore) -> Cookie:
    """The cookie of b1 in metadata."""
    found = (await cookies.stored_cookie(store, "b1")).cookie
    assert found is not None
    return found


class TestCookies:
    async def test_a_second_start_finds_its_own(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        for _ in range(2):
            async with serving(small_config(tmp_path), store):
                pass
        stored = await stored_cookie(store)
        assert stored.start == 2
        own = codec.decode(Cookie, (tmp_path / "journal" / COOKIE_NAME).read_bytes())
        assert own == replace(stored, directory=stored.journal_directories[0])

    @pytest.mark.parametrize("lost", ["journal", "data"])
    async def test_an_empty_directory_is_refused_with_the_ways_out(self, tmp_path: Path, lost: str) -> None:  # I6
        store = MemoryServer().open_session()
        async with serving(small_config(tmp_path), store):
            pass
        shutil.rmtree(tmp_path / lost)
        with pytest.raises(CookieMismatchError, match=r"(?s)(1).*(2).*accept_storage_loss.*(3)") as caught:
            await Bookie(small_config(tmp_path), store).start()
        assert str(tmp_path / lost) in str(caught.value)

    async def test_another_bookies_disk_is_refused(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        async with serving(small_config(tmp_path), store):
            pass
        with pytest.raises(CookieMismatchError, match="bookie id is 'b1', this bookie's is 'b2'"):
            await Bookie(small_config(tmp_path, bookie_id="b2"), store).start()

    async def test_another_clusters_disk_is_refused(self, tmp_path: Path) -> None:
        async with serving(small_config(tmp_path), MemoryServer().open_session()):
            pass
        with pytest.raises(CookieMismatchError, match="instance id"):
            await Bookie(small_config(tmp_path), MemoryServer().open_session()).start()

    async def test_a_retired_bookie_does_not_come_back(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        async with serving(small_config(tmp_path), store):
            pass
        await store.delete(paths.bookie_cookie("b1"))
        with pytest.raises(CookieMismatchError, match="retired"):
            await Bookie(small_config(tmp_path), store).start()

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

    async def test_a_store_that_fails_between_the_steps_does_no_harm(self, tmp_path: Path) -> None:
        class LosesReplies(MemoryStore):
            lose = True

            async def create(self, path: str, value: bytes | None = b"", **options: bool) -> str:
                made = await super().create(path, value, **options)
                if self.lose and path == paths.bookie_cookie("b1"):
                    raise ConnectionLossError("after the write")
                return made

        server = MemoryServer()
        session = server.open_session()
        store = LosesReplies(server, session.session_id)
        with pytest.raises(ConnectionLossError):
            await Bookie(small_config(tmp_path), store).start()
        assert (tmp_path / "data" / DRAFT_NAME).exists()
        store.lose = False
        async with serving(small_config(tmp_path), store):
            assert not (tmp_path / "data" / DRAFT_NAME).exists()

    async def test_directories_may_be_moved(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        async with serving(small_config(tmp_path / "old"), store) as (_, peer):
            assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
        (tmp_path / "old").rename(tmp_path / "new")
        async with serving(small_config(tmp_path / "new"), store) as (_, peer):
            assert await peer.status(BookieOp.READ, 1, 0) is Status.OK

    def test_cookies_of_layout_1_are_read_and_replaced(self, tmp_path: Path) -> None:
        async def scenario(is_moved: bool) -> None:
            store = MemoryServer().open_session()
            home = tmp_path / str(is_moved)
            async with serving(small_config(home), store) as (_, peer):
                assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
            instance_id = (await stored_cookie(store)).instance_id
            old = Cookie("b1", instance_id, (str(home / "journal"),), (str(home / "data"),))
            await store.set(paths.bookie_cookie("b1"), codec.encode(old))
            for name in ("journal", "data"):
                (home / name / COOKIE_NAME).write_bytes(codec.encode(old))
            if is_moved:
                home = home.rename(tmp_path / "elsewhere")
            async with serving(small_config(home), store) as (_, peer):
                assert await peer.status(BookieOp.READ, 1, 0) is Status.OK
            new = await stored_cookie(store)
            assert (new.layout_version, new.start) == (2, 1)
            assert not new.journal_directories[0].startswith("/")

        asyncio.run(scenario(is_moved=False))
        asyncio.run(scenario(is_moved=True))

    async def test_an_old_copy_of_the_directories_is_refused(self, tmp_path: Path) -> None:  # I1, I4
        store = MemoryServer().open_session()
        async with serving(small_config(tmp_path / "a"), store):
            pass
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        async with serving(small_config(tmp_path / "a"), store) as (_, peer):
            assert (await peer.add(1, 0, b"after the copy"))[0].status is Status.OK
        with pytest.raises(CookieMismatchError, match=r"old copy.*of start 1, and the bookie was started 2 times"):
            await Bookie(small_config(tmp_path / "b"), store).start()
        await make_ledger(store, 1, ("b1", "b2"))
        async with serving(small_config(tmp_path / "b", accept_storage_loss=True), store) as (_, peer):
            assert await peer.status(BookieOp.READ, 1, 0) is Status.UNKNOWN_LEDGER_STATE  # I6
            assert (await peer.add(1, 1, b"late"))[0].status is Status.FENCED

    async def test_a_bookie_stops_when_a_copy_of_its_directories_was_started(self, tmp_path: Path) -> None:
        server = MemoryServer()

        async def reopen() -> MemoryStore:
            return server.open_session()

        async def is_over() -> bool:
            return bookie.failure is not None

        async with serving(small_config(tmp_path / "a"), server.open_session(), reopen=reopen) as (bookie, _):
            shutil.copytree(tmp_path / "a", tmp_path / "b", ignore=shutil.ignore_patterns("LOCK"))
            async with serving(small_config(tmp_path / "b"), server.open_session()):
                await until(is_over)
            assert isinstance(bookie.failure, CookieMismatchError)
            assert "was started elsewhere" in str(bookie.failure)

    async def test_metadata_of_an_earlier_start_is_accepted(self, tmp_path: Path) -> None:
        """Metadata that was restored from a backup has an earlier start."""
        store = MemoryServer().open_session()
        async with serving(small_config(tmp_path), store):
            backup, _ = await store.get(paths.bookie_cookie("b1"))
        for _ in range(3):
            async with serving(small_config(tmp_path), store):
                own = await stored_cookie(store)
        await store.set(paths.bookie_cookie("b1"), backup)
        await recognise(store, own)
        async with serving(small_config(tmp_path), store):
            assert (await stored_cookie(store)).start == 5

    async def test_a_directory_of_the_other_role_is_named(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        async with serving(small_config(tmp_path), store):
            pass
        swapped = small_config(
            tmp_path, journal_directories=(tmp_path / "data",), data_directories=(tmp_path / "journal",)
        )
        with pytest.raises(CookieMismatchError, match=r"/data is a data directory .*its role differs"):
            await Bookie(swapped, store).start()


def wide(home: Path, journals: int, data: int, **changes: Any) -> BookieConfig:
    """A bookie with several directories of each kind."""
    return small_config(
        home,
        journal_directories=tuple(home / f"journal{number}" for number in range(journals)),
        data_directories=tuple(home / f"data{number}" for number in range(data)),
        **changes,
    )


class TestDirectories:
    """Several directories of each kind, and new ones."""

    LEDGERS = range(1, 7)

    async def new_ids(self, store: MemoryStore) -> None:
        with contextlib.suppress(NodeExistsError):
            await store.create(paths.LEDGER_IDS)
        while await next_ledger_id(store) < self.LEDGERS[-1]:
            pass

    async def check(self, peer: BookiePeer) -> None:
        for ledger_id in self.LEDGERS:
            for entry_id in (0, 1):
                assert await peer.status(BookieOp.READ, ledger_id, entry_id) is Status.OK, (ledger_id, entry_id)
            assert await peer.status(BookieOp.READ, ledger_id, 2) is Status.NO_ENTRY
        assert (await peer.add(2, 2, b"late"))[0].status is Status.FENCED  # I4

    async def filled(self, home: Path, store: MemoryStore) -> None:
        async with serving(wide(home, 1, 1), store) as (bookie, peer):
            for ledger_id in self.LEDGERS:
                await make_ledger(store, ledger_id, ("b1", "b2"))
                assert (await peer.add(ledger_id, 0, b"x"))[0].status is Status.OK
            await bookie.checkpoint()
            for ledger_id in self.LEDGERS:
                assert (await peer.add(ledger_id, 1, b"in the journal"))[0].status is Status.OK
            await peer.status(BookieOp.READ_LAC, 2, flags=Flag.FENCE)

    async def test_new_directories_join_and_nothing_is_denied(self, tmp_path: Path) -> None:  # I4, I6
        store = MemoryServer().open_session()
        await self.new_ids(store)
        await self.filled(tmp_path, store)
        for journals, data in ((2, 2), (2, 3), (3, 3)):
            for _ in range(2):
                async with serving(wide(tmp_path, journals, data), store) as (bookie, peer):
                    await self.check(peer)
                    for ledger_id in range(7, 13):
                        assert (await peer.add(ledger_id, 0, b"new"))[0].status is Status.OK
                        assert await peer.status(BookieOp.READ, ledger_id, 0) is Status.OK
                    await bookie.checkpoint()
        assert (await stored_cookie(store)).routes == ((0, 1), (7, 3))
        assert list((tmp_path / "data2").glob("*.log"))
        assert list((tmp_path / "journal2").glob("*.journal"))

    async def test_the_order_of_the_configuration_does_not_count(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        await self.new_ids(store)
        await self.filled(tmp_path, store)
        config = wide(tmp_path, 3, 3)
        for _ in range(3):
            config = small_config(
                tmp_path,
                journal_directories=config.journal_directories[::-1],
                data_directories=(*config.data_directories[1:], config.data_directories[0]),
            )
            async with serving(config, store) as (_, peer):
                await self.check(peer)

    def test_a_join_may_be_cut_short_anywhere(self, tmp_path: Path) -> None:
        """One failing operation after the other while directories join; the next start goes through."""

        async def scenario(home: Path, countdown: int) -> bool:
            store = MemoryServer().open_session()
            await self.new_ids(store)
            await self.filled(home, store)
            disk = FaultyDisk(countdown, errno.EIO)
            bookie = Bookie(wide(home, 2, 2), store, disk=disk)
            with contextlib.suppress(BookieStorageError):
                await bookie.start()
            disk.countdown = 0  # nothing fails at the stop
            await bookie.stop()
            for _ in range(2):
                async with serving(wide(home, 2, 2), store) as (_, peer):
                    await self.check(peer)
            return bool(disk.failed)

        assert all(asyncio.run(scenario(tmp_path / str(countdown), countdown)) for countdown in range(1, 30, 2))

    async def test_a_lost_directory_among_several_is_named_and_others_do_not_take_its_place(
        self, tmp_path: Path
    ) -> None:
        store = MemoryServer().open_session()
        await self.new_ids(store)
        async with serving(wide(tmp_path, 2, 2), store):
            pass
        shutil.rmtree(tmp_path / "data1")
        with pytest.raises(CookieMismatchError, match=r"misses data directory 2 of 2 .*data1.* is empty now"):
            await Bookie(wide(tmp_path, 2, 3), store).start()
        with pytest.raises(CookieMismatchError, match=r"misses journal directory 2 of 2 .*not configured any more"):
            await Bookie(wide(tmp_path, 1, 2), store).start()
        async with serving(wide(tmp_path, 2, 2, accept_storage_loss=True), store):
            pass
        async with serving(wide(tmp_path, 2, 2), store):
            pass

    async def test_a_directory_that_was_replaced_is_refused_when_it_comes_back(self, tmp_path: Path) -> None:  # I4
        store = MemoryServer().open_session()
        async with serving(wide(tmp_path, 1, 2), store):
            pass
        (tmp_path / "data1").rename(tmp_path / "old")
        async with serving(wide(tmp_path, 1, 2, accept_storage_loss=True), store):
            pass
        shutil.rmtree(tmp_path / "data1")
        (tmp_path / "old").rename(tmp_path / "data1")
        with pytest.raises(CookieMismatchError, match="it was replaced"):
            await Bookie(wide(tmp_path, 1, 2), store).start()

    async def test_files_without_a_cookie_do_not_join(self, tmp_path: Path) -> None:
        store = MemoryServer().open_session()
        async with serving(wide(tmp_path, 1, 2), store):
            pass
        async with serving(small_config(tmp_path / "other", bookie_id="b2"), store):
            pass
        (tmp_path / "other" / "data" / COOKIE_NAME).unlink()
        (tmp_path / "other" / "data").rename(tmp_path / "data2")
        with pytest.raises(CookieMismatchError, match=r"data2 has no cookie, and holds files"):
            await Bookie(wide(tmp_path, 1, 3), store).start()


class TestLimbo:
    async def test_after_an_accepted_loss_no_becomes_unknown_and_open_ledgers_are_fenced(
        self, tmp_path: Path
    ) -> None:  # I6
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
                    status = await peer.status(BookieOp.READ_LAC, ledger_id)
                    assert status is (Status.UNKNOWN_LEDGER_STATE if accept else Status.OK)
                assert (await peer.add(2, 9, b"again", flags=Flag.RECOVERY))[0].status is Status.OK
                assert (await peer.add(3, 9, b"again"))[0].status is Status.OK, "it may join the writer's list again"

    async def test_a_ledger_whose_record_cannot_be_read_is_in_limbo_too(self, tmp_path: Path) -> None:  # I4, I6
        store = MemoryServer().open_session()
        await make_ledger(store, 1, ("b1", "b2"))
        async with serving(small_config(tmp_path), store) as (_, peer):
            assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
        await store.set(paths.ledger(1), b"from a newer version")
        shutil.rmtree(tmp_path / "data")
        async with serving(small_config(tmp_path, accept_storage_loss=True), store) as (_, peer):
            assert await peer.status(BookieOp.READ, 1, 9) is Status.UNKNOWN_LEDGER_STATE
            assert (await peer.add(1, 1, b"late"))[0].status is Status.FENCED

    async def test_no_fence_from_before_a_loss_is_forgotten(self, tmp_path: Path) -> None:  # I4
        store = MemoryServer().open_session()
        await store.create(paths.LEDGER_IDS)
        for _ in range(4):
            await next_ledger_id(store)
        await make_ledger(store, 1, ("b1", "b2"), state=LedgerState.CLOSED)
        await make_ledger(store, 2, ("b3", "b2"), state=LedgerState.CLOSED)  # its place was given to another
        await make_ledger(store, 3, ("b1", "b2"), ("b3", "b2"))
        config = small_config(tmp_path)
        async with serving(config, store) as (bookie, peer):
            for ledger_id in (1, 2, 4):  # the last was deleted since
                assert await peer.status(BookieOp.READ_LAC, ledger_id, flags=Flag.FENCE) in (
                    Status.OK,
                    Status.NO_LEDGER,
                )
        shutil.rmtree(tmp_path / "journal")
        shutil.rmtree(tmp_path / "data")
        for accepted in (True, False):
            config = small_config(tmp_path, accept_storage_loss=accepted)
            async with serving(config, store) as (bookie, peer):
                for ledger_id in (1, 2, 4):
                    assert (await peer.add(ledger_id, 9, b"late"))[0].status is Status.FENCED
                    assert await peer.status(BookieOp.READ, ledger_id, 0) is Status.UNKNOWN_LEDGER_STATE  # I6
                assert (await peer.add(2, 9, b"a copy", flags=Flag.RECOVERY))[0].status is Status.OK
                assert (await peer.add(3, 9, b"again"))[0].status is Status.OK, "no recovery of it has begun"
                assert (await peer.add(5, 0, b"new"))[0].status is Status.OK
                await bookie.checkpoint()

    async def check(self, peer: BookiePeer) -> None:
        assert await peer.status(BookieOp.READ, 1, 0) is Status.OK
        assert await peer.status(BookieOp.READ, 1, 77) is Status.UNKNOWN_LEDGER_STATE
        for ledger_id in (2, 3):
            assert await peer.status(BookieOp.READ, ledger_id, 0) is Status.UNKNOWN_LEDGER_STATE
        assert await peer.status(BookieOp.READ, 4, 0) is Status.NO_LEDGER, "never was on this bookie"
        assert (await peer.add(1, 9, b"late"))[0].status is Status.FENCED  # I4

    async def test_a_damaged_journal_can_be_given_up(self, tmp_path: Path) -> None:
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
            assert await peer.status(BookieOp.READ, 1, 4) is Status.UNKNOWN_LEDGER_STATE  # I6
            assert (await peer.add(1, 9, b"late"))[0].status is Status.FENCED
