"""A bookie lost for good: its ledgers get Qw copies again. Real bookies and disks, no Ray."""

from __future__ import annotations

import asyncio
import itertools
import shutil
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.service import AuditorService
from heliograph.actors.bookie.bookie import Bookie
from heliograph.actors.bookie.store.entry_log import log_path
from heliograph.actors.errors import CookieMismatchError
from heliograph.actors.ledger.driver import LedgerClient
from heliograph.actors.ledger.schedule import WriteSchedule
from heliograph.actors.wire.entry import decode_entry
from heliograph.actors.wire.messages import BookieOp, Status
from heliograph.metadata import paths
from heliograph.metadata.connect import connect_store
from heliograph.metadata.model import LedgerMetadata
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.store import MetadataStore
from tests.cluster.support.bookie_peer import BookiePeer, small_config
from tests.cluster.support.ledger_cluster import quick, until

_numbers = itertools.count()
CONFIG = AuditorConfig(
    lost_bookie_delay_ms=200, audit_interval_ms=500, open_ledger_grace_ms=300, worker_poll_ms=50, task_retry_ms=100
)
REPAIR_SECONDS = 60.0


class Stage:
    """Bookies, a ledger client and an auditor in one loop."""

    def __init__(self, url: str, directory: Path, store: MetadataStore, ledgers: LedgerClient) -> None:
        self.url = url
        self.store = store
        self.ledgers = ledgers
        self.bookies: dict[str, Bookie] = {}
        self._directory = directory
        self._crashed: list[BaseException | None] = []
        self.auditor = AuditorService(CONFIG, url, on_crash=lambda: self._crashed.append(None))

    async def start_bookie(self, bookie_id: str) -> None:
        config = small_config(self._directory / bookie_id, bookie_id=bookie_id, space_check_ms=50)
        bookie = Bookie(config, await connect_store(self.url))
        await bookie.start()
        self.bookies[bookie_id] = bookie

    async def lose(self, bookie_id: str) -> None:
        """Stop the bookie and delete its disk."""
        await self.bookies.pop(bookie_id).stop()
        shutil.rmtree(self._directory / bookie_id)

    async def write(self, entries: int, *, close: bool) -> int:
        """Write a ledger with E=Qw=3, Qa=2 and a number of entries. Return its id."""
        writer = await self.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(*[writer.add(payload(number)) for number in range(entries)])
        if close:
            await writer.close()
        return writer.ledger_id

    async def is_whole(self, ledger_id: int) -> bool:
        """Whether each bookie has every entry that metadata says it has, by its own list.  # I1 # I10"""
        ledger: LedgerMetadata = (await self.ledgers.metadata(ledger_id)).record
        if not ledger.is_closed or not {name for part in ledger.segments for name in part.bookies} <= set(self.bookies):
            return False
        schedule = WriteSchedule(ledger.ensemble_size, ledger.write_quorum, ledger.ack_quorum)
        for entry_id in range(ledger.last_entry_id + 1):
            bookies = ledger.segment_of(entry_id).bookies
            for position in schedule.positions(entry_id):
                if not await self._holds(bookies[position], ledger_id, entry_id):
                    return False
        return True

    async def _holds(self, bookie_id: str, ledger_id: int, entry_id: int) -> bool:
        peer = await BookiePeer.connect(self.bookies[bookie_id].address)
        answer, body = await peer.call(BookieOp.READ, ledger_id, entry_id)
        peer.close()
        return answer.status is Status.OK and bytes(decode_entry(body).payload) == payload(entry_id)

    async def close(self) -> None:
        await self.auditor.stop()
        await self.ledgers.close()
        for bookie in self.bookies.values():
            await bookie.stop()
        assert self._crashed == []


def payload(number: int) -> bytes:
    return b"%d" % number * 50


@asynccontextmanager
async def stage(directory: Path) -> AsyncIterator[Stage]:
    """Run four bookies and an auditor."""
    url = f"memory://auditor-{next(_numbers)}"
    store = await connect_store(url)
    await initialise(store)
    made = Stage(url, directory, store, await LedgerClient.start(await connect_store(url), quick()))
    try:
        for number in range(1, 5):
            await made.start_bookie(f"b{number}")
        await until(lambda: len(made.ledgers.directory.writable) == 4)
        await made.auditor.start()
        yield made
    finally:
        await made.close()


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(scenario)


async def until_whole(made: Stage, ledgers: list[int]) -> None:
    async def all_whole() -> bool:
        return all([await made.is_whole(ledger_id) for ledger_id in ledgers])

    await until(all_whole, REPAIR_SECONDS)


async def test_every_closed_ledger_of_a_lost_bookie_is_copied(tmp_path: Path) -> None:
    async with stage(tmp_path) as made:
        ledgers = [await made.write(20, close=True) for _ in range(8)]
        await made.lose("b1")
        await until_whole(made, ledgers)

        async def no_tasks() -> bool:
            return not await made.store.children(paths.UNDERREPLICATED)

        await until(no_tasks)
        assert (await made.auditor.audit(everything=True))["marked"] == 0
        counted = made.auditor.statistics()
        assert counted["worker"]["ledgers_repaired"] >= 1
        assert await made.store.children(paths.UNDERREPLICATION_LOCKS) == []


