"""The producer against a fake broker: batching, order over reconnects, bounds, errors."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import heliograph
from heliograph.base import errors
from heliograph.client.aio.producer.producer import AsyncProducer
from heliograph.client.aio.producer.send_window import SendWindow
from heliograph.client.options import ClientOptions
from heliograph.protocol import entry as entries
from heliograph.protocol import pulsar_pb2 as pb
from heliograph.protocol.hashing import java_string_hash
from tests.unit.client.fake_broker import FakeBroker, FakeConnection, FakeStore, T
from tests.unit.client.world import TOPIC, client_of, run, stored, until


def test_a_single_send_is_one_entry_without_a_batch() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
            place = await producer.send("hello", key="k", properties={"a": "b"}, event_time_ms=5)
            assert (place.entry_id, place.batch_index, place.topic) == (0, -1, TOPIC)
            metadata, payload = entries.split(broker.store.topics[TOPIC].entries[0])
            assert bytes(payload) == b"hello"
            assert not entries.is_batch(metadata)
            assert (metadata.partition_key, metadata.event_time, metadata.producer_name) == ("k", 5, "fake-1")

    run(scenario())


def test_sends_of_one_turn_share_an_entry_in_order() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
            await producer.open()
            ids = await asyncio.gather(*(producer.send(b"%d" % index) for index in range(100)))
            assert [(place.entry_id, place.batch_index, place.batch_size) for place in ids] == [
                (0, index, 100) for index in range(100)
            ]
            assert stored(broker.store) == [b"%d" % index for index in range(100)]

    run(scenario())


def test_send_many_takes_keys_of_bytes_ordering_keys_and_null_values() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
            await producer.send_many([b"x", None], keys=[b"\xff", "k"], ordering_keys=[b"o", None])
            await producer.send_many([None], keys=[b"\xff"], ordering_keys=[b"o"])
            batch, single = broker.store.topics[TOPIC].entries
            metadata, payload = entries.split(batch)
            (first, value), (second, nothing) = entries.iterate_batch(metadata, bytes(payload))
            assert (first.partition_key, first.partition_key_b64_encoded, first.ordering_key) == ("/w==", True, b"o")
            assert (second.partition_key, second.partition_key_b64_encoded) == ("k", False)
            assert (value, first.null_value, nothing, second.null_value) == (b"x", False, b"", True)
            metadata, payload = entries.split(single)
            assert (metadata.partition_key, metadata.partition_key_b64_encoded) == ("/w==", True)
            assert (metadata.ordering_key, metadata.null_value, bytes(payload)) == (b"o", True, b"")
            with pytest.raises(errors.BadRequestError, match="ordering key"):
                await producer.send_many([b"x"], ordering_keys=["text"])  # type: ignore[list-item]

    run(scenario())


def test_send_many_cuts_by_messages_and_by_bytes() -> None:
    async def scenario() -> None:
        async with (
            FakeBroker() as broker,
            await client_of(broker) as client,
            client.producer("t", batch_messages=10, batch_bytes=1000) as producer,
        ):
            values = [bytes(index % 300) for index in range(500)]
            ids = await producer.send_many(values)
            assert stored(broker.store) == values
            assert ids == sorted(set(ids))
            for section in broker.store.topics[TOPIC].entries:
                metadata = entries.metadata_of(section)
                assert entries.message_count(metadata) <= 10
                assert metadata.uncompressed_size <= 1000
            assert await producer.send_many([]) == []

    run(scenario())


def test_order_holds_between_send_and_send_many() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
            first = await producer.enqueue(b"1")
            await producer.send_many([b"2", b"3"])
            await producer.send(b"4")
            assert first.done()
            assert stored(broker.store) == [b"1", b"2", b"3", b"4"]

    run(scenario())


def test_unconfirmed_entries_are_sent_again_in_order_with_the_same_sequence_ids() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_receipt_out_of_order_ends_the_connection_and_nothing_is_confirmed_wrongly() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_another_broker_takes_over() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_producer_follows_its_topic_to_a_new_owner_and_keeps_the_connection() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_producer_that_rejoins_when_it_sends_does_not_make_a_deleted_topic_anew() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_topic_that_changes_owner_while_a_producer_opens_is_looked_up_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_send_error_is_retried_unless_it_is_final() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_message_that_times_out_because_disks_are_full_says_so() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_a_message_above_the_limit_is_refused_before_anything_is_sent() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker:
            broker.max_message_bytes = 1000
            async with await client_of(broker) as client, client.producer("t") as producer:
                for attempt in (producer.send(bytes(1001)), producer.send_many([b"fine", bytes(1001)])):
                    with pytest.raises(errors.MessageTooLargeError) as caught:
                        await attempt
                    assert (caught.value.field, caught.value.limit) == ("value", "1000 bytes")
                for attempt in (
                    producer.send(b"", properties={"x": "y" * 8000}),
                    producer.send_many([b""], keys=["k" * 8000]),
                ):
                    with pytest.raises(errors.MessageTooLargeError) as caught:
                        await attempt
                    assert caught.value.field == "properties"
                assert not broker.of_type(T.SEND)
                await producer.send(bytes(1000))
                await producer.send_many([bytes(600)] * 5)  # never together in an entry above the limit
                assert len(broker.store.topics[TOPIC].entries) == 6

    run(scenario())


def test_a_full_window_makes_senders_wait_in_order() -> None:  # I15
    async def scenario() -> None:
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

    run(scenario())


def test_a_cancelled_wait_for_room_takes_none() -> None:
    async def scenario() -> None:
        window = SendWindow(1, 100)
        await window.acquire(1, 500)  # alone it may exceed the bound
        waiting = asyncio.ensure_future(window.acquire(1, 1))
        behind = asyncio.ensure_future(window.acquire(1, 1))
        await asyncio.sleep(0)
        assert not window.try_acquire(1, 1)
        waiting.cancel()
        await asyncio.wait([waiting])
        window.release(1, 500)
        await behind
        assert (window.messages, window.bytes) == (1, 1)

    run(scenario())


def test_an_unconfirmed_message_times_out_and_later_ones_go_on() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client:
            producer = await client.producer("t", send_timeout_ms=500)
            broker.hold_receipts()
            with pytest.raises(errors.RequestTimeoutError):
                await producer.send(b"1")
            broker.release_receipts()
            assert (await producer.send(b"2")).entry_id == 1
            await producer.close()

    run(scenario())


def test_keys_choose_partitions_as_java_does_and_keep_their_order() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client:
            broker.store.partitions[TOPIC] = 4
            assert await client.partitions("t") == 4
            async with client.producer("t") as producer:
                keys = [f"N{index % 37}" for index in range(400)]
                values = [f"{key}:{index}".encode() for index, key in enumerate(keys)]
                ids = await producer.send_many(values, keys=keys)
                single = await producer.send(b"N3:single", key="N3")
                assert [place.partition for place in ids] == [java_string_hash(key) % 4 for key in keys]
                assert single.partition == java_string_hash("N3") % 4
                for index in range(4):
                    own = [value for value, place in zip(values, ids, strict=True) if place.partition == index]
                    assert stored(broker.store, f"{TOPIC}-partition-{index}")[: len(own)] == own

    run(scenario())


def test_batches_without_keys_go_round_robin() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client:
            broker.store.partitions[TOPIC] = 3
            async with client.producer("t") as producer:
                used = [(await producer.send_many([b"a", b"b"]))[0].partition for _ in range(6)]
                assert sorted(used) == [0, 0, 1, 1, 2, 2]

    run(scenario())


def test_batches_by_key_hold_one_key_each() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client:
            async with client.producer("t", batch_by_key=True) as producer:
                await producer.send_many([b"%d" % index for index in range(6)], keys=["a", "b", "a", "b", "c", "c"])
                await asyncio.gather(*(producer.send(b"x", key=key) for key in "aabb"))
            for section in broker.store.topics[TOPIC].entries:
                metadata, payload = entries.split(section)
                assert metadata.HasField("partition_key")
                plain = entries.plain_payload(metadata, payload)
                singles = [single for single, _ in entries.iterate_batch(metadata, plain)] or [
                    pb.SingleMessageMetadata(partition_key=metadata.partition_key)
                ]
                assert {single.partition_key for single in singles} == {metadata.partition_key}

    run(scenario())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (pb.PRODUCER_BUSY, errors.ProducerBusyError),
        (pb.TOPIC_NOT_FOUND, errors.TopicNotFoundError),
        (pb.PRODUCER_FENCED, errors.ProducerFencedError),
        (pb.AUTHORIZATION_ERROR, errors.NotPermittedError),
    ],
)
def test_opening_raises_what_the_broker_says(code: pb.ServerError, kind: type[Exception]) -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client:
            broker.refuse(T.PRODUCER, code)
            producer = client.producer("t")
            with pytest.raises(kind, match="refused by the test"):
                await producer
            await producer.send(b"x")  # the next use opens it again

    run(scenario())


def test_a_producer_that_is_refused_for_good_fails_its_pending_messages() -> None:
    async def scenario() -> None:
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

    run(scenario())


def test_flushing_does_not_wait_for_what_is_sent_later() -> None:
    """Otherwise flushing would never end while another caller keeps sending."""

    async def scenario() -> None:
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
            async with asyncio.timeout(10):
                await flushing
            assert (early.done(), late.done()) == (True, False)
            broker.release_receipts()
            await producer.flush()
            assert late.done()

    run(scenario())


def test_closing_sends_what_is_left() -> None:
    async def scenario() -> None:
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

    run(scenario())


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda it: it.send(5), "value"),
        (lambda it: it.send(b"", key=5), "key"),
        (lambda it: it.send(b"", properties={"a": 1}), "properties"),
        (lambda it: it.send(b"", event_time_ms=-1), "event_time_ms"),
        (lambda it: it.send_many([b"a"], keys=[]), "keys"),
        (lambda it: it.send_many([b"a"], keys=[3]), "key"),
    ],
)
def test_bad_arguments_name_their_field(call: Any, field: str) -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client, client.producer("t") as producer:
            with pytest.raises(errors.BadRequestError) as caught:
                await call(producer)
            assert caught.value.field == field
            assert not broker.of_type(T.SEND)
            assert isinstance(producer, AsyncProducer)
            assert producer.pending_messages == 0

    run(scenario())


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"linger": 3}, "linger"),
        ({"batch_messages": 0}, "batch_messages"),
        ({"compression": "gzip"}, "compression"),
        ({"batch_bytes": 1 << 30}, "batch_bytes"),
    ],
)
def test_bad_options_name_their_field(options: dict[str, Any], field: str) -> None:
    client = heliograph.AsyncClient(ClientOptions(("pulsar://127.0.0.1:1",)))
    with pytest.raises(errors.InvalidConfigError) as caught:
        client.producer("t", **options)
    assert caught.value.field == field


def test_an_opening_is_abandoned_when_its_last_caller_is_cancelled() -> None:
    """Otherwise a producer could be given exclusive access after its caller is gone."""

    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client:
            broker.silent.add(T.PRODUCER)
            producer = client.producer("t", access_mode="wait_for_exclusive")
            first, second = asyncio.ensure_future(producer.open()), asyncio.ensure_future(producer.open())
            await until(lambda: broker.of_type(T.PRODUCER))
            first.cancel()
            await asyncio.gather(first, return_exceptions=True)
            assert not broker.of_type(T.CLOSE_PRODUCER)  # the other caller still waits
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
            await until(lambda: broker.of_type(T.CLOSE_PRODUCER))
            broker.silent.clear()
            await producer.send("a later use opens it again")
            assert stored(broker.store) == [b"a later use opens it again"]

    run(scenario())


def opened(broker: FakeBroker) -> set[int]:
    """Return the commands that the broker received so far; the last may arrive after a cancellation."""
    return {command.producer.producer_id for command in broker.of_type(T.PRODUCER)}


def test_an_abandoned_opening_closes_the_partitions_that_were_open() -> None:
    async def scenario() -> None:
        async with FakeBroker() as broker, await client_of(broker) as client:
            broker.store.partitions[TOPIC] = 2
            broker.silent_after[T.PRODUCER] = 1
            opening = asyncio.ensure_future(client.producer("t").open())
            await until(lambda: broker.of_type(T.PRODUCER))
            opening.cancel()
            await asyncio.gather(opening, return_exceptions=True)
            await until(
                lambda: opened(broker) == {c.close_producer.producer_id for c in broker.of_type(T.CLOSE_PRODUCER)}
            )

    run(scenario())
