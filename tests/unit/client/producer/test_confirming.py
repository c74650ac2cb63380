"""What a producer waits for: room, receipts, time limits, its end."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.base import errors
from heliograph.client.aio.producer.outgoing import ListOutcome
from heliograph.client.aio.producer.send_window import SendWindow
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.message_id import MessageId
from tests.unit.client.fake_broker import FakeBroker, T
from tests.unit.client.world import client_of, stored
from tests.waits import until


async def test_a_message_that_times_out_because_disks_are_full_says_so() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", send_timeout_ms=500)
        broker.refuse(T.SEND, pb.PERSISTENCE_ERROR, "storage is full: bookie-1 (97% used)")
        broker.hold_receipts()
        with pytest.raises(errors.StorageFullError, match=r"bookie-1 \(97% used\).* not confirmed in time"):
            await producer.send(b"1")
        broker.release_receipts()
        await producer.send(b"2")
        broker.hold_receipts()
        with pytest.raises(errors.RequestTimeoutError):
            await producer.send(b"3")
        broker.release_receipts()
        await producer.close()


async def test_a_full_window_makes_senders_wait_in_order() -> None:  # I15
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", pending_messages_max=10, batch_messages=5)
        broker.hold_receipts()
        tasks = [asyncio.ensure_future(producer.send(b"%d" % index)) for index in range(30)]
        await until(lambda: len(broker.receipts_held or []) == 2)
        await asyncio.sleep(0.01)
        assert producer.pending_messages == 10
        assert len(stored(broker.store)) == 10
        broker.release_receipts()
        await asyncio.gather(*tasks)
        assert stored(broker.store) == [b"%d" % index for index in range(30)]
        await producer.close()


async def test_a_cancelled_wait_for_room_takes_none() -> None:
    window = SendWindow(1, 100)
    await window.acquire(1, 500)  # alone it may exceed the bound
    waiting = asyncio.ensure_future(window.acquire(1, 1))
    await asyncio.sleep(0)
    assert not window.try_acquire(1, 1)
    waiting.cancel()
    await asyncio.wait([waiting])
    waiting = asyncio.ensure_future(window.acquire(1, 1))
    await asyncio.sleep(0)
    window.release(1, 500)
    await waiting
    assert (window.messages, window.bytes) == (1, 1)


async def test_messages_share_a_timer_and_each_has_its_own_time() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t")
        (part,) = producer._parts
        await producer.send(b"1")
        timer = part._timer
        assert timer is not None
        broker.hold_receipts()
        second = await producer.enqueue(b"2")
        await until(lambda: len(broker.receipts_held or []) == 1)
        assert part._timer is timer
        timer.cancel()
        part._expire()  # as at the deadline of the first
        assert not second.done()
        assert part._timer is not None
        broker.release_receipts()
        assert (await second).entry_id == 1
        part._timer.cancel()
        part._expire()
        assert part._timer is None
        await producer.send(b"3")
        await producer.close()
        assert part._timer is None


async def test_an_unconfirmed_message_times_out_and_later_ones_go_on() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", send_timeout_ms=500)
        broker.hold_receipts()
        with pytest.raises(errors.RequestTimeoutError):
            await producer.send(b"1")
        broker.release_receipts()
        assert (await producer.send(b"2")).entry_id == 1
        await producer.close()


async def test_flushing_does_not_wait_for_what_is_sent_later() -> None:
    """Otherwise flushing would never end while another caller keeps sending."""
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t")
        broker.hold_receipts()
        early = await producer.enqueue(b"early")
        flushing = asyncio.ensure_future(producer.flush())
        await until(lambda: len(broker.receipts_held or ()) == 1)
        late = await producer.enqueue(b"late")
        await until(lambda: len(broker.receipts_held or ()) == 2)
        assert not flushing.done()
        assert broker.receipts_held is not None
        connection, receipt = broker.receipts_held.pop(0)
        connection.write(receipt)
        async with asyncio.timeout(60):
            await flushing
        assert (early.done(), late.done()) == (True, False)
        broker.release_receipts()
        await producer.flush()
        assert late.done()


async def test_closing_sends_what_is_left() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", linger_ms=10_000)
        broker.hold_receipts()
        futures = [await producer.enqueue(b"1")]
        await until(lambda: broker.receipts_held)
        futures.append(await producer.enqueue(b"2"))  # waits in a batch while the first is unconfirmed
        broker.release_receipts()
        await producer.close()
        assert [future.done() for future in futures] == [True, True]
        assert stored(broker.store) == [b"1", b"2"]
        with pytest.raises(errors.AlreadyClosedError):
            await producer.send(b"3")


async def test_a_producer_that_stops_at_a_failure_sends_nothing_after_it() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", send_timeout_ms=500, stop_at_failure=True)
        broker.hold_receipts()
        sent = asyncio.ensure_future(producer.send_many([b"1"]))
        await until(lambda: len(broker.receipts_held or []) == 1)
        with pytest.raises(errors.RequestTimeoutError):
            await sent
        broker.release_receipts()
        for _ in range(2):
            with pytest.raises(errors.RequestTimeoutError):
                await producer.send_many([b"2"])
        assert stored(broker.store) == [b"1"]
        await producer.close()


async def test_a_producer_that_stops_at_a_failure_also_stops_at_what_it_refuses() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", stop_at_failure=True)
        await producer.open()
        calls = [producer.send_many([value]) for value in (b"1", bytes((64 << 20) + 1), b"2")]
        first, *others = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(first, list)
        assert [type(other) for other in others] == [errors.MessageTooLargeError] * 2
        assert stored(broker.store) == [b"1"]
        await producer.close()


async def test_calls_of_send_many_keep_their_order_where_they_wait_for_room() -> None:  # I15
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", pending_messages_max=10, batch_messages=5)
        await producer.open()
        values = [[b"%d" % (call * 100 + index) for index in range(30)] for call in range(4)]
        broker.hold_receipts()
        calls = [asyncio.ensure_future(producer.send_many(some)) for some in values]
        last = asyncio.ensure_future(producer.send(b"last"))
        await until(lambda: len(broker.receipts_held or []) == 2)
        broker.release_receipts()
        await asyncio.gather(*calls, last)
        assert stored(broker.store) == [*(value for some in values for value in some), b"last"]
        await producer.close()


async def test_a_list_knows_the_ids_of_its_messages_and_its_failures_in_their_order() -> None:
    outcome = ListOutcome(5)
    batch, lost, single, late = (outcome.expect(positions) for positions in ((0, 3), (2,), (1,), (4,)))
    late.set_exception(errors.QuotaExceededError("second"))
    waiting = asyncio.ensure_future(outcome.wait())
    single.set_result(MessageId(7, 2))
    batch.set_result(MessageId(7, 1))
    await asyncio.sleep(0)
    assert not waiting.done()
    lost.set_exception(errors.RequestTimeoutError("first"))
    assert [str(error) for error in await waiting] == ["first", "second"]
    assert outcome.ids == [MessageId(7, 1, -1, 0), MessageId(7, 2), None, MessageId(7, 1, -1, 1), None]
    assert [one.batch_size for one in outcome.ids if one is not None] == [2, 0, 2]
    assert await ListOutcome(0).wait() == []


async def test_a_list_of_many_keys_makes_no_future_for_each_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        FakeBroker() as broker,
        await client_of(broker) as client,
        client.producer("t", batch_by_key=True) as producer,
    ):
        made: list[object] = []
        loop = asyncio.get_running_loop()
        make = loop.create_future

        def counted() -> asyncio.Future[None]:
            made.append(None)
            return make()

        monkeypatch.setattr(loop, "create_future", counted)
        ids = await producer.send_many([b"x"] * 100, keys=[f"key-{n}" for n in range(100)])
        assert [one.entry_id for one in ids] == list(range(100))
        assert len(made) < 10