async def test_workers_of_several_processes_repair_for_an_auditor_that_only_marks(tmp_path: Path) -> None:
    async with stage(tmp_path) as made:
        await made.auditor.stop()
        made.auditor = AuditorService(replace(CONFIG, duties="audit"), made.url, on_crash=lambda: None)
        workers = [
            AuditorService(
                replace(CONFIG, duties="repair", identity=f"replicator-{n}"), made.url, on_crash=lambda: None
            )
            for n in (1, 2)
        ]
        ledgers = [await made.write(20, close=True) for _ in range(8)]
        for service in (made.auditor, *workers):
            await service.start()
        await made.lose("b1")
        await until_whole(made, ledgers)

        async def is_reported() -> bool:
            status = await made.auditor.repair_status()
            done = sum(worker.statistics()["worker"].get("ledgers_repaired", 0) for worker in workers)
            return set(status["workers"]) == {"replicator-1", "replicator-2"} and (
                status["ledgers_repaired"] == done > 0
            )

        await until(is_reported)
        assert not any(worker.statistics()["auditor"]["is_leader"] for worker in workers)
        assert made.auditor.statistics()["worker"] == {}
        for worker in workers:
            await worker.stop()


async def test_a_ledger_whose_writer_is_gone_is_closed_first(tmp_path: Path) -> None:
    async with stage(tmp_path) as made:
        left_open = [await made.write(10, close=False) for _ in range(4)]
        await made.ledgers.close()  # writers end without a close
        made.ledgers = await LedgerClient.start(await connect_store(made.url), quick())
        await made.lose((await made.ledgers.metadata(left_open[0])).record.last_segment.bookies[1])
        await until(lambda: made.auditor.statistics()["worker"].get("ledgers_recovered", 0) > 0, REPAIR_SECONDS)
        named = [ledger_id for ledger_id in left_open if (await made.ledgers.metadata(ledger_id)).record.is_closed]
        assert named
        await until_whole(made, named)
        for ledger_id in named:
            assert (await made.ledgers.metadata(ledger_id)).record.last_entry_id == 9


async def test_a_bookie_that_returns_in_time_costs_no_copy(tmp_path: Path) -> None:
    patient = replace(CONFIG, lost_bookie_delay_ms=60_000)
    async with stage(tmp_path) as made:
        await made.auditor.stop()
        made.auditor = AuditorService(patient, made.url, on_crash=lambda: None)
        await made.auditor.start()
        ledger_id = await made.write(5, close=True)
        before = await made.ledgers.metadata(ledger_id)
        lost = before.record.last_segment.bookies[0]
        await made.bookies.pop(lost).stop()
        await until(lambda: lost in made.auditor.statistics()["auditor"].get("absent_bookies", ()))
        await made.start_bookie(lost)
        await until(lambda: made.auditor.statistics()["auditor"]["absent_bookies"] == [])
        assert await made.ledgers.metadata(ledger_id) == before
        assert await made.is_whole(ledger_id)


async def test_work_goes_on_after_the_auditors_session_is_lost(tmp_path: Path) -> None:
    async with stage(tmp_path) as made:
        ledger_id = await made.write(5, close=True)
        await until(lambda: made.auditor.statistics()["auditor"].get("is_leader", False))
        auditor = made.auditor._auditor
        assert auditor is not None
        await made.store.end_session(auditor._store.session_token)
        await until(lambda: made.auditor.statistics()["sessions"] == 2)
        lost = (await made.ledgers.metadata(ledger_id)).record.last_segment.bookies[0]
        await made.lose(lost)
        await until_whole(made, [ledger_id])


async def test_without_a_spare_bookie_the_task_waits_for_one(tmp_path: Path) -> None:
    async with stage(tmp_path) as made:
        ledger_id = await made.write(5, close=True)
        members = (await made.ledgers.metadata(ledger_id)).record.last_segment.bookies
        [spare] = set(made.bookies) - set(members)
        await made.lose(spare)
        await made.lose(members[0])

        async def is_marked() -> bool:
            return await made.store.children(paths.UNDERREPLICATED) != []

        await until(is_marked, REPAIR_SECONDS)
        await made.start_bookie("b9")
        await until_whole(made, [ledger_id])


