"""The progress of replication workers: a record of each in metadata, and their sums."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.actors.auditor.config import AuditorConfig
from heliograph.actors.auditor.service import AuditorService
from heliograph.actors.auditor.underreplication import UnderReplication
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.connect import connect_store
from heliograph.metadata.recipes.cluster_init import initialise
from heliograph.metadata.recipes.repair_progress import ProgressBoard, summed
from tests.cluster.support.ledger_cluster import until

IDLE = {
    "ledgers_repaired": 0,
    "ledgers_damaged": 0,
    "entries_repaired": 0,
    "bytes_repaired": 0,
    "repair_seconds": 0.0,
    "last_failure": "",
    "ledgers_without_place": 0,
    "waiting_seconds": 0.0,
}


async def test_sums_are_of_the_workers_that_run() -> None:
    server = MemoryServer()
    own, other = server.open_session(), server.open_session()
    board, second = ProgressBoard(own, "replicator-1"), ProgressBoard(other, "replicator-2")
    assert await board.workers() == 1, "itself, before it has reported"
    busy: dict[str, Any] = IDLE | {"ledgers_repaired": 2, "bytes_repaired": 300, "repair_seconds": 3.0}
    await board.report(busy)
    await second.report(IDLE)
    await second.report(busy | {"ledgers_damaged": 1, "last_failure": "QuorumLostError"})
    assert await board.workers() == 2
    found = summed([board.record(busy), *await board.others()])
    assert (found["ledgers_repaired"], found["bytes_repaired"], found["bytes_per_second"]) == (4, 600, 200)
    assert (found["ledgers_damaged"], found["last_failure"]) == (1, "QuorumLostError")
    assert set(found["workers"]) == {"replicator-1", "replicator-2"}
    await other.close()
    assert (await board.workers(), await board.others()) == (1, [])


async def test_a_record_of_an_earlier_session_is_replaced_once_it_is_gone() -> None:
    server = MemoryServer()
    before, now = server.open_session(), server.open_session()
    await ProgressBoard(before, "replicator-1").report(IDLE)
    board = ProgressBoard(now, "replicator-1")
    await board.report(IDLE)
    server.expire_session(before.session_id)
    await board.report(IDLE)
    assert await ProgressBoard(now, "auditor").others() == [board.record(IDLE)]


def worked(ledgers: int, seconds: float, size: int, entries: int = 0) -> dict[str, Any]:
    return IDLE | {
        "ledgers_repaired": ledgers,
        "repair_seconds": seconds,
        "bytes_repaired": size,
        "entries_repaired": entries,
    }


@pytest.mark.parametrize(
    ("first", "second", "rate", "left"),
    [
        (worked(3, 30.0, 3_000, 30), worked(1, 10.0, 2_000, 10), 300.0, 40.0),  # both take 10 s a ledger
        (worked(3, 30.0, 3_000, 30), worked(1, 30.0, 3_000, 10), 200.0, 60.0),  # 0.1 and 0.033 ledgers a second
        (worked(4, 40.0, 4_000, 40), worked(0, 0.0, 0), 100.0, 40.0),  # the second has just begun to help
        (worked(0, 5.0, 1_000), worked(0, 5.0, 500), 300.0, None),  # none has finished one
        (worked(4, 40.0, 4_000, 40), IDLE | {"waiting_seconds": 55.0}, 100.0, 55.0),  # the writer of one is waited for
        (worked(4, 40.0, 4_000, 40), IDLE | {"ledgers_without_place": 5}, 100.0, 15.0),  # five cannot be copied now
        (IDLE, IDLE | {"ledgers_without_place": 8}, 0, 0.0),
    ],
)
def test_the_status_of_repair_is_right_with_two_replicators(
    first: dict[str, Any], second: dict[str, Any], rate: float, left: float | None
) -> None:
    url = f"memory://progress-of-two-{rate}-{left}"

    async def scenario() -> None:
        own, other = await connect_store(url), await connect_store(url)
        await initialise(own)
        auditor = AuditorService(AuditorConfig(duties="audit"), url, on_crash=lambda: None)
        await auditor.start()
        try:
            await until(lambda: auditor.statistics()["auditor"].get("audits", 0) > 0)
            await ProgressBoard(own, "replicator-1").report(first)
            await ProgressBoard(other, "replicator-2").report(second)
            tasks = UnderReplication(own)
            for ledger_id in range(8):
                await tasks.mark(ledger_id, ["b1"])
            await tasks.lock(1)
            await UnderReplication(other).lock(2)
            found = await auditor.repair_status()
            assert (found["ledgers_left"], found["ledgers_in_repair"]) == (8, 2)
            assert set(found["workers"]) == {"replicator-1", "replicator-2"}, "the auditor itself repairs nothing"
            for name in ("ledgers_repaired", "entries_repaired", "bytes_repaired", "repair_seconds"):
                assert found[name] == first[name] + second[name]
            assert (found["bytes_per_second"], found["seconds_left"]) == (rate, left)
            async with asyncio.timeout(60):
                while found["absent_bookies"] is None:  # until an audit knows the latest change of bookies
                    await asyncio.sleep(0.01)
                    found = await auditor.repair_status()
            assert found["absent_bookies"] == found["lost_bookies"] == []
            await other.close()  # the second is gone, and its lock and its counts with it
            found = await auditor.repair_status()
            assert (list(found["workers"]), found["ledgers_in_repair"]) == (["replicator-1"], 1)
            assert found["bytes_repaired"] == first["bytes_repaired"]
        finally:
            await auditor.stop()
            await own.close()

    asyncio.run(asyncio.wait_for(scenario(), 60))
