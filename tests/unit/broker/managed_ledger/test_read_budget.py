"""What subscriptions read ahead is bounded over a broker (I15), and every read gets its room in the end."""

from __future__ import annotations

import asyncio
import contextlib
import random

from heliograph.actors.broker.managed_ledger.read_budget import READ_BYTES_MAX, ReadBudget


class Holder:
    def __init__(self, budget: ReadBudget) -> None:
        self.budget = budget
        self.bytes = 0
        self.drops = 0

    def hold(self, size: int) -> None:
        self.bytes += size
        self.budget.hold(self, size)

    def release(self, size: int) -> None:
        self.bytes -= size
        self.budget.release(self, size)

    def drop(self) -> None:
        self.drops += 1
        self.release(self.bytes)


async def test_few_readers_read_as_much_as_ever_and_many_read_less() -> None:
    budget = ReadBudget(32 * READ_BYTES_MAX)
    first = [await budget.begin_read() for _ in range(16)]
    assert set(first) == {READ_BYTES_MAX}
    assert await budget.begin_read() < READ_BYTES_MAX


async def test_the_one_that_read_longest_ago_loses_what_it_has() -> None:
    budget = ReadBudget(3 * READ_BYTES_MAX)
    holders = [Holder(budget) for _ in range(3)]
    for holder in holders:
        holder.hold(READ_BYTES_MAX)
    holders[0].release(1)
    holders[0].hold(1)  # it has read since
    Holder(budget).hold(READ_BYTES_MAX)
    assert [holder.drops for holder in holders] == [0, 1, 0]


async def test_a_read_that_finds_no_room_waits_for_one_that_ends_and_a_cancelled_one_takes_none() -> None:
    budget = ReadBudget(READ_BYTES_MAX)
    sizes: list[int] = []
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            while True:
                sizes.append(await budget.begin_read())
    assert READ_BYTES_MAX - READ_BYTES_MAX // 2 < sum(sizes) == budget.bytes <= READ_BYTES_MAX
    waiting = [asyncio.create_task(budget.begin_read()) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    for size in sizes:
        budget.end_read(size)
    for task in waiting[1:]:
        budget.end_read(await asyncio.wait_for(task, 60))
    assert budget.bytes == 0


async def test_hundreds_of_readers_all_read_and_never_hold_more_than_the_budget() -> None:
    rng = random.Random(3)

    async def reader(holder: Holder, most: list[int]) -> None:
        for _ in range(10):
            size = await holder.budget.begin_read()
            await asyncio.sleep(0)
            holder.budget.end_read(size)
            holder.hold(size)
            most[0] = max(most[0], holder.budget.bytes)
            await asyncio.sleep(0)
            if holder.bytes and rng.random() < 0.5:
                holder.release(rng.randint(1, holder.bytes))

    budget = ReadBudget(2 * READ_BYTES_MAX)
    most = [0]
    holders = [Holder(budget) for _ in range(300)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(reader(holder, most) for holder in holders))
    assert most[0] <= 2 * READ_BYTES_MAX
    assert budget.bytes == sum(holder.bytes for holder in holders)
    assert sum(holder.drops for holder in holders) > 0
