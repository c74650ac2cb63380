"""Payloads whose compression takes long: threads work on them, and order, bounds and errors are those of small ones.
What consumers have decompressed may have a bound (I15)."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.base import errors
from heliograph.base.guard.shares import UnpackBudget
from heliograph.protocol import batch, compression, entry
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.compression import INLINE_BYTES_MAX
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.world import TOPIC, client_of, stored
from tests.waits import until

LARGE = b"large" + bytes(INLINE_BYTES_MAX)
PLAIN = bytes(INLINE_BYTES_MAX)
OPTIONS: dict[str, Any] = {"compression": "lz4", "batch_messages": 1}


class Gate:
    """A codec that notes on which threads it works, and whose threads wait until the gate is open."""

    def __init__(self) -> None:
        self.on_loop: list[int] = []  # bytes of payloads
        self.aside: list[int] = []
        self.opened = threading.Event()
        self.opened.set()

    def through(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def checked(codec: int, data: bytes, *rest: int) -> Any:
            size = rest[0] if rest else len(data)
            if threading.current_thread() is threading.main_thread():
                self.on_loop.append(size)
            else:
                self.aside.append(size)
                assert self.opened.wait(60), "the test opens the gate"
            return work(codec, data, *rest)

        return checked


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    made = Gate()
    monkeypatch.setattr(batch, "compress", made.through(compression.compress))
    monkeypatch.setattr(entry, "decompress", made.through(compression.decompress))
    return made


async def test_only_large_payloads_take_a_thread(gate: Gate) -> None:
    async with (
        FakeBroker() as broker,
        await client_of(broker) as client,
        client.producer("t", **OPTIONS) as producer,
        client.consumer("t", "s") as consumer,
    ):
        await consumer.open()
        for value in (bytes(500), LARGE):  # both become smaller
            await producer.send(value)
            assert (await consumer.receive(60)).value == value
    assert gate.on_loop == [500, 500]
    assert gate.aside == [len(LARGE)] * 2


async def test_entries_follow_the_one_that_is_being_packed_also_over_a_reconnect(gate: Gate) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = client.producer("t", **OPTIONS)
        await producer.send(b"0")
        gate.opened.clear()
        values = [b"1", LARGE, b"2", LARGE + b"2", b"3"]
        futures = [await producer.enqueue(value) for value in values]
        await futures[0]
        await until(lambda: len(gate.aside) == 2)
        broker.drop_connections()
        await until(lambda: len(broker.of_type(T.PRODUCER)) == 2)
        assert stored(broker.store) == [b"0", b"1"]
        gate.opened.set()
        ids = await asyncio.gather(*futures)
        assert [place.entry_id for place in ids] == [1, 2, 3, 4, 5]
        assert stored(broker.store) == [b"0", *values]
        assert [command.send.sequence_id for command in broker.of_type(T.SEND)] == list(range(6))
        await producer.close()


async def test_an_entry_that_is_packed_too_late_fails_with_those_after_it(gate: Gate) -> None:
    async with (
        FakeBroker() as broker,
        await client_of(broker) as client,
        client.producer("t", send_timeout_ms=200, **OPTIONS) as producer,
    ):
        await producer.open()
        gate.opened.clear()
        futures = [await producer.enqueue(value) for value in (LARGE, b"after")]
        for future in futures:
            with pytest.raises(errors.RequestTimeoutError):
                await future
        assert producer.pending_messages == 0
        gate.opened.set()
        await producer.send(b"later")
        assert stored(broker.store) == [b"later"]


async def test_closing_waits_for_what_is_being_packed(gate: Gate) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = client.producer("t", **OPTIONS)
        await producer.open()
        gate.opened.clear()
        future = await producer.enqueue(LARGE)
        closing = asyncio.ensure_future(producer.close())
        await until(lambda: gate.aside)
        assert not closing.done()
        gate.opened.set()
        await closing
        assert (await future).entry_id == 0


async def test_receivers_share_the_unpacking_and_keep_their_time_limits(gate: Gate) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        async with client.producer("t", **OPTIONS) as producer:
            await producer.send_many([LARGE, b"next"])
        packed = len(gate.aside)
        gate.opened.clear()
        async with client.consumer("t", "s", initial_position="earliest") as consumer:
            while len(gate.aside) == packed:
                assert await consumer.receive_many(10, 0.01) == []
            assert await consumer.receive_many(10, 0) == []
            waiting = [asyncio.ensure_future(consumer.receive(60)) for _ in range(2)]
            await asyncio.sleep(0)
            gate.opened.set()
            values = {message.value for message in await asyncio.gather(*waiting)}
            assert values == {LARGE, b"next"}
            assert len(gate.aside) == packed + 1


async def test_what_is_being_unpacked_before_a_seek_is_dropped(gate: Gate) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        async with client.producer("t", **OPTIONS) as producer:
            ids = [await producer.send(value) for value in (LARGE, b"next")]
        packed = len(gate.aside)
        gate.opened.clear()
        async with client.consumer("t", "s", initial_position="earliest") as consumer:
            receiving = asyncio.ensure_future(consumer.receive(60))
            await until(lambda: len(gate.aside) > packed)
            await consumer.seek(ids[0])
            gate.opened.set()
            assert (await receiving).value == b"next"


async def test_a_large_payload_that_cannot_be_unpacked_is_skipped(gate: Gate) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        async with client.producer("t", **OPTIONS) as producer:
            await producer.send_many([LARGE, b"next"])
        entries = broker.store.topics[TOPIC].entries
        metadata, _ = entry.split(entries[0])
        metadata.compression = pb.ZLIB
        entries[0] = entry.encode_entry(metadata, b"no stream of zlib")
        async with client.consumer("t", "s", initial_position="earliest") as consumer:
            with pytest.raises(errors.ChecksumError):
                await consumer.receive(60)
            assert (await consumer.receive(60)).value == b"next"


async def test_all_together_and_each_key_have_a_bound() -> None:
    budget = UnpackBudget(400)
    held = [await budget.take("a", 60)]
    second = asyncio.create_task(budget.take("a", 60))
    await asyncio.sleep(0)
    assert not second.done(), "one key has a quarter"
    held += [await budget.take(key, 100) for key in "bcd"]
    other = asyncio.create_task(budget.take("e", 100))
    await asyncio.sleep(0)
    assert (budget.held_bytes, other.done()) == (360, False)
    held.pop().release()
    held.pop(0).release()
    held[0].release()
    held[0].release()
    await asyncio.wait_for(asyncio.gather(second, other), 60)
    assert budget.held_bytes == 100 + 60 + 100
    del held, second, other
    gc.collect()
    assert budget.held_bytes == 0, "what is collected is given back"


async def test_a_payload_above_the_bound_is_taken_alone() -> None:
    budget = UnpackBudget(100)
    held = await budget.take("a", 1_000)
    waiting = asyncio.create_task(budget.take("b", 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    assert list(held.during(iter("xy"))) == ["x", "y"]
    (await asyncio.wait_for(waiting, 60)).release()
    assert budget.held_bytes == 0
    waiting.cancel()


async def test_a_batch_is_counted_until_its_last_message_was_taken() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        client.unpacked = budget = UnpackBudget(2 * len(PLAIN))
        producer = client.producer("t", compression="lz4", batch_messages=2, batch_bytes=1 << 20)
        first, second = client.consumer("t", "first"), client.consumer("t", "second")
        await asyncio.gather(first.open(), second.open())
        await producer.send_many([PLAIN, b"end"])
        assert (await first.receive(60)).value == PLAIN
        assert len(PLAIN) < budget.held_bytes <= len(PLAIN) + 100
        other = asyncio.create_task(second.receive(60))
        await until(lambda: len(budget._waiting) == 1)
        assert not other.done(), "of one tenant there is no more room"
        assert (await first.receive(60)).value == b"end"
        assert (await other).value == PLAIN
        assert (await second.receive(60)).value == b"end"
        await until(lambda: budget.held_bytes == 0)
        await producer.close()
