"""The progress of replication workers: a record of each in metadata, and their sums."""

from __future__ import annotations

import asyncio
from typing import Any

from heliograph.metadata.backends.memory.store import MemoryServer
from heliograph.metadata.recipes.repair_progress import ProgressBoard, summed

IDLE = {
    "ledgers_repaired": 0,
    "ledgers_damaged": 0,
    "entries_repaired": 0,
    "bytes_repaired": 0,
    "repair_seconds": 0.0,
    "last_failure": "",
}


def test_sums_are_of_the_workers_that_run() -> None:
    async def scenario() -> None:
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

    asyncio.run(scenario())


def test_a_record_of_an_earlier_session_is_replaced_once_it_is_gone() -> None:
    async def scenario() -> None:
        server = MemoryServer()
        before, now = server.open_session(), server.open_session()
        await ProgressBoard(before, "replicator-1").report(IDLE)
        board = ProgressBoard(now, "replicator-1")
        await board.report(IDLE)
        server.expire_session(before.session_id)
        await board.report(IDLE)
        assert await ProgressBoard(now, "auditor").others() == [board.record(IDLE)]

    asyncio.run(scenario())