async def test_a_bookie_is_emptied_while_it_serves_and_its_writers_go_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as made:
        closed = [await made.write(10, close=True) for _ in range(4)]
        writer = await made.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await writer.add(payload(0))
        leaving = (await made.ledgers.metadata(writer.ledger_id)).record.last_segment.bookies[0]
        await until(lambda: made.auditor.statistics()["auditor"].get("is_leader", False))
        await made.auditor.decommission.begin(leaving)
        await until(lambda: leaving not in made.ledgers.directory.writable, REPAIR_SECONDS)
        await asyncio.gather(*[writer.add(payload(number)) for number in range(1, 10)])
        assert (await writer.close()).last_entry_id == 9

        async def is_drained() -> bool:
            return bool((await made.auditor.decommission.progress(leaving))["is_drained"])

        await until(is_drained, REPAIR_SECONDS)
        await made.bookies.pop(leaving).stop()
        await made.auditor.decommission.finish(leaving)
        assert await made.store.exists(paths.bookie_cookie(leaving)) is None
        await until_whole(made, [*closed, writer.ledger_id])


async def test_a_bookie_on_an_empty_disk_denies_nothing_and_gets_its_copies_again(tmp_path: Path) -> None:  # I4, I6
    async with stage(tmp_path) as made:
        closed = [await made.write(10, close=True) for _ in range(4)]
        writer = await made.ledgers.create(ensemble_size=3, write_quorum=3, ack_quorum=2)
        await asyncio.gather(*[writer.add(payload(number)) for number in range(10)])
        lost = (await made.ledgers.metadata(writer.ledger_id)).record.last_segment.bookies[0]
        await made.lose(lost)
        with pytest.raises(CookieMismatchError, match=f"helio bookies replace {lost}"):
            await made.start_bookie(lost)
        await until(lambda: made.auditor.statistics()["auditor"].get("is_leader", False))
        await made.store.create(paths.UNDERREPLICATION_DISABLED, parents=True)
        assert (await made.auditor.replacement.permit(lost))["ledgers"] >= 1
        await made.start_bookie(lost)
        peer = await BookiePeer.connect(made.bookies[lost].address)
        for ledger_id in (*closed, writer.ledger_id):
            named = lost in (await made.ledgers.metadata(ledger_id)).record.segments[0].bookies
            status = await peer.status(BookieOp.READ, ledger_id, 0)
            assert status is Status.UNKNOWN_LEDGER_STATE
            late = await peer.add(ledger_id, 99, b"late")
            assert late[0].status is Status.FENCED, named
        peer.close()
        await made.store.delete(paths.UNDERREPLICATION_DISABLED)
        await made.auditor.replacement.recover(lost)
        await made.ledgers.recover(writer.ledger_id)
        assert (await made.ledgers.metadata(writer.ledger_id)).record.last_entry_id == 9, "nothing is truncated"
        await made.auditor.replacement.recover(lost)
        await until_whole(made, [*closed, writer.ledger_id])

        async def is_done() -> bool:
            return bool((await made.auditor.replacement.progress(lost))["ledgers_left"] == 0)

        await until(is_done, REPAIR_SECONDS)
        await made.bookies.pop(lost).stop()
        shutil.rmtree(tmp_path / lost)
        with pytest.raises(CookieMismatchError):  # the permission is used up
            await made.start_bookie(lost)


async def test_what_a_scrub_finds_is_mended_once_repair_is_resumed(tmp_path: Path) -> None:  # I10
    async with stage(tmp_path) as made:
        ledger_id = await made.write(20, close=True)
        bookie_id = (await made.ledgers.metadata(ledger_id)).record.last_segment.bookies[0]
        bookie = made.bookies[bookie_id]
        await bookie.checkpoint()
        assert bookie._opened is not None
        directory = bookie._opened.storage.directory_of(ledger_id)
        (row,) = directory.index.runs(ledger_id)
        path = log_path(directory.path, row.log_id)
        content = bytearray(path.read_bytes())
        content[row.offset + sum(row.sizes[:5]) - 1] ^= 1  # the last byte of entry 4
        path.write_bytes(content)

        idle = await made.auditor.repair_status()
        assert (idle["ledgers_left"], idle["bytes_per_second"], idle["seconds_left"]) == (0, 0, 0)
        await made.auditor.pause(repair=True)
        assert await bookie.scrub() == 1
        status = await made.auditor.repair_status()
        assert (status["is_paused"], status["ledgers_left"]) == (True, 1)
        assert status["seconds_left"] is None
        (task,) = (await made.auditor.repair_tasks())["tasks"]
        assert (task["ledger_id"], task["damaged_bookies"]) == (ledger_id, (bookie_id,))
        found = await made.auditor.describe(ledger_id)
        assert found["task"]["missing_bookies"] == (bookie_id,)
        assert all(bookie == {"is_alive": True, "entries_missing": 0} for bookie in found["bookies"].values())
        assert not await made.is_whole(ledger_id)

        await made.auditor.pause(repair=False)
        await until_whole(made, [ledger_id])

        async def is_done() -> bool:
            return not (await made.auditor.repair_tasks())["tasks"]

        await until(is_done)
        status = await made.auditor.repair_status()
        assert (status["ledgers_repaired"], status["entries_repaired"]) == (1, 1)
        assert (status["ledgers_left"], status["seconds_left"]) == (0, 0)
        assert await bookie.scrub() == 0
