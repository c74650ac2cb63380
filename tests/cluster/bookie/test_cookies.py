"""A bookie and the disks that it knows: cookies, and what follows from a loss."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import shutil
from pathlib import Path

import pytest

from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.cookies import COOKIE_NAME, DRAFT_NAME
from heliograph.actors.errors import BookieStorageError, CookieMismatchError
from heliograph.actors.wire.messages import BookieOp, Flag, Status
from heliograph.metadata import paths
from heliograph.metadata.backends.memory.store import MemoryServer, MemoryStore
from heliograph.metadata.errors import ConnectionLossError
from heliograph.metadata.model import LedgerState
from heliograph.metadata.recipes.ids import next_ledger_id
from tests.cluster.support.bookie_metadata import make_ledger
from tests.cluster.support.bookie_peer import BookiePeer, serving, small_config
from tests.unit.bookie.disks import FaultyDisk


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

            async def create(self, path: str, value: bytes | None = b"", **options: bool) -> str:
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
                        status = await peer.status(BookieOp.READ_LAC, ledger_id)
                        assert status is (Status.UNKNOWN_LEDGER_STATE if accept else Status.OK)
                    assert (await peer.add(2, 9, b"again", flags=Flag.RECOVERY))[0].status is Status.OK
                    assert (await peer.add(3, 9, b"again"))[0].status is Status.OK, (
                        "it may join the writer's list again"
                    )

        asyncio.run(scenario())

    def test_a_ledger_whose_record_cannot_be_read_is_in_limbo_too(self, tmp_path: Path) -> None:  # I4, I6
        async def scenario() -> None:
            store = MemoryServer().open_session()
            await make_ledger(store, 1, ("b1", "b2"))
            async with serving(small_config(tmp_path), store) as (_, peer):
                assert (await peer.add(1, 0, b"x"))[0].status is Status.OK
            await store.set(paths.ledger(1), b"from a newer version")
            shutil.rmtree(tmp_path / "data")
            async with serving(small_config(tmp_path, accept_storage_loss=True), store) as (_, peer):
                assert await peer.status(BookieOp.READ, 1, 9) is Status.UNKNOWN_LEDGER_STATE
                assert (await peer.add(1, 1, b"late"))[0].status is Status.FENCED

        asyncio.run(scenario())

    def test_no_fence_from_before_a_loss_is_forgotten(self, tmp_path: Path) -> None:  # I4
        async def scenario() -> None:
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

        asyncio.run(scenario())

    async def check(self, peer: BookiePeer) -> None:
        assert await peer.status(BookieOp.READ, 1, 0) is Status.OK
        assert await peer.status(BookieOp.READ, 1, 77) is Status.UNKNOWN_LEDGER_STATE
        for ledger_id in (2, 3):
            assert await peer.status(BookieOp.READ, ledger_id, 0) is Status.UNKNOWN_LEDGER_STATE
        assert await peer.status(BookieOp.READ, 4, 0) is Status.NO_LEDGER, "never was on this bookie"
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
                assert await peer.status(BookieOp.READ, 1, 4) is Status.UNKNOWN_LEDGER_STATE  # I6
                assert (await peer.add(1, 9, b"late"))[0].status is Status.FENCED

        asyncio.run(scenario())
