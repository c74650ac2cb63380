"""What a broker unpacks is within one budget, and the messages of a batch are never all in memory."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import tracemalloc
from collections.abc import Callable
from functools import partial

import pytest

from heliograph.actors.broker.admin.owned_cursors import _messages
from heliograph.actors.broker.compaction.plan import CompactionPlan, live_bits
from heliograph.actors.broker.config import BrokerConfig
from heliograph.actors.broker.limits import unpacking
from heliograph.actors.broker.limits.unpacking import SMALL_BYTES, unpacked
from heliograph.actors.broker.memory_bounds import memory_bounds
from heliograph.actors.broker.records.position import Position
from heliograph.base.errors import ProtocolError
from heliograph.base.guard.shares import UnpackBudget
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import compress
from heliograph.protocol.entry import UNPACK_COPIES, encode_entry, unpacked_bytes

MESSAGES = 8_000
LARGE = 1 << 20  # of an entry after decompression


def batch(*messages: pb.SingleMessageMetadata) -> bytes:
    """Return an entry, compressed, of messages without values; of each all in a row."""
    rows = [one.SerializeToString() for one in messages]
    plain = b"".join(len(row).to_bytes(4, "big") + row for row in rows)
    metadata = pb.MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=1,
        compression=pb.LZ4,
        uncompressed_size=len(plain),
        num_messages_in_batch=len(rows),
    )
    return encode_entry(metadata, compress(pb.LZ4, plain))


def large(size: int = LARGE) -> bytes:
    metadata = pb.MessageMetadata(
        producer_name="p", sequence_id=0, publish_time=1, compression=pb.LZ4, uncompressed_size=size
    )
    return encode_entry(metadata, compress(pb.LZ4, bytes(size)))


def peak_of(work: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_the_messages_of_a_batch_are_never_all_in_memory() -> None:
    """They take some 150 bytes each as a list: 1.2 MB here, and 150 MB of the largest batch."""
    keyed = pb.SingleMessageMetadata(payload_size=0, partition_key="k")
    section = batch(*[pb.SingleMessageMetadata(payload_size=0), keyed] * (MESSAGES // 2))
    plan = CompactionPlan(0)
    plain_bytes = unpacked_bytes(section) // UNPACK_COPIES
    bound = unpacked_bytes(section) + (1 << 18)
    assert peak_of(lambda: plan.observe(0, section)) < bound
    left: list[object] = []
    assert peak_of(lambda: left.append(plan.retained(0, section))) < bound + plain_bytes  # and what is left
    assert isinstance(left[0], bytes)
    bits: list[int | None] = []
    assert peak_of(lambda: bits.append(live_bits(left[0]))) < bound  # type: ignore[arg-type]
    assert bits == [1 << (MESSAGES - 1)], "the last message of its key"
    shown: list[object] = []
    last = 1 << (MESSAGES - 1)
    assert peak_of(lambda: shown.extend(_messages(Position(1, 2), -1, section, last, 10, 1 << 20)[0])) < bound
    assert len(shown) == 1


async def test_entries_above_a_bound_take_turns_within_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    size = LARGE * UNPACK_COPIES
    budget = UnpackBudget(4 * size)  # so that one tenant has one at a time, and all have four
    monkeypatch.setattr(unpacking, "budget", budget)
    assert size > SMALL_BYTES
    lock, now, most = threading.Lock(), {"a": 0, "b": 0}, {"a": 0, "b": 0}
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()
    gate = threading.Event()

    def work(tenant: str, _: bytes) -> int:
        with lock:
            now[tenant] += 1
            most[tenant] = max(most[tenant], now[tenant])
            if all(most.values()):
                loop.call_soon_threadsafe(seen.set)
        gate.wait(60)
        with lock:
            now[tenant] -= 1
        return 1

    section = large()
    works = {tenant: partial(work, tenant) for tenant in now}
    tasks = [asyncio.create_task(unpacked(tenant, [section] * 3, lambda one: one, works[tenant])) for tenant in "abab"]
    async with asyncio.timeout(60):
        await seen.wait()
        assert budget.held_bytes == 2 * size
        gate.set()
        assert await asyncio.gather(*tasks) == [[1, 1, 1]] * 4
    assert most == {"a": 1, "b": 1}
    assert budget.held_bytes == 0


async def test_small_entries_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unpacking, "budget", None)
    small = [large(1_000), batch(pb.SingleMessageMetadata(payload_size=0))]
    assert await unpacked("a", small, lambda one: one, len) == [len(one) for one in small]
    assert await unpacked("a", [b"no entry"], lambda one: one, len) == [8]


async def test_bytes_come_back_after_errors_and_cancellation(monkeypatch: pytest.MonkeyPatch) -> None:
    budget = UnpackBudget(LARGE * UNPACK_COPIES)
    monkeypatch.setattr(unpacking, "budget", budget)

    def refuse(_: bytes) -> None:
        raise ProtocolError("it is damaged")

    with pytest.raises(ProtocolError):
        await unpacked("a", [large()], lambda one: one, refuse)
    assert budget.held_bytes == 0
    began, gate = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hang(_: bytes) -> None:
        loop.call_soon_threadsafe(began.set)
        gate.wait(60)

    task = asyncio.create_task(unpacked("a", [large()], lambda one: one, hang))
    async with asyncio.timeout(60):
        await began.wait()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        assert budget.held_bytes == LARGE * UNPACK_COPIES, "its thread still holds them"
        gate.set()
        await unpacked("a", [large()], lambda one: one, len)
    assert budget.held_bytes == 0


def test_the_budget_is_a_bound_of_the_broker() -> None:
    bounds = memory_bounds(BrokerConfig("b"))
    assert bounds["payloads and schemas that are unpacked"] == unpacking.budget.bytes_max
