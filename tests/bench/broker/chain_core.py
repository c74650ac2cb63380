"""The chain of a topic alone: rollover, opening, trimming, a search and loading, with 10, 10,000 and 1,000,000 ledgers.

The limit of each is the shortest chain: none but loading may depend on the length. Metadata is in memory, so nothing
waits, and what is measured is processor time. For loading it is the longest step of the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from heliograph.actors.broker.managed_ledger.chain import LedgerChain
from heliograph.actors.broker.managed_ledger.trimming import trim_batch
from heliograph.actors.broker.records.owned_topic import OwnedTopicRecord
from heliograph.actors.broker.records.position import Position
from heliograph.actors.broker.records.topic_chain import PIECE_LEDGERS, fold
from heliograph.metadata import codec, paths
from heliograph.metadata.backends.memory import MemoryServer
from heliograph.metadata.model import LedgerInfo, Policies, TopicRecord
from heliograph.metadata.recipes.update_loop import read
from tests.bench.bench import Bench
from tests.bench.figure import Limit

T = TypeVar("T")

SECTION = "chain of a topic"
LENGTHS = (10, 10_000, 1_000_000)  # ledgers
ROLLOVERS = 20
LOOP_MS_MAX = 20  # of one step of the event loop
PATH = "/topics/public/default/long"
FIRST_ID = 10**9


def report(bench: Bench) -> None:
    """Measure the rows of the section."""
    base: dict[str, float] = {}
    for length in LENGTHS:
        bench.say(f"measuring a chain of {length:,} ledgers")
        found = asyncio.run(_measure(length))
        record_bytes, loading_ms = found.pop("record_bytes"), found.pop("load")
        for what, ms in found.items():
            first = base.setdefault(what, ms)
            bench.add(SECTION, f"{what}, {length:,} ledgers", ms, "ms", Limit(first, f"{LENGTHS[0]} ledgers"))
        bench.add(
            SECTION,
            f"longest step of loading all, {length:,} ledgers",
            loading_ms,
            "ms",
            Limit(LOOP_MS_MAX, "20 ms"),
            record_bytes=int(record_bytes),
        )


async def _measure(length: int) -> dict[str, float]:
    owned = await _topic(length)
    found: dict[str, float] = {"record_bytes": len(codec.encode(owned.record))}
    chain, found["open"] = await _timed(lambda: _open(owned))
    next_id = FIRST_ID + length

    async def roll() -> None:
        nonlocal next_id
        await owned.check_room(owned.record)
        ledgers = owned.record.ledgers
        await owned.replace(replace(owned.record, ledgers=(*ledgers, _row(next_id - FIRST_ID))))
        next_id += 1

    rolls = [(await _timed(roll))[1] for _ in range(ROLLOVERS)]
    found["rollover"] = sum(rolls) / ROLLOVERS
    _, found["search a position"] = await _timed(lambda: chain.load(Position(FIRST_ID + length - 1, 0)))
    policies = Policies(retention_seconds=0, retention_bytes=0)
    gone = min(500, length - 1)
    _, found["trim a batch"] = await _timed(
        lambda: trim_batch(
            owned, chain, (), lambda: FIRST_ID + gone, 1 << 60, policies, lambda record: record, keeps_retained=True
        )
    )
    longest = 0.0
    while chain.older:
        _, ms = await _timed(lambda: chain.expand(chain.older[-1]))
        longest = max(longest, ms)
    found["load"] = longest
    return found


async def _open(owned: OwnedTopicRecord) -> LedgerChain:
    record = (await read(owned._store, PATH, TopicRecord)).record
    chain = LedgerChain(record.pieces, owned.piece)
    for info in record.ledgers:
        chain.append(info.ledger_id, info.entries)
    await owned.replace(owned.record)
    return chain


async def _topic(length: int) -> OwnedTopicRecord:
    store = MemoryServer().open_session()
    record = TopicRecord("long")
    await store.create(PATH, codec.encode(record), parents=True)
    for at in range(0, length, PIECE_LEDGERS):
        more = tuple(_row(number) for number in range(at, min(at + PIECE_LEDGERS, length)))
        record, created = fold(replace(record, ledgers=(*record.ledgers, *more)))
        for number, piece in created.items():
            await store.create(paths.chain_piece(PATH, number), codec.encode(piece))
    await store.set(PATH, codec.encode(record))
    return OwnedTopicRecord(store, PATH, await read(store, PATH, TopicRecord))


def _row(number: int) -> LedgerInfo:
    return LedgerInfo(FIRST_ID + number, 50_000, 1 << 30, 1_764_000_000_000 + number)


async def _timed(work: Callable[[], Awaitable[T]]) -> tuple[T, float]:
    """Return what ``work`` returns, and its processor time in ms."""
    begun = time.process_time()
    result = await work()
    return result, (time.process_time() - begun) * 1_000
