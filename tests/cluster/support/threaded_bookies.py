"""Fake bookies that serve from a thread, for tests of code that blocks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from heliograph.actors.wire.entry import encode_entry
from heliograph.metadata.backends.memory import MemoryServer
from tests.cluster.support.fake_bookie import FakeBookie, FakeLedger


@contextmanager
def threaded_bookies(count: int) -> Iterator[list[FakeBookie]]:
    """``count`` bookies on free ports for the length of the block."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    async def start() -> list[FakeBookie]:
        store = MemoryServer().open_session(10_000)
        bookies = [FakeBookie(f"b{number}", store) for number in range(count)]
        for bookie in bookies:
            await bookie.start()
        return bookies

    async def stop(bookies: list[FakeBookie]) -> None:
        for bookie in bookies:
            await bookie.kill()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    bookies = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield bookies
    finally:
        asyncio.run_coroutine_threadsafe(stop(bookies), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def give(bookie: FakeBookie, ledger_id: int, entry_id: int, payload: bytes) -> None:
    """Have the bookie hold an entry."""
    ledger = bookie.ledgers.setdefault(ledger_id, FakeLedger())
    ledger.entries[entry_id] = encode_entry(ledger_id, entry_id, entry_id - 1, 0, payload)
