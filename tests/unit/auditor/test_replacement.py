"""Commands on a bookie's disk: refusals, the permission, and what is marked for repair."""

from __future__ import annotations

import pytest

from heliograph.actors.auditor.replacement import DiskReplacement
from heliograph.base.errors import ConflictError, NotFoundError
from heliograph.metadata import codec, paths
from heliograph.metadata.bookie_records import BookieReplacement, Cookie
from heliograph.metadata.model import LedgerState
from tests.unit.auditor.world import NOW, World, ledger


class Stage(World):
    """Bookies of which ``b3`` lost its disk at its seventh start."""

    def __init__(self) -> None:
        super().__init__(NOW)
        self.commands = DiskReplacement(self.store, self.auditor)

    async def begin_with(self, *bookies: str) -> None:
        await self.start(*bookies)
        cookie = Cookie("b3", "", ("a",), ("b",), 2, start=7, token="t")
        await self.store.create(paths.bookie_cookie("b3"), codec.encode(cookie))

    async def permission(self) -> BookieReplacement:
        value, _ = await self.store.get(paths.bookie_replacement("b3"))
        return codec.decode(BookieReplacement, value)


async def test_the_permission_counts_for_the_next_start() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    await stage.ledgers.add(ledger(2, "b1 b2 b4", LedgerState.OPEN))
    for _ in range(2):
        assert await stage.commands.permit("b3") == {"bookie": "b3", "ledgers": 1}
    assert await stage.permission() == BookieReplacement("b3", 7)


async def test_a_bookie_that_serves_is_refused() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3")
    with pytest.raises(ConflictError, match="b3 serves"):
        await stage.commands.permit("b3")
    with pytest.raises(NotFoundError, match="no bookie b9"):
        await stage.commands.permit("b9")
    await stage.store.create(paths.bookie_draining("b3"), parents=True)
    await stage.store.delete(paths.bookie_available("b3"))
    with pytest.raises(ConflictError, match="decommission"):
        await stage.commands.permit("b3")
    assert await stage.store.exists(paths.bookie_replacement("b3")) is None


async def test_the_last_copies_are_refused() -> None:
    """An acknowledged entry may be on any two bookies, with Qa = 2 of Qw = 3."""
    stage = Stage()
    await stage.begin_with("b1")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    with pytest.raises(ConflictError, match=r"last copies of entries in 1 ledgers, such as 1"):
        await stage.commands.permit("b3")
    await stage.commands.permit("b3", accept_loss=True)
    assert (await stage.permission()).start == 7


async def test_the_ledgers_of_a_lost_bookie_are_repaired_now() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "spare1")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    await stage.ledgers.add(ledger(2, "b1 b2 spare1"))
    found = await stage.commands.recover("b3")
    assert (found["is_alive"], found["ledgers_left"]) == (False, 1)
    assert await stage.auditor.tasks.tasks() == [1]
    assert await stage.worker.work_once()
    assert (await stage.commands.progress("b3"))["ledgers_left"] == 0


async def test_recovery_needs_bookies_that_can_hold_the_copies() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    with pytest.raises(ConflictError, match=r"2 writable bookies would be left.*ensemble of 3"):
        await stage.commands.recover("b3")
    with pytest.raises(NotFoundError, match="b9"):
        await stage.commands.recover("b9")
    assert await stage.auditor.tasks.tasks() == []


async def test_a_bookie_that_came_back_empty_is_marked_too() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "b3")
    await stage.ledgers.add(ledger(1, "b1 b2 b3"))
    found = await stage.commands.recover("b3")
    assert (found["is_alive"], found["ledgers_left"]) == (True, 1)
    assert await stage.auditor.tasks.tasks() == [1]


async def test_open_ledgers_of_a_replaced_bookie_are_recovered_now() -> None:
    stage = Stage()
    await stage.begin_with("b1", "b2", "live3", "b4")
    await stage.ledgers.add(ledger(1, "b1 b2 live3", LedgerState.OPEN))
    await stage.ledgers.add(ledger(2, "b1 b2 b4", LedgerState.OPEN))
    assert (await stage.commands.recover("live3", is_replaced=True))["ledgers_left"] == 1
    assert await stage.worker.work_once()
    assert stage.ledgers.recovered == [1]
    assert (await stage.commands.progress("live3"))["ledgers_left"] == 0
