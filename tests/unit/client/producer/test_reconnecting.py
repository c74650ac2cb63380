"""A producer whose connection, owner or broker changes, or whose broker answers with errors."""

from __future__ import annotations

import asyncio
import random

import pytest

from heliograph.base import errors
from heliograph.protocol import pulsar_pb2 as pb
from tests.unit.client.fake_broker import FakeBroker, FakeConnection, FakeStore, T
from tests.unit.client.world import TOPIC, client_of, stored
from tests.waits import until


async def test_unconfirmed_entries_are_sent_again_in_order_with_the_same_sequence_ids() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", batch_messages=1)
        broker.hold_receipts()
        futures = [await producer.enqueue(b"%d" % index) for index in range(5)]
        await until(lambda: len(broker.receipts_held or []) == 5)
        (broker.receipts_held or []).clear()
        broker.receipts_held = None
        broker.store.topics[TOPIC].entries.clear()
        broker.drop_connections()
        ids = await asyncio.gather(*futures)
        assert [place.entry_id for place in ids] == list(range(5))  # I2
        assert stored(broker.store) == [b"%d" % index for index in range(5)]
        numbers = [command.send.sequence_id for command in broker.of_type(T.SEND)]
        assert numbers == [*range(5), *range(5)]
        registrations = [command.producer for command in broker.of_type(T.PRODUCER)]
        assert [(each.epoch, each.producer_name) for each in registrations] == [(0, ""), (1, "fake-1")]
        await producer.close()


async def test_a_large_message_of_which_some_chunks_are_confirmed_is_sent_again_as_a_whole() -> None:
    async with FakeBroker() as broker:
        broker.max_message_bytes = 1000
        async with await client_of(broker) as client, client.producer("t", batch_messages=1) as producer:
            broker.hold_receipts()
            large = random.Random(1).randbytes(3500)
            sent, after = await producer.enqueue(large), await producer.enqueue(b"after")
            await until(lambda: len(broker.receipts_held or []) == 5)
            held, broker.receipts_held = broker.receipts_held or [], None
            for connection, receipt in held[:2]:
                connection.write(receipt)
            await asyncio.sleep(0.05)
            assert not sent.done()
            del broker.store.topics[TOPIC].entries[2:]  # the other chunks were lost with their broker
            broker.drop_connections()
            assert ((await sent).entry_id, (await after).entry_id) == (5, 6)
            async with client.reader("t", start="earliest") as reader:
                assert [(await reader.receive(timeout=60)).data for _ in range(2)] == [large, b"after"]


async def test_a_receipt_out_of_order_ends_the_connection_and_nothing_is_confirmed_wrongly() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", batch_messages=1)
        broker.hold_receipts()
        futures = [await producer.enqueue(b"%d" % index) for index in range(2)]
        await until(lambda: len(broker.receipts_held or []) == 2)
        held, broker.receipts_held = broker.receipts_held or [], None
        connection, late = held[1]
        connection.write(late)  # the second entry's receipt comes first # I2
        ids = await asyncio.gather(*futures)
        assert [place.entry_id for place in ids] == [2, 3]  # from the second sending
        await producer.close()


async def test_another_broker_takes_over() -> None:
    store = FakeStore()
    async with FakeBroker(store) as second, FakeBroker(store) as first, await client_of(first, second) as client:
        first.redirects[TOPIC] = second.url
        producer = await client.producer("t")
        await producer.send(b"1")
        assert second.of_type(T.SEND)
        del first.redirects[TOPIC]
        second.redirects[TOPIC] = first.url
        second.drop_connections()
        await producer.send(b"2")
        assert first.of_type(T.SEND)
        assert stored(store) == [b"1", b"2"]
        await producer.close()


async def test_a_producer_follows_its_topic_to_a_new_owner_and_keeps_the_connection() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t")
        await producer.send(b"1")
        [connection] = broker.connections
        connection.producers.clear()
        connection.answer(close_producer=pb.CommandCloseProducer(producer_id=1, request_id=(1 << 64) - 1))
        await producer.send(b"2")
        assert broker.connections == [connection]
        assert stored(broker.store) == [b"1", b"2"]
        await producer.close()


async def test_a_producer_that_rejoins_when_it_sends_does_not_make_a_deleted_topic_anew() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t", rejoin="when_sending")
        await producer.send(b"1")
        [connection] = broker.connections
        connection.producers.clear()
        connection.answer(close_producer=pb.CommandCloseProducer(producer_id=1, request_id=(1 << 64) - 1))
        await (await client.producer("other")).send(b"later: the close has arrived")
        assert [c.producer.topic for c in broker.of_type(T.PRODUCER)].count(TOPIC) == 1
        await asyncio.gather(producer.send(b"2"), producer.send(b"3"))
        assert stored(broker.store) == [b"1", b"2", b"3"]
        connection.producers.clear()
        connection.answer(close_producer=pb.CommandCloseProducer(producer_id=1, request_id=(1 << 64) - 1))
        await producer.close()


async def test_a_topic_that_changes_owner_while_a_producer_opens_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        answer = FakeConnection.on_producer

        def answer_and_close(connection: FakeConnection, request: pb.CommandProducer) -> None:
            answer(connection, request)
            if len(broker.of_type(T.PRODUCER)) == 1:
                close = pb.CommandCloseProducer(producer_id=request.producer_id, request_id=1)
                connection.answer(close_producer=close)  # in the same segment as the success

        monkeypatch.setattr(FakeConnection, "on_producer", answer_and_close)
        producer = await client.producer("t")
        await producer.send(b"one")
        assert len(broker.of_type(T.PRODUCER)) == 2
        assert stored(broker.store) == [b"one"]


async def test_a_send_error_is_retried_unless_it_is_final() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t")
        broker.refuse(T.SEND, pb.PERSISTENCE_ERROR)
        await producer.send(b"1")
        broker.refuse(T.SEND, pb.TOPIC_TERMINATED_ERROR)
        with pytest.raises(errors.TopicTerminatedError):
            await producer.send(b"2")
        await producer.send(b"3")
        assert stored(broker.store) == [b"1", b"3"]
        assert producer.pending_messages == 0
        await producer.close()


async def test_a_producer_that_is_refused_for_good_fails_its_pending_messages() -> None:
    async with FakeBroker() as broker, await client_of(broker) as client:
        producer = await client.producer("t")
        broker.silent.add(T.SEND)
        future = await producer.enqueue(b"x")
        await until(lambda: broker.of_type(T.SEND))
        broker.refuse(T.PRODUCER, pb.PRODUCER_BUSY)  # may pass: the broker has not noticed the lost connection yet
        broker.refuse(T.PRODUCER, pb.PRODUCER_FENCED)
        broker.drop_connections()
        with pytest.raises(errors.ProducerFencedError):
            await future
        with pytest.raises(errors.ProducerFencedError):
            await producer.send(b"y")
        assert producer.pending_messages == 0
        await producer.close()
